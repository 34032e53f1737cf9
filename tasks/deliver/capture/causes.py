"""What is known of why a forward can't be captured, and what helps against each."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.utils import rnn

from handoff.artifacts.errors import first_line

_FAKE_QUANTIZE = (
    "It rounds as in training: convert the model to a quantized one, or turn its fake quantization "
    "off, before it is delivered"
)
_NO_FAKE_KERNEL = (
    "Compute it with other operators of torch's, or register what shapes it gives "
    "(torch.library.register_fake)"
)
BY_VALUE = (
    "Take Python control flow on tensor values, len(tensor) and .item() out of the forward "
    "(torch.where and x.shape do the same)"
)
UNKNOWN = (
    "Write that line with torch's operators on tensors, or do it before: in __init__, or before "
    "the model is called"
)
PACKED = (
    "Call the RNN with the padded batch, and take what lies within each length: by a mask "
    "(torch.arange(x.shape[1]) < lengths[:, None]), or the last step by "
    "out[torch.arange(out.shape[0]), lengths.clamp(1, out.shape[1]) - 1]. A second direction reads "
    "the padding first: flip each row within its length for it"
)
_COPIES = "Copy modules in __init__, not in forward; x.clone() copies a tensor"
_PACKING = ("pack_padded_sequence", "pad_packed_sequence", "pack_sequence")


@dataclass(frozen=True)
class KnownCause:
    """What makes all of a model uncapturable, wherever the forward does it, and what helps.

    `pattern` finds it in the texts of all failures together, whichever of them is reported.
    `functions` are those of torch's that do it, as `file:name`, or None where it is a part of the
    model.
    """

    pattern: re.Pattern[str]
    what: str
    remedy: str
    functions: re.Pattern[str] | None


_KNOWN_CAUSES = (
    KnownCause(
        re.compile(r"wrap_with_autocast"),
        "torch.autocast, which is turned on in forward",
        "Take torch.autocast out of forward, and cast there what is to be computed in another "
        "dtype: x.to(torch.bfloat16)",
        re.compile(r"amp/autocast_mode\.py:__enter__"),
    ),
    KnownCause(
        re.compile(r"does not require grad and does not have a grad_fn|`torch\.autograd\.grad`"),
        "gradients, which forward computes",
        "Write the derivative out in forward, or deliver the part that needs none",
        re.compile(r"autograd/__init__\.py:(grad|backward)$"),
    ),
    KnownCause(
        re.compile(r"Tried to serialize object __torch__"),
        "a part that is TorchScript already",
        "Use the nn.Module that it was scripted from",
        None,
    ),
    KnownCause(
        re.compile(r"torch\._functorch|torch\.func\b|\bvmap\b"),
        "torch.vmap or another transformation of torch.func",
        "Call the module with the whole batch, and write the rest with operators on whole tensors",
        re.compile(r"_functorch/.*:"),
    ),
)


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and, one after the other, what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def classify_failure(chain: Sequence[BaseException]) -> tuple[str, str, str]:
    """Return what torch.export can't do, what it said, and what helps; '' where that isn't known.

    `chain` is the error and what it was raised from.
    """
    message = f"{type(chain[0]).__name__}: {first_line(chain[0])}"
    for error in chain:
        if isinstance(error, UnsupportedOperatorException):
            operator = str(error.func)
            remedy = _FAKE_QUANTIZE if "fake_quantize" in operator else _NO_FAKE_KERNEL
            return "torch.export can't capture one of its operators", operator, remedy
    if any(map(is_about_packing, chain)):
        return "torch.export can't follow a packed sequence", message, PACKED
    frames = [frame for error in chain for frame in _frames(error)]
    if any(frame.f_code is copy.deepcopy.__code__ for frame in frames):
        return "torch.export can't follow copy.deepcopy", message, _COPIES
    by_value = [error for error in chain if isinstance(error, GuardOnDataDependentSymNode)]
    if by_value or any(str(error).startswith("Data-dependent") for error in chain):
        # What torch calls the value, such as Eq(u0, 1), is no name of the forward's.
        message = re.sub(r"(?<=data-dependent expression) .*", "", message)
        return "torch.export can't follow what a tensor's value decides", message, BY_VALUE
    return "", message, ""


def is_about_packing(error: BaseException) -> bool:
    """Return whether an error was raised while a sequence was packed, or by what takes one."""
    return any(
        frame.f_code.co_name in _PACKING
        or any(isinstance(value, rnn.PackedSequence) for value in frame.f_locals.values())
        for frame in _frames(error)
    )


def _frames(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def find_known_cause(texts: Sequence[str]) -> KnownCause | None:
    """Return what the texts of several failures show to be the cause, or None for none."""
    return next((cause for cause in _KNOWN_CAUSES if any(map(cause.pattern.search, texts))), None)
