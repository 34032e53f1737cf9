"""What the graph should give: the golden outputs of the original model."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from handoff.artifacts.delivery.golden import golden_difference
from handoff.artifacts.release.evidence import Finding
from handoff.tasks.inspect.behaviour import Tensors, call, example_fails
from handoff.tasks.intake.loading import LoadedDelivery


def compare_goldens(delivery: LoadedDelivery) -> Iterator[Finding]:
    """Compare what the graph gives with the golden outputs, if there are any."""
    golden = [case for case in delivery.cases if case.outputs is not None]
    if not golden:
        yield Finding(
            "no-golden-outputs",
            "limit",
            "the delivery holds no outputs of the original model to compare with",
            "Deliver with 'handoff deliver', which stores them",
        )
    for index, case in enumerate(golden):
        assert case.outputs is not None
        try:
            got = call(delivery.module, case.inputs)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; each is the finding
            yield example_fails(error)
            return
        if told := _mismatch(got, case.outputs):
            yield _golden_mismatch(delivery, case.inputs, case.outputs, index, told)
            return


def _mismatch(got: Tensors, want: Tensors) -> str:
    if len(got) != len(want):
        return f"{len(got)} outputs"
    found = (golden_difference(have, wanted) for have, wanted in zip(got, want, strict=True))
    return next(filter(None, found), "")


def _golden_mismatch(
    delivery: LoadedDelivery, inputs: Tensors, want: Tensors, index: int, told: str
) -> Finding:
    message = (
        f"the delivered graph doesn't give the original model's outputs on example {index}: {told}"
    )
    if _explained_by_training(delivery, inputs, want):
        return Finding(
            "golden-in-training-mode",
            "unsound",
            f"{message}. In training mode it does: the golden outputs were made in that mode",
            "Call model.eval() before tracing and before the golden outputs are computed",
        )
    return Finding(
        "golden-mismatch",
        "unsound",
        message,
        "The graph, or its weights, are not those of the model: trace it again and deliver it anew",
    )


def _explained_by_training(delivery: LoadedDelivery, inputs: Tensors, want: Tensors) -> bool:
    """Tell whether batch norms in training mode give the golden outputs; leave all as it was."""
    module = delivery.module
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    try:
        for norm in norms:
            norm.train()
        return bool(norms) and not _mismatch(call(module, inputs), want)
    except Exception:  # noqa: BLE001 - a batch of one can't be normed in training mode
        return False
    finally:
        for norm in norms:
            norm.eval()
        module.load_state_dict(state)
