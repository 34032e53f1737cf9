"""The Python loader: what it opens, what it refuses, and what it lets through to the package."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.artifacts.delivery.contract import Structure
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.errors import HandoffError, InputsRefused, PackageRefused, UsageProblem
from handoff.artifacts.release.manifest import MANIFEST_FILE, read_manifest
from handoff.artifacts.serve.checked_inputs import InputChecks
from handoff.artifacts.serve.loader import load
from tests.artifacts.samples import sample_key, sample_target, sign_release, write_release
from tests.tasks.built_release import ITEMS, BuiltRelease

SIGNATURE = ModelSignature(
    (
        TensorSpec("ids", "int64", ("batch", 4), 0, 9),
        TensorSpec("x", "float32", ("batch", "length"), -1, 1),
        TensorSpec("flag", "bool", ()),
    ),
    dimensions={"batch": Dimension(1, 8), "length": Dimension(0, 3)},
)
EVEN = replace(SIGNATURE, dimensions={**SIGNATURE.dimensions, "batch": Dimension(2, 8, "", 2)})


def good(batch: int = 2, length: int = 3) -> tuple[torch.Tensor, ...]:
    """Return inputs that the signature declares."""
    ids = torch.arange(batch * 4).reshape(batch, 4) % 10
    return ids, torch.full((batch, length), 7.0), torch.tensor(True)


def checks(*, values: bool = True) -> InputChecks:
    """Return the checks of the signature."""
    return InputChecks(SIGNATURE, device="cpu", values=values)


@pytest.mark.parametrize("sizes", [(1, 0), (2, 3), (8, 1)])
def test_what_was_declared_is_let_through(sizes: tuple[int, int]) -> None:
    assert checks().fit(good(*sizes))


def test_an_input_in_another_layout_is_refused_with_the_way_out_or_copied() -> None:
    ids, _, flag = good(3, 3)
    columns = torch.arange(9.0).reshape(3, 3).T
    given = (ids, columns, flag)
    assert not checks().fit(given)
    message = str(checks().refusal(given))
    assert "x is not what the model takes: expected a contiguous tensor" in message
    assert "got strides (1, 3) for the shape [3, 3]" in message
    assert "layouts='copy'" in message
    copied = checks().make_contiguous(given)
    assert checks().fit(copied)
    assert copied[0] is ids
    assert torch.equal(copied[1], columns)


def test_an_axis_of_one_element_may_have_any_stride() -> None:
    ids, _, flag = good(1, 3)
    row = torch.ones(5, 6)[:1, :3]
    assert row.stride() == (6, 1)
    assert checks().fit((ids, row, flag))


def put(place: int, tensor: object) -> tuple[Any, ...]:
    """Return good inputs but for one."""
    inputs: list[Any] = list(good())
    inputs[place] = tensor
    return tuple(inputs)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (good()[:2], "another number of inputs: expected 3: ids, x, flag, got 2"),
        ((*good(), good()[0]), "another number of inputs: expected 3: ids, x, flag, got 4"),
        (put(0, [[1, 2, 3, 4]]), "ids is not what the model takes: expected a torch.Tensor, got l"),
        (put(0, None), "expected a torch.Tensor, got NoneType"),
        (put(0, good()[0].int()), "ids is not what .* expected int64, got int32"),
        (put(1, good()[1].double()), "x is not what .* expected float32, got float64"),
        (put(0, good()[0].to("meta")), "expected a tensor on cpu, got one on meta"),
        (
            put(1, good()[1].to("meta")),
            "x is not .* expected a tensor on cpu, got one on meta",
        ),
        (put(1, good()[1].to_mkldnn()), "expected a dense tensor, got torch._mkldnn"),
        (put(1, good()[1].to_sparse()), "expected a dense tensor, got torch.sparse_coo"),
        (put(0, good()[0][0]), r"expected shape \['batch', 4\], got \[4\]"),
        (put(0, good()[0][None]), r"expected shape \['batch', 4\], got \[1, 2, 4\]"),
        (put(0, good()[0][:, :3]), r"expected shape \['batch', 4\], got \[2, 3\]"),
        (good(9), "ids is not what .* expected batch from 1 to 8, got 9"),
        (good(0), "ids is not what .* expected batch from 1 to 8, got 0"),
        (good(2, 4), "x is not what .* expected length from 0 to 3, got 4"),
        (put(1, good(3)[1]), "expected batch = 2 as in another input, got 3"),
        (put(1, torch.ones(2, 6)[:, ::2]), r"a contiguous tensor.*got strides \(6, 2\)"),
        (put(1, torch.ones(1, 3).expand(2, 3)), r"a contiguous tensor.*got strides \(0, 1\)"),
        (put(0, good()[0] + 3), "ids is not what .* expected values from 0 to 9, got 3 to 10"),
        (put(0, good()[0] - 1), "expected values from 0 to 9, got -1 to 6"),
        (put(0, good()[0] + 2**62), "expected values from 0 to 9"),
    ],
)
def test_each_wrong_input_is_refused_with_one_clear_error(
    inputs: tuple[Any, ...], message: str
) -> None:
    checked = checks()
    assert not checked.fit(inputs)
    with pytest.raises(InputsRefused, match=message):
        raise checked.refusal(inputs)


def test_an_argument_that_holds_several_tensors_is_told_as_their_inputs() -> None:
    signature = ModelSignature(
        tuple(TensorSpec(name, "float32", (2,)) for name in ("past_0", "past_1", "pasta")), (), {}
    )
    nested = InputChecks(signature, device="cpu", values=True)
    with pytest.raises(InputsRefused, match=r"Give each tensor of past by .* \(past_0, past_1\)"):
        nested.order_inputs((), {"past": torch.ones(2)})


def test_doing_what_a_refused_input_s_sentence_says_helps() -> None:
    def remedy(inputs: tuple[Any, ...]) -> str:
        return checks().refusal(inputs).remedy

    ids = good()[0]
    for place, wrong, message, mended in [
        (0, ids.int(), "Give ids.to(torch.int64)", ids.int().to(torch.int64)),
        (0, ids.numpy(), "Give torch.from_numpy(ids)", torch.from_numpy(ids.numpy())),
        (0, ids.tolist(), "Give torch.as_tensor(ids)", torch.as_tensor(ids.tolist())),
        (1, good()[1].to_sparse(), "Give x.to_dense()", good()[1].to_sparse().to_dense()),
    ]:
        assert remedy(put(place, wrong)) == message
        assert checks().fit(put(place, mended))
    one = good(1)
    assert remedy((one[0][0], *one[1:])) == "Give ids[None]: its first axis is batch"
    assert checks().fit((one[0][0][None], *one[1:]))


@pytest.mark.parametrize("positional", [0, 1, 2, 3])
def test_inputs_may_be_given_by_name(positional: int) -> None:
    names = ("flag", "x", "ids")
    by_name = dict(zip(("ids", "x", "flag"), good(), strict=True))
    named = {name: by_name[name] for name in names if name in ("ids", "x", "flag")[positional:]}
    ordered = checks().order_inputs(good()[:positional], named)
    assert checks().fit(ordered)
    assert all(torch.equal(a, b) for a, b in zip(ordered, good(), strict=True))


@pytest.mark.parametrize(
    ("count", "named", "message"),
    [
        (0, ("id", "x", "flag"), "no input id: expected ids, x, flag, got id, .* Did you mean ids"),
        (2, ("flagged",), "no input flagged: .* got 2 without a name, flagged. Did you mean flag"),
        (0, ("ids", "flag"), "the call lacks x: expected ids, x, flag, got ids, flag. Give x too"),
        (2, ("ids", "flag"), "the input ids is given twice: .* got 2 without a name, which are"),
        (4, ("ids",), "another number of inputs: expected 3: ids, x, flag, got 5"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused_with_those_that_are_expected(
    count: int, named: tuple[str, ...], message: str
) -> None:
    given = (*good(), good()[0])[:count]
    with pytest.raises(InputsRefused, match=message):
        checks().order_inputs(given, dict.fromkeys(named, good()[0]))


def test_values_are_compared_only_where_that_is_asked_for() -> None:
    assert not checks().fit(put(0, good()[0] + 3))
    assert checks(values=False).fit(put(0, good()[0] + 3))


SIZES = st.integers(0, 9)


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(SIZES, min_size=1, max_size=3), x=st.lists(SIZES, min_size=1, max_size=3))
def test_shapes_are_let_through_exactly_where_the_signature_measures_them(
    ids: list[int], x: list[int]
) -> None:
    inputs = (torch.zeros(ids, dtype=torch.int64), torch.zeros(x), torch.tensor(True))
    for signature in (SIGNATURE, EVEN):
        checked = InputChecks(signature, device="cpu", values=True)
        try:
            signature.measure({"ids": tuple(ids), "x": tuple(x), "flag": ()})
            fits = True
        except ValueError:
            fits = False
        assert checked.fit(inputs) is fits
        if not fits:
            assert isinstance(checked.refusal(inputs), InputsRefused)


def test_a_size_that_is_no_multiple_is_refused_with_the_steps() -> None:
    checked = InputChecks(EVEN, device="cpu", values=True)
    assert checked.fit(good(4, 1))
    assert "expected batch from 2 to 8 in steps of 2, got 3" in str(checked.refusal(good(3, 1)))


@pytest.fixture
def pulled(built_release: BuiltRelease, tmp_path: Path) -> Path:
    """A copy of the release, to spoil."""
    return shutil.copytree(built_release.folder, tmp_path / "pulled")


@pytest.mark.compile
@pytest.mark.parametrize("file", [None, "model.so", "model.pt2"])
def test_a_loaded_model_gives_the_originals_numbers(built_release: BuiltRelease, file: Any) -> None:
    from safetensors.torch import load_file

    model = load(built_release.folder, keys=built_release.key, file=file)
    assert model.target == built_release.slug
    assert [spec.name for spec in model.signature.inputs] == ["ids", "features"]
    examples = load_file(built_release.folder / "examples.safetensors")
    outputs = model(examples["0/inputs/ids"], examples["0/inputs/features"])
    assert isinstance(outputs, tuple)
    torch.testing.assert_close(outputs[0], examples["0/outputs/0"], rtol=1e-5, atol=1e-6)


def restructure(folder: Path, structure: Structure) -> None:
    """Let the release say that the original's result has this structure."""
    manifest = replace(read_manifest(folder), structure=structure)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    sign_release(folder, manifest)


