"""What keeps `torch.export` from a model, told as what it is, with the line that torch names."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from handoff.artifacts.errors import first_line
from handoff.tasks.deliver.capture.lines import Line, is_outside, line_outside, lines_of_trace

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
