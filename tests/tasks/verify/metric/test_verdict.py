"""What an agreed metric decides, and what it doesn't: on digits, as scikit-learn ships them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.metric import Metric, MetricRule
from handoff.artifacts.errors import BlessingRefused, DeliveryUnreadable, UsageProblem
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.step import run as optimize
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.loading import Tensors
from handoff.tasks.verify.messages import ReferenceJob, VerifyJob, VerifyResult
from handoff.tasks.verify.reference import run as run_reference
from tests.processors import needs_int8
from tests.tasks.verify.compiled_stand_in import compile_program, install_package

INT8 = PassChoice("quantize-int8", {"activations": "static", "keep": "0"})
BFLOAT16 = PassChoice("lower-precision", {"dtype": "bfloat16", "operators": "linear"})
AGREED = MetricRule(0.01)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        inner = torch.relu(self.first(x))
        return {"logits": self.last(inner), "mean": x.mean(1, keepdim=True)}


class ProbedDigits(Digits):
    """Gives what is inside, too."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x)["logits"], "inner": torch.relu(self.first(x))}


@cache
def trained(*, probed: bool) -> tuple[Digits, Tensor, Tensor, Tensor]:
    """Return a network, what it was trained on, and further images with their labels."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    data = load_digits()
    images, labels = torch.tensor(data.data).float() / 16, torch.tensor(data.target)
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    net = ProbedDigits() if probed else Digits()
    steps = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(25):
        for x, y in zip(images[:900].split(50), labels[:900].split(50), strict=True):
            loss = nn.functional.cross_entropy(net(x)["logits"], y)
            steps.zero_grad()
            loss.backward()
            steps.step()
    return net.eval(), images[:900], images[900:], labels[900:]


@dataclass(frozen=True)
class PreparedModel:
    """A delivery on its way to verification."""

    folder: Path
    recipe: Recipe
    program: Path
    rounds: bool
    reference: Path
    evaluation: Path | None


def prepare(
    folder: Path,
    recipe: Recipe,
    *,
    samples: int = 800,
    probed: bool = False,
    metric: str | Metric = "top-1",
    scale: float = 1.0,
) -> PreparedModel:
    """Deliver the network with so many samples, optimize it, and run the reference."""
    net, calibration, images, labels = trained(probed=probed)
    evaluation: dict[str, Any] = {
        "evaluation": [
            ((x,), y)
            for x, y in zip(images[:samples].split(100), labels[:samples].split(100), strict=True)
        ],
        "metric": metric,
    }
    deliver(
        net, (images[:3],), folder / "delivery", name="digits", ranges={"x": (0.0, 1.0)},
        calibration=[(calibration[:100] * scale,)], **(evaluation if samples else {}),
    )  # fmt: skip
    take_in(IntakeJob(folder / "delivery", folder / "staging"))
    optimized = optimize(OptimizeJob(folder / "staging", folder / "program", recipe))
    job = ReferenceJob(folder / "staging", None, VerifyPlan(seeds=1), folder / "reference.pt")
    run = run_reference(job)
    return PreparedModel(
        folder, recipe, optimized.program, optimized.rounds, run.file, run.evaluation
    )


def judge(
    monkeypatch: pytest.MonkeyPatch,
    prepared: PreparedModel,
    spoil: Callable[[Tensors, Tensors], Tensors] = lambda _, outputs: outputs,
) -> VerifyResult:
    """Return the verdict on the compiled program, spoilt by a function of inputs and outputs."""
    package = compile_program(prepared.program)
    install_package(monkeypatch, lambda inputs: spoil(inputs, package(inputs)), prepared.folder)
    job = VerifyJob(
        prepared.folder, prepared.reference, prepared.recipe, outputs=("logits", "mean"),
        staging=prepared.folder / "staging", evaluation=prepared.evaluation,
        rounded=prepared.program if prepared.recipe.metric and prepared.rounds else None,
    )  # fmt: skip
    return verify.run(job)


def agreed(*passes: PassChoice, rule: MetricRule | None = AGREED) -> Recipe:
    return Recipe(passes=passes, verify=VerifyPlan(propagation="note"), metric=rule)


@pytest.mark.parametrize("chosen", [pytest.param(INT8, marks=needs_int8), BFLOAT16])
def test_what_rounds_is_accepted_by_the_metric_where_a_tolerance_refuses_it(
    chosen: PassChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = judge(monkeypatch, prepare(tmp_path / "agreed", agreed(chosen)))
    assert verdict.reasons == ()
    measured = verdict.metric
    assert measured is not None
    assert measured.decides
    assert (measured.output, measured.samples, measured.standing) == ("logits", 800, "kept")
    # Figures are to the delivered model all the same.
    moved = max(d.max_abs for d in verdict.deviations if d.output == 0 and not d.special)
    assert moved > 1e-3
    assert any("judged by top-1 instead of a tolerance" in note for note in verdict.notes)
    with pytest.raises(BlessingRefused, match=f"the pass {chosen.name}"):
        prepare(tmp_path / "not agreed", agreed(chosen, rule=None))


def _one_class_less(_: Tensors, outputs: Tensors) -> Tensors:
    logits = outputs[0].clone()
    logits[:, 3] *= 0.5
    return (logits, *outputs[1:])


def _one_row_of_another(_: Tensors, outputs: Tensors) -> Tensors:
    logits = outputs[0].clone()
    logits[-1] = logits[0]
    return (logits, *outputs[1:])


def _one_is_no_number(_: Tensors, outputs: Tensors) -> Tensors:
    logits = outputs[0].clone()
    logits[0, 0] = torch.nan
    return (logits, *outputs[1:])


def _other_output_off(_: Tensors, outputs: Tensors) -> Tensors:
    return (outputs[0], outputs[1] + 1e-3)


def _float64(_: Tensors, outputs: Tensors) -> Tensors:
    return tuple(output.double() for output in outputs)


@pytest.fixture(scope="module", params=[INT8, BFLOAT16], ids=lambda chosen: chosen.name)
def loose(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PreparedModel:
    """What rounds, agreed so loosely that no metric refuses anything."""
    return prepare(tmp_path_factory.mktemp("loose"), agreed(request.param, rule=MetricRule(1.0)))


@pytest.mark.parametrize(
    "spoil",
    [_one_class_less, _one_row_of_another, _one_is_no_number, _other_output_off, _float64],
)
def test_what_a_compiler_gets_wrong_is_refused_although_the_metric_is_kept(
    loose: PreparedModel,
    spoil: Callable[[Tensors, Tensors], Tensors],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdict = judge(monkeypatch, loose, spoil)
    assert not verdict.accepted
    assert not any(reason.startswith("metric:") for reason in verdict.reasons)


def test_what_loses_too_much_is_refused_with_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Calibrated on images of a thirtieth of what is served.
    verdict = judge(monkeypatch, prepare(tmp_path, agreed(INT8), scale=1 / 30))
    assert verdict.metric is not None
    assert verdict.metric.standing == "broken"
    (reason,) = [r for r in verdict.reasons if r.startswith("metric:")]
    assert "by eager and" in reason
    assert "more than the recipe allows: 0.0100 is agreed" in reason


def test_too_few_samples_are_a_refusal_with_the_number_that_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_wrong_in_each(inputs: Tensors, outputs: Tensors) -> Tensors:
        if len(inputs[0]) == 100:
            outputs[0][0] = -outputs[0][0]
        return outputs

    verdict = judge(
        monkeypatch, prepare(tmp_path, agreed(BFLOAT16, rule=MetricRule(0.02)), samples=200),
        one_wrong_in_each,
    )  # fmt: skip
    (reason,) = [r for r in verdict.reasons if r.startswith("metric:")]
    assert verdict.metric is not None
    assert verdict.metric.standing == "not known"
    assert f"some {verdict.metric.enough} samples like these" in reason
    assert 200 < verdict.metric.enough <= 2000


def test_samples_too_few_for_any_package_are_refused_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    with pytest.raises(BlessingRefused, match=r"too small to show max_drop = 0\.01") as refused:
        prepare(tmp_path / "first", agreed(BFLOAT16), samples=60)
    assert refused.value.got == "60 samples"
    assert "some 330 samples" in refused.value.expected
    # What doesn't round is judged by its tolerance, however few there are.
    assert not prepare(tmp_path / "exact", agreed(), samples=60).rounds
    assert prepare(tmp_path / "enough", agreed(BFLOAT16), samples=330).rounds


@pytest.mark.parametrize("rule", [AGREED, None])
def test_what_does_not_round_is_the_tolerances_to_judge(
    rule: MetricRule | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(tmp_path, agreed(rule=rule), samples=60)
    right = judge(monkeypatch, prepared)
    assert right.reasons == ()
    assert right.metric is not None
    assert not right.metric.decides
    assert any("top-1 of 60 samples" in note for note in right.notes)
    wrong = judge(monkeypatch, prepared, lambda _, outputs: (outputs[0] * 1.001, *outputs[1:]))
    assert any("outside atol" in reason for reason in wrong.reasons)


def test_what_is_wrong_on_the_samples_alone_is_refused_by_the_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_there(inputs: Tensors, outputs: Tensors) -> Tensors:
        # Half of the pixels of a real image are 0; no draw has so many.
        is_real = bool((inputs[0] == 0).double().mean() > 0.3) and len(inputs[0]) > 50
        return (-outputs[0], *outputs[1:]) if is_real else outputs

    verdict = judge(monkeypatch, prepare(tmp_path, agreed()), wrong_there)
    assert any(reason.startswith("metric:") for reason in verdict.reasons)


def test_a_package_that_fails_on_the_samples_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(inputs: Tensors, outputs: Tensors) -> Tensors:
        if len(inputs[0]) == 100:
            raise RuntimeError("no room")
        return outputs

    verdict = judge(monkeypatch, prepare(tmp_path, agreed()), fails)
    assert "evaluation: the package failed: no room" in verdict.reasons


def test_an_output_that_the_metric_is_not_of_stays_within_its_tolerance(tmp_path: Path) -> None:
    with pytest.raises(BlessingRefused, match=r"the pass quantize-int8 .*output 1 within atol"):
        prepare(tmp_path / "first", agreed(INT8), probed=True)
    prepared = prepare(tmp_path / "agreed", agreed(INT8), metric=Metric("cosine", output="logits"))
    assert prepared.rounds


def test_a_recipe_that_agrees_on_a_metric_needs_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"expected evaluation.safetensors.*got neither"):
        prepare(tmp_path, agreed(INT8), samples=0)


def test_an_output_that_there_is_not_is_told(tmp_path: Path) -> None:
    prepare(tmp_path, agreed(), samples=60)
    contract = tmp_path / "staging" / "delivery.toml"
    contract.chmod(0o644)
    text = contract.read_text(encoding="utf-8")
    contract.write_text(text.replace('output = ""', 'output = "scores"'), encoding="utf-8")
    job = ReferenceJob(tmp_path / "staging", None, VerifyPlan(seeds=1), tmp_path / "again.pt")
    with pytest.raises(DeliveryUnreadable, match="expected one of logits, mean, got scores"):
        run_reference(job)
