"""What the graph should give: the golden outputs of the original model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from handoff.artifacts.release.evidence import Finding
from handoff.tasks.inspect.behaviour import Tensors, call, example_fails, same
from handoff.tasks.intake.loading import LoadedDelivery

# The golden outputs were computed on the training side's machine, whose kernels sum in another
# order; a float32 network of a hundred layers moves by less than this from that alone.
_GOLDEN_RTOL = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 5e-2, torch.bfloat16: 1e-1}


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
    for have, wanted in zip(got, want, strict=True):
        if wanted.shape != have.shape or wanted.dtype != have.dtype:
            return f"{have.dtype} of shape {list(have.shape)}"
        if difference := _difference(have, wanted):
            return difference
    return ""


def _difference(have: torch.Tensor, want: torch.Tensor) -> str:
    """Return how `have` differs from `want` beyond what another machine explains, or nothing."""
    finite = torch.isfinite(want)
    if not same((have[~finite],), (want[~finite],)):
        return "other elements that are NaN or infinite"
    # Infinities stay out of the bound's size: with one in it, any number would do.
    got, given = have[finite].double(), want[finite].double()
    rtol = _GOLDEN_RTOL.get(want.dtype, 0.0)
    atol = rtol * float(given.abs().max()) if given.numel() else 0.0
    if torch.allclose(got, given, rtol=rtol, atol=atol):
        return ""
    return f"a difference of {float((got - given).abs().max()):.3g}"


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