@pytest.mark.compile
def test_a_result_has_the_originals_structure_and_inputs_may_be_named(pulled: Path) -> None:
    key = pulled.parent / "key.pub"
    key.write_bytes(sample_key().pem)
    ids, features = torch.randint(ITEMS, (3, 20)), torch.randn(3, 64)
    (plain,) = load(pulled, keys=key)(ids, features)
    restructure(pulled, Structure((), ("['scores']",), result="{'scores': tensor, 'loss': None}"))
    model = load(pulled, keys=key)
    answer = model(features=features, ids=ids)
    assert list(answer) == ["scores", "loss"]
    assert answer["loss"] is None
    assert torch.equal(answer["scores"], plain)
    assert torch.equal(model.tensors(ids, features=features)[0], plain)
    with pytest.raises(InputsRefused, match=r"no input feature: .* Did you mean features\?"):
        model(ids=ids, feature=features)


@pytest.mark.compile
def test_a_structure_of_other_outputs_than_the_package_gives_is_left_out(pulled: Path) -> None:
    key = pulled.parent / "key.pub"
    key.write_bytes(sample_key().pem)
    restructure(pulled, Structure(result="[tensor, tensor]"))
    (scores,) = load(pulled, keys=key)(torch.randint(ITEMS, (3, 20)), torch.randn(3, 64))
    assert scores.shape == (3, 3)


