"""Int8: layers become oneDNN's int8 operators, stay so between them, and move outputs by little."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from handoff.artifacts.errors import UsageProblem
from handoff.tasks.optimize.int8.rewriting import Rewriter
from handoff.tasks.optimize.passes.base import Calibration, apply_pass
from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.quantize_int8 import QuantizeInt8
from tests.processors import COMPUTES_INT8, NO_INT8
from tests.tasks.optimize.passes.exporting import count, export

_ATEN, _OWN = torch.ops.aten, torch.ops.handoff
CONVOLUTION, LINEAR = _OWN.int8_convolution.default, _OWN.int8_linear.default
WHOSE = "ranges of two batches"
MEASURED = _OWN.int8_linear_measured.default
ADDING = _OWN.int8_convolution_added.default


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """Two convolutions and what goes past them, in place as torchvision writes it, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.one, self.two = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1, bias=False)
        self.wide = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=4)
        self.head = nn.Linear(16, 5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        out = self.two(self.relu(self.one(x)))
        out += x
        out = self.wide(self.relu(out))
        return self.head(out.mean((2, 3)))  # type: ignore[no-any-return]


def quantized(
    module: nn.Module, x: Tensor, kind: str = "static", keep: str = "0"
) -> tuple[ExportedProgram, QuantizeInt8]:
    program, chosen = export(module, x), QuantizeInt8({"activations": kind, "keep": keep})
    chosen.calibrate(Calibration([(x,), (x[:3] * 0.5,)], WHOSE))
    assert apply_pass(chosen, program)
    return program, chosen


def relative_error(module: nn.Module, program: ExportedProgram, x: Tensor) -> float:
    with torch.no_grad():
        return distance(program.module()(x.clone()), module(x.clone()))


def distance(got: Tensor, want: Tensor) -> float:
    if not COMPUTES_INT8:
        pytest.skip(f"the graph is right; {NO_INT8}")
    return float((got - want).norm() / want.norm())


class Pooled(nn.Module):
    """A convolution whose largest results a next one takes; with `past`, a sum takes them, too."""

    def __init__(self, *, past: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.next = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.past = past

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(nn.functional.silu(self.stem(x)))
        out: Tensor = self.next(x)
        return (out + x if self.past else out).mean((2, 3))


@pytest.mark.parametrize("laid_out", [False, True], ids=["as it is", "channels last"])
@pytest.mark.parametrize("past", [False, True], ids=["one takes it", "a sum takes it, too"])
def test_a_max_pool_between_such_layers_is_given_int8_and_gives_the_same_bits(
    past: bool, laid_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> ExportedProgram:
        program = export(Pooled(past=past).eval(), images())
        if laid_out:
            assert apply_pass(ChannelsLast({}), program)
        chosen = QuantizeInt8({"activations": "static", "keep": "0"})
        chosen.calibrate(Calibration([(images(),)], WHOSE))
        assert apply_pass(chosen, program)
        return program

    program = made()
    stem, _ = (n for n in program.graph.nodes if n.target is CONVOLUTION)
    assert stem.meta["val"].dtype is torch.uint8
    monkeypatch.setattr(Rewriter, "_find_pooled_layer", lambda *_: None)
    before = made()
    stem, _ = (n for n in before.graph.nodes if n.target is CONVOLUTION)
    assert stem.meta["val"].dtype is torch.float32
    for size in (6, 3):
        got, want = (one.module()(images(size)).detach() for one in (program, before))
        if past:
            # The sum takes the grid's numbers, as of every tensor that such layers take.
            assert 0.0 < float((got - want).norm() / want.norm()) < 0.01
        else:
            assert torch.equal(got, want)


def test_a_pool_whose_source_others_take_too_stays_as_it_is() -> None:
    class Forked(Pooled):
        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.next(self.pool(x)).mean((2, 3)) + x.mean((2, 3))  # type: ignore[no-any-return]

    program, _ = quantized(Forked(past=False).eval(), images())
    stem, _ = (n for n in program.graph.nodes if n.target is CONVOLUTION)
    assert stem.meta["val"].dtype is torch.float32


def test_every_layer_computes_in_int8_and_the_outputs_move_by_some_percent_at_most() -> None:
    module = Residual().eval()
    program, chosen = quantized(module, images())
    assert count(program, CONVOLUTION) == 4
    assert count(program, LINEAR) == 1
    assert count(program, _ATEN.conv2d.default) == count(program, _ATEN.linear.default) == 0
    assert chosen.notes == ("5 of 5 layers compute in int8", WHOSE)
    for size in (6, 3):
        assert 1e-5 < relative_error(module, program, images(size)) < 0.05
    floats = [t for t in program.state_dict.values() if t.dtype is torch.float32]
    assert max(t.numel() for t in floats) <= 16, "the float32 weights are gone"


def test_a_result_that_such_a_layer_takes_stays_int8_and_what_goes_past_takes_its_numbers() -> None:
    program, _ = quantized(Residual().eval(), images())
    layers = [n for n in program.graph.nodes if n.target is CONVOLUTION]
    # The second one's sum is float32, as is the last one's mean.
    assert [n.meta["val"].dtype for n in layers] == [torch.uint8] * 2 + [torch.float32] * 2
    assert [n.args[-1] for n in layers] == ["relu", "relu", "none", "none"]


def test_a_sum_of_a_layer_and_of_what_goes_past_it_stays_int8_where_that_is_asked_for() -> None:
    module = Residual().eval()
    program, _ = quantized(module, images(), "static-sums")
    layers = [n for n in program.graph.nodes if n.target in (CONVOLUTION, ADDING)]
    assert [n.meta["val"].dtype for n in layers] == [torch.uint8] * 3 + [torch.float32]
    assert [n.target is ADDING for n in layers] == [False, False, True, False]
    assert [n.args[-1] for n in layers] == ["relu", "relu", "relu", "none"]
    assert count(program, _ATEN.add_.Tensor) == 0
    assert relative_error(module, program, images()) < 0.05


class Blocks(nn.Module):
    """A maximum over windows, a block whose way past has a layer of its own, and one without."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.pool = nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, 2, 1)
        self.one, self.two = nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.past = nn.Conv2d(8, 16, 1, 2)
        self.three, self.four = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.stem(x).relu())
        x = (self.two(self.one(x).relu()) + self.past(x)).relu()
        x = x + self.four(self.three(x).relu())
        return self.last(x), x


def test_sums_and_ways_past_stay_int8_and_outputs_are_float32() -> None:
    module = Blocks().eval()
    program, chosen = quantized(module, images(), "static-sums")
    assert chosen.notes[0] == "7 of 7 layers compute in int8"
    assert (count(program, CONVOLUTION), count(program, ADDING)) == (5, 2)
    # Of the image: what is pooled is given as int8.
    assert count(program, _ATEN.round.default) == 1
    # The sum that is an output as well.
    assert count(program, _ATEN.sub.Tensor) == 1
    with torch.no_grad():
        for size in (6, 3):
            x = images(size)
            for got, want in zip(program.module()(x), module(x), strict=True):
                assert got.dtype is torch.float32
                assert float((got - want).norm() / want.norm()) < 0.05


def test_how_images_lie_in_memory_between_layers_changes_nothing_of_it() -> None:
    module, program = Blocks().eval(), export(Blocks().eval(), images())
    assert apply_pass(ChannelsLast({}), program)
    chosen = QuantizeInt8({"activations": "static-sums", "keep": "0"})
    chosen.calibrate(Calibration([(images(),)], WHOSE))
    assert apply_pass(chosen, program)
    assert (count(program, CONVOLUTION), count(program, ADDING)) == (5, 2)
    assert count(program, _ATEN.round.default) == 1, "each tensor is brought onto its grid once"
    with torch.no_grad():
        for got, want in zip(program.module()(images()), module(images()), strict=True):
            assert float((got - want).norm() / want.norm()) < 0.05


class NoSums(nn.Module):
    """Sums that aren't of one shape, of what is written to later, and of twice the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.one, self.two, self.three = (nn.Conv2d(8, 8, 3, 1, 1) for _ in range(3))
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = self.one(x) + x.mean((2, 3), keepdim=True)
        past = self.two(x)
        x = self.last(self.three(x) + past) * past.mul_(0.01).mean()
        return x + x


def test_sums_that_are_not_of_a_layer_and_of_what_goes_past_it_are_left() -> None:
    module = NoSums().eval()
    program, _ = quantized(module, images(), "static-sums")
    assert count(program, ADDING) == 0
    assert relative_error(module, program, images()) < 0.05


@pytest.mark.parametrize(
    ("activation", "post_op"),
    [
        (nn.ReLU6(), "hardtanh:0:6"),
        (nn.Hardtanh(-1.0, 2.5), "hardtanh:-1.0:2.5"),
        (nn.Hardswish(inplace=True), "hardswish"),
        (nn.SiLU(), "swish"),
        (nn.GELU(), "gelu:none"),
        (nn.GELU("tanh"), "gelu:tanh"),
        (nn.Softplus(), "none"),
    ],
)
def test_an_activation_behind_a_layer_is_the_layers_own_where_onednn_has_it(
    activation: nn.Module, post_op: str
) -> None:
    torch.manual_seed(0)
    pairs = (
        (nn.Sequential(nn.Conv2d(3, 8, 3), activation, nn.Conv2d(8, 4, 3)), images()),
        (nn.Sequential(nn.Linear(16, 32), activation, nn.Linear(32, 4)), images()[..., 0, :]),
    )
    for module, x in pairs:
        program, _ = quantized(module.eval(), x)
        first, _ = [n for n in program.graph.nodes if n.target in (CONVOLUTION, LINEAR)]
        # It has no gelu behind convolutions.
        is_done = first.target == LINEAR or not post_op.startswith("gelu")
        expected = post_op if is_done else "none"
        assert first.args[-1].replace(".0", "") == expected.replace(".0", "")
        assert relative_error(module, program, x) < 0.05


def test_the_layers_that_move_the_outputs_most_are_kept_as_many_as_is_said_and_reported() -> None:
    module = Residual().eval()
    whole, _ = quantized(module, images())
    program, chosen = quantized(module, images(), keep="0.4")
    assert count(program, CONVOLUTION) + count(program, LINEAR) == 3
    assert chosen.notes[0] == "3 of 5 layers compute in int8"
    assert chosen.notes[1].startswith("in float32, since each alone would move the outputs")
    errors = [relative_error(module, one, images()) for one in (program, whole)]
    assert errors[0] < errors[1]


class Encoder(nn.Module):
    """Three linear layers of one input of rank 3."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1)
        return scores @ self.v(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "operator"), [("static", LINEAR), ("dynamic", MEASURED)])
def test_linear_layers_of_one_input_share_its_grid_found_before_or_at_each_call(
    kind: str, operator: object
) -> None:
    x = torch.randn(6, 7, 32, generator=torch.Generator().manual_seed(0))
    module = Encoder().eval()
    program, _ = quantized(module, x, kind)
    assert count(program, operator) == 3
    assert count(program, _ATEN.round.default) == (1 if kind == "static" else 2)
    assert relative_error(module, program, x) < 0.02
    # What lies beyond all that was seen is clipped, unless the grid is found at each call.
    assert (relative_error(module, program, 10 * x) < 0.1) == (kind == "dynamic")


def test_a_grid_that_is_found_at_each_call_carries_a_nan() -> None:
    x = torch.randn(6, 7, 32, generator=torch.Generator().manual_seed(0))
    program, _ = quantized(Encoder().eval(), x, "dynamic")
    x[0, 0, 0] = torch.nan
    with torch.no_grad():
        assert bool(program.module()(x)[0].isnan().all())


def test_convolutions_have_no_grid_of_each_call_and_stay() -> None:
    program, chosen = quantized(Residual().eval(), images(), "dynamic")
    assert count(program, _ATEN.conv2d.default) == 4
    assert count(program, MEASURED) == 1
    first, reason = chosen.notes
    assert first == "1 of 5 layers compute in int8"
    assert reason.startswith("in float32, since this int8 is for linear layers")
    assert reason.endswith(": " + ", ".join(["conv2d", *(f"conv2d_{n}" for n in (1, 2, 3))]))


def test_layers_that_int8_is_not_for_are_counted_and_named_with_the_reason() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.image, self.series = nn.Conv2d(3, 8, 3), nn.Conv1d(3, 8, 3)
            self.up, self.rows = nn.ConvTranspose2d(8, 4, 2), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.image(x)
            points = self.image.weight.flatten(1)[:, :8]
            means = y.mean((2, 3))
            return self.up(y), self.series(x[:, :, 0]), self.rows(means), means @ points

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.point, self.other = nn.Conv2d(8, 4, 1), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.permute(0, 2, 3, 1)
            pointwise = nn.functional.linear(rows, self.point.weight.flatten(1), self.point.bias)
            return pointwise + self.other(rows)  # type: ignore[no-any-return]

    _, chosen = quantized(Mixed().eval(), images())
    assert chosen.notes[0] == "2 of 4 layers compute in int8"
    assert chosen.notes[1].endswith("as they are: conv_transpose2d, conv1d")
    program, chosen = quantized(Flattened().eval(), torch.randn(6, 8, 5, 5))
    assert count(program, LINEAR) == count(program, _ATEN.linear.default) == 1
    assert chosen.notes[0] == "1 of 2 layers compute in int8"
    assert chosen.notes[1].endswith("as they are: linear")


class Ends(nn.Module):
    """A convolution whose result is the output, and one that is read as it lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x).view(x.shape[0], -1)


def test_outputs_lie_in_memory_as_they_did() -> None:
    module = Ends().eval()
    program, _ = quantized(module, images())
    with torch.no_grad():
        both = list(zip(program.module()(images()), module(images()), strict=True))
    assert [got.stride() for got, _ in both] == [want.stride() for _, want in both]
    assert max(distance(got, want) for got, want in both) < 0.02


class Overwritten(nn.Module):
    """What a layer is given is written to before another one takes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        held = x * 2
        first = self.one(held)
        held += 100.0
        return first + self.two(held)  # type: ignore[no-any-return]


def test_a_layer_whose_input_is_written_to_later_stays_and_nothing_is_mixed_up() -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    module, program = Overwritten().eval(), export(Overwritten().eval(), x)
    chosen = QuantizeInt8({"activations": "static", "keep": "0"})
    chosen.calibrate(Calibration([(x,)], WHOSE))
    apply_pass(chosen, program)
    assert relative_error(module, program, x) < 0.02


class Computed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, x)


@pytest.mark.parametrize("module", [nn.ReLU(), Computed(), nn.Conv1d(3, 4, 3)])
def test_where_there_is_no_such_layer_nothing_is_changed(module: nn.Module) -> None:
    x = torch.randn(6, 3, 8) if isinstance(module, nn.Conv1d) else torch.randn(6, 8)
    chosen = QuantizeInt8({"activations": "static", "keep": "0"})
    chosen.calibrate(Calibration([(x,)], WHOSE))
    assert not apply_pass(chosen, export(module.eval(), x))
    told = () if isinstance(module, nn.ReLU) else ("0 of 1 layers compute in int8",)
    assert chosen.notes[:1] == told


@pytest.mark.parametrize(
    "given",
    [{"activations": "fast", "keep": "0"}, {"activations": "static", "keep": "1"},
     {"activations": "static", "keep": "nan"}, {"activations": "static"}],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_reported(given: dict[str, str]) -> None:
    with pytest.raises(UsageProblem, match="quantize-int8 can't be set up"):
        QuantizeInt8(given)


def test_weights_that_are_called_by_numbers_get_names_that_a_graph_can_have() -> None:
    layers: Sequence[nn.Module] = (nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(*layers).eval()
    program, _ = quantized(module, x)
    assert relative_error(module, program, x) < 0.05
