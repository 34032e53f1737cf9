"""What keeps a model from being captured, as the one sentence that helps most."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import logging
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.errors import DeliveryUnreadable, DeliveryUnsound, HandoffError, first_line
from handoff.tasks.deliver.capture.lines import Line, is_outside, line_outside, lines_of_trace
from handoff.tasks.deliver.golden import one_line

# Torch writes the forward's lines below one of these, the innermost one last.
_NAMED = re.compile(
    r"^(?:from user code:|The following call raised this error:|Original traceback:)$", re.MULTILINE
)
_NODE = re.compile(r"^While executing %(\w+) :", re.MULTILINE)
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


class _SizeDecisions(logging.Handler):
    """Notes the line at which a forward decides something by a size, when torch logs that."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.first: Line | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.first is None and record.getMessage().startswith("eval Eq("):
            self.first = line_outside()


def note_size_decision(error: Exception, export: Callable[[], object]) -> None:
    """Note on `error` where a size was fixed, if it is about that: torch doesn't say.

    `export` fails again meanwhile; it has to run the forward, and not to read its bytecode.
    """
    if "Constraints violated" not in str(error):
        return
    logger, noting = logging.getLogger("torch.fx.experimental.symbolic_shapes"), _SizeDecisions()
    before = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.INFO)
    logger.propagate, logger.handlers = False, [noting]
    try:
        with contextlib.suppress(Exception):  # what it raises is told already
            export()
    finally:
        logger.setLevel(before[0])
        _, logger.propagate, logger.handlers = before
    if noting.first:
        error.add_note('File "{}", line {}'.format(*noting.first))


@dataclass(frozen=True)
class Obstacle:
    """What torch.export can't do, what it said, and what helps; '' where that isn't known.

    `line` is the one of the forward's that torch names, and `node` the one of the graph, where a
    graph was exported.
    """

    what: str
    got: str
    remedy: str
    line: Line | None
    node: str


def obstacle_of(error: BaseException, files: Collection[str] = ()) -> Obstacle:
    """Return what `error`, which torch.export raised, is about.

    Of the lines that torch names it is the innermost in one of `files`, else the innermost.
    """
    chain = list(_causes(error))
    texts = [str(one) for one in chain]
    what, got, remedy = _kind(chain, texts)
    node = next((found[1] for text in texts if (found := _NODE.search(text))), "")
    return Obstacle(what, got, remedy, _line(chain, texts, files), node)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _kind(chain: list[BaseException], texts: list[str]) -> tuple[str, str, str]:
    for one in chain:
        if isinstance(one, UnsupportedOperatorException):
            operator = str(one.func)
            remedy = _FAKE_QUANTIZE if "fake_quantize" in operator else _NO_FAKE_KERNEL
            return "torch.export can't capture one of its operators", operator, remedy
    if any(isinstance(one, GuardOnDataDependentSymNode) for one in chain) or any(
        text.startswith("Data-dependent") for text in texts
    ):
        said = f"{type(chain[0]).__name__}: {first_line(chain[0]).partition('. ')[0]}"
        return "torch.export can't follow what a tensor's value decides", said, BY_VALUE
    return "", f"{type(chain[0]).__name__}: {first_line(chain[0])}", ""


def _line(chain: list[BaseException], texts: list[str], files: Collection[str]) -> Line | None:
    """Return the innermost line that torch names, else the one at which the error was raised."""
    named = [line for text in texts for line in _named_lines(text)]
    notes = [note for one in chain for note in getattr(one, "__notes__", ())]
    named += [line for note in notes for line in lines_of_trace(note)]
    raised = [
        (frame.filename, frame.lineno)
        for one in chain
        for frame in traceback.extract_tb(one.__traceback__)
        if frame.lineno is not None and is_outside(frame.filename)
    ]
    for lines in (named, raised):
        own = [line for line in lines if line[0] in files]
        if own or lines:
            return (own or lines)[-1]
    return None


def _named_lines(text: str) -> list[Line]:
    parts = _NAMED.split(text)
    return [line for part in parts[1:] for line in lines_of_trace(part.partition("\n\n")[0])]


# It is tried first since its graphs are the ones that people read, and it captures least.
FIRST_ROAD = "torch.fx"


@dataclass(frozen=True)
class Failure:
    """Why a road didn't lead to a delivery, and whether it led to a graph at least."""

    road: str
    error: Exception
    captured: bool


def describe_detour(road: str, failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return a note on why the first road wasn't taken, if it wasn't."""
    if not failures:
        return ()
    return (f"captured by {road}, since torch.fx didn't do: {_told(failures[0].error)}",)


def describe_fixing(
    contract: DeliveryContract, inputs: Sequence[torch.Tensor], failures: Sequence[Failure]
) -> str:
    """Return the note on a delivery that holds for the example's sizes alone.

    `inputs` are the example's, of the contract's shapes; nothing is asked of their dtypes.
    """
    taken = contract.signature.measure(
        {spec.name: tuple(t.shape) for spec, t in zip(contract.inputs, inputs, strict=True)}
    )
    sizes = ", ".join(f"{name} = {size}" for name, size in taken.items())
    return (
        f"takes {sizes} alone, as in the example, since no capture holds for other sizes: "
        f"{_told(failures[-1].error)}"
    )


def _told(error: Exception) -> str:
    if not isinstance(error, HandoffError):
        return one_line(error)
    place = f"{error.where}: " if error.where else ""
    return f"{place}{error.what}: {error.got}"


def gravest(module: nn.Module, failures: Sequence[Failure]) -> HandoffError:
    """Return the refusal to raise: of a wrong graph, else of an unreadable folder, else of all."""
    found = [failure.error for failure in failures if failure.captured]
    for kind in (DeliveryUnsound, DeliveryUnreadable):
        for error in found:
            if isinstance(error, kind):
                return error
    # What torch.fx stops at is no obstacle: torch.export has to go on, and goes further.
    exports = [failure for failure in failures if failure.road != FIRST_ROAD] or list(failures)
    files = {_source_file(part) for part in module.modules()} - {""}
    files = {file for file in files if is_outside(file)}
    # The road's own sentence adds nothing here to what torch said.
    obstacles = [obstacle_of(one.error.__cause__ or one.error, files) for one in exports]
    # One that is known for what it is, and has a line, tells most.
    told = max(obstacles, key=lambda one: (bool(one.what), one.line is not None))
    where, text = _shown(module, told.line)
    got = (f"`{text}`: " if text else "") + told.got
    return DeliveryUnreadable(
        f"{type(module).__name__} can't be captured as a graph"
        + (f", because {told.what}" if told.what else ""),
        expected="a model that torch.export can capture",
        got=got,
        remedy=told.remedy or BY_VALUE,
        where=where,
    )


def _shown(module: nn.Module, line: Line | None) -> tuple[str, str]:
    """Return a line as `file.py:12`, and its text; the file of the model's class without one."""
    if line is None:
        return Path(_source_file(module)).name, ""
    return f"{Path(line[0]).name}:{line[1]}", linecache.getline(*line).strip()


def _source_file(module: nn.Module) -> str:
    try:
        return inspect.getsourcefile(type(module)) or ""
    except (TypeError, OSError):
        return ""