@pytest.mark.compile
def test_a_package_refuses_another_layout_with_a_sentence_or_copies_it(
    built_release: BuiltRelease,
) -> None:
    ids, features = torch.randint(ITEMS, (8, 20)), torch.randn(64, 8).T
    strict = load(built_release.folder, keys=built_release.key)
    with pytest.raises(InputsRefused, match=r"features is not what .* got strides \(1, 8\)"):
        strict(ids, features)
    easy = load(built_release.folder, keys=built_release.key, layouts="copy")
    (copied,), (plain,) = easy(ids, features), strict(ids, features.contiguous())
    assert torch.equal(copied, plain)
    with pytest.raises(InputsRefused, match=f"values from 0 to {ITEMS - 1}"):
        easy(ids + ITEMS, features)


@pytest.mark.compile
def test_a_refused_call_harms_nothing(built_release: BuiltRelease) -> None:
    model = load(built_release.folder, keys=built_release.key)
    inputs = (torch.randint(ITEMS, (3, 20)), torch.randn(3, 64))
    (before,) = model(*inputs)
    for wrong in (inputs[0] + ITEMS, inputs[0] - ITEMS, inputs[0][:0]):
        with pytest.raises(InputsRefused, match="ids is not what the model takes"):
            model(wrong, inputs[1])
    assert torch.equal(model(*inputs)[0], before)


@pytest.mark.compile
def test_threads_call_at_the_same_time(built_release: BuiltRelease) -> None:
    model = load(built_release.folder, keys=built_release.key, runners=4)
    calls = [(torch.randint(ITEMS, (n, 20)), torch.randn(n, 64)) for n in (1, 5, 33, 128)]
    expected = [model(*inputs)[0] for inputs in calls]
    with ThreadPoolExecutor(4) as pool:
        for place, got in enumerate(pool.map(lambda i: model(*calls[i % 4])[0], range(200))):
            assert torch.equal(got, expected[place % 4])


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def change(folder: Path, **fit: Any) -> None:
    manifest = read_manifest(folder)
    (record,) = manifest.targets
    assert record.fit is not None
    other = replace(manifest, targets=(replace(record, fit=replace(record.fit, **fit)),))
    (folder / MANIFEST_FILE).write_bytes(other.to_bytes())
    sign_release(folder, other)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda f, s: spoil(f / s / "model.so"), r"expected the digest \w+, got"),
        (lambda f, s: (f / s / "model.so").unlink(), "got nothing"),
        (lambda f, s: shutil.rmtree(f / s), "holds no package"),
        (lambda f, s: (f / MANIFEST_FILE).unlink(), "is not a pulled release"),
        (lambda f, s: change(f, torch="2.0.1"), "needs torch 2.0.1"),
        (lambda f, s: change(f, cpu_flags=("quantum",)), "needs a processor with quantum"),
        (lambda f, s: change(f, gpu_capability=120), "an NVIDIA GPU of compute capability 12.0"),
    ],
)
def test_what_is_not_as_released_or_does_not_fit_is_not_opened(
    pulled: Path, built_release: BuiltRelease, monkeypatch: pytest.MonkeyPatch,
    spoiled: Callable[[Path, str], object], message: str,
) -> None:  # fmt: skip
    spoiled(pulled, built_release.slug)
    monkeypatch.setattr(
        "handoff.artifacts.serve.loader._open", lambda *_: pytest.fail("it was opened")
    )
    with pytest.raises(PackageRefused, match=message):
        load(pulled, keys=built_release.key)


@pytest.mark.compile
def test_the_other_file_may_be_spoilt_that_is_not_opened(
    pulled: Path, built_release: BuiltRelease
) -> None:
    spoil(pulled / built_release.slug / "model.pt2")
    assert load(pulled, keys=built_release.key).target == built_release.slug
    with pytest.raises(PackageRefused, match="not the file that was released"):
        load(pulled, keys=built_release.key, file="model.pt2")


def test_a_target_that_was_not_accepted_is_not_opened(tmp_path: Path) -> None:
    manifest = write_release(tmp_path)
    refused = replace(manifest, targets=(replace(manifest.targets[0], accepted=False),))
    (tmp_path / MANIFEST_FILE).write_bytes(refused.to_bytes())
    sign_release(tmp_path, refused)
    with pytest.raises(PackageRefused, match="for at least one accepted target, got none"):
        load(tmp_path, keys=sample_key().trust)


def test_of_several_that_fit_the_one_that_asks_most_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitting(slug: str, flags: tuple[str, ...]) -> Any:
        record = sample_target(slug, flags=flags)
        assert record.fit is not None
        return replace(record, fit=replace(record.fit, torch=torch.__version__))

    targets = (fitting("cpu-avx2", ("fpu",)), fitting("cpu-avx512", ("fpu", "sse2")))
    write_release(tmp_path, *targets, fitting("cpu-amx", ("fpu", "sse2", "quantum")))
    opened: list[Path] = []

    def note(sealed: str, path: Path, device: str, runners: int) -> Any:
        assert Path(sealed).read_bytes() == path.read_bytes()
        opened.append(path)
        return list

    monkeypatch.setattr("handoff.artifacts.serve.loader._open", note)
    assert load(tmp_path, keys=sample_key().trust).target == "cpu-avx512"
    assert (
        load(tmp_path, keys=sample_key().trust, target="cpu-avx2", file="model.pt2").target
        == "cpu-avx2"
    )
    assert opened == [tmp_path / "cpu-avx512" / "model.so", tmp_path / "cpu-avx2" / "model.pt2"]
    with pytest.raises(PackageRefused, match="needs a processor with quantum"):
        load(tmp_path, keys=sample_key().trust, target="cpu-amx")
    with pytest.raises(UsageProblem, match="holds no package for cuda-sm90"):
        load(tmp_path, keys=sample_key().trust, target="cuda-sm90")


def test_a_file_that_is_no_library_is_refused_and_not_a_trace(tmp_path: Path) -> None:
    manifest = write_release(tmp_path)
    (record,) = manifest.targets
    assert record.fit is not None
    fit = replace(record.fit, torch=torch.__version__)
    fitting = replace(read_manifest(tmp_path), targets=(replace(record, fit=fit),))
    (tmp_path / MANIFEST_FILE).write_bytes(fitting.to_bytes())
    sign_release(tmp_path, fitting)
    with pytest.raises(HandoffError, match=r"model\.so can't be opened"):
        load(tmp_path, keys=sample_key().trust)
