"""What keeps a model from being captured, as the one sentence that helps most."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.errors import (
    DeliveryUnreadable,
    DeliveryUnsound,
    HandoffError,
    NotCapturable,
)
from handoff.tasks.deliver.capture.kinds import UNKNOWN, causes, kind_of, whole_of
from handoff.tasks.deliver.capture.lines import (
    Line,
    is_outside,
    is_theirs,
    line_outside,
    line_that_calls,
    lines_of_trace,
    one_line,
    text_of,
)

# Torch writes the forward's lines below one of these, the innermost one last.
_NAMED = re.compile(
    r"^(?:from user code:|The following call raised this error:|Original traceback:)$", re.MULTILINE
)
_NODE = re.compile(r"^While executing %(\w+) :", re.MULTILINE)


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
    chain = list(causes(error))
    texts = [str(one) for one in chain]
    what, got, remedy = kind_of(chain)
    node = next((found[1] for text in texts if (found := _NODE.search(text))), "")
    return Obstacle(what, got, remedy, _line(chain, texts, files), node)


def _line(chain: list[BaseException], texts: list[str], files: Collection[str]) -> Line | None:
    """Return the innermost line that torch names, else the one at which the error was raised."""
    named = [line for text in texts for line in _named_lines(text)]
    notes = [note for one in chain for note in getattr(one, "__notes__", ())]
    named += [line for note in notes for line in lines_of_trace(note)]
    raised = [
        (frame.filename, frame.lineno)
        for one in chain
        for frame in traceback.extract_tb(one.__traceback__)
        if frame.lineno is not None and is_theirs(frame.filename)
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
FIRST_METHOD = "torch.fx"


@dataclass(frozen=True)
class Failure:
    """Why a method didn't lead to a delivery, and whether it led to a graph at least."""

    method: str
    error: Exception
    captured: bool


def describe_detour(method: str, failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return a note on why the first method wasn't taken, if it wasn't."""
    if not failures:
        return ()
    return (f"captured by {method}, since torch.fx failed: {_told(failures[0].error)}",)


def describe_fixing(
    contract: DeliveryContract, inputs: Sequence[torch.Tensor], failures: Sequence[Failure]
) -> str:
    """Return the note on a delivery that holds for the example's sizes alone.

    `inputs` are the example's, of the contract's shapes; nothing is asked of their dtypes.
    """
    taken = contract.signature.measure_inputs(inputs)
    sizes = ", ".join(f"{name} = {size}" for name, size in taken.items())
    return (
        f"takes {sizes} only, as in the example: no capture works for other sizes: "
        f"{_told(failures[-1].error)}. If forward takes some other sizes, say which: "
        "dimensions={NAME: (LOW, HIGH)}"
    )


def _told(error: Exception) -> str:
    if not isinstance(error, HandoffError):
        # Where its message leads to a page, the line that names it ends there.
        return one_line(error).removesuffix("See:").rstrip(" .")
    place = f"{error.where}: " if error.where else ""
    return f"{place}{error.what}: {error.got}"


def gravest(
    module: nn.Module, failures: Sequence[Failure], run: Callable[[], object]
) -> HandoffError:
    """Return the refusal to raise: of a wrong graph, else of an unreadable folder, else of all.

    `run` calls the model on its example, where a cause has to be looked for in what it does.
    """
    told = _obstacle(module, failures)
    whole = whole_of([str(failure.error) for failure in failures])
    if whole and not told.what:
        where, text = _shown(module, whole.called and line_that_calls(whole.called, run))
        scripts = "" if whole.called else ", ".join(_scripts(module))
        part = f" ({scripts})" if scripts else ""
        return NotCapturable(
            f"{type(module).__name__} can't be captured as a graph",
            expected="a forward of torch's operators on tensors",
            got=text + whole.what + part,
            remedy=whole.remedy,
            where=where,
        )
    found = [failure.error for failure in failures if failure.captured]
    for kind in (DeliveryUnsound, DeliveryUnreadable):
        for error in found:
            if isinstance(error, kind):
                return error
    where, text = _shown(module, told.line)
    return NotCapturable(
        f"{type(module).__name__} can't be captured as a graph"
        + (f", because {told.what}" if told.what else ""),
        expected="a model that torch.export can capture",
        got=text + told.got,
        remedy=told.remedy or UNKNOWN,
        where=where,
    )


def _scripts(module: nn.Module) -> list[str]:
    """Return the paths of a model's parts that are TorchScript, without what lies in them."""
    found: list[str] = []
    for name, part in module.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and isinstance(part, torch.jit.ScriptModule) and not is_inside:
            found.append(name)
    return found


def _obstacle(module: nn.Module, failures: Sequence[Failure]) -> Obstacle:
    """Return what tells most of why the model wasn't captured: one that is known, with a line."""
    # What torch.fx stops at is no obstacle: torch.export has to go on, and goes further.
    exports = [failure for failure in failures if failure.method != FIRST_METHOD] or list(failures)
    files = {_source_file(part) for part in module.modules()} - {""}
    files = {file for file in files if is_outside(file)}
    # The method's own sentence adds nothing here to what torch said.
    obstacles = [obstacle_of(one.error.__cause__ or one.error, files) for one in exports]
    return max(obstacles, key=lambda one: (bool(one.what), one.line is not None))


def _shown(module: nn.Module, line: Line | None) -> tuple[str, str]:
    """Return a line as `file.py:12` with what is written on it, else the class's file."""
    if line is None:
        return Path(_source_file(module)).name, ""
    return f"{Path(line[0]).name}:{line[1]}", text_of(line)


def _source_file(module: nn.Module) -> str:
    try:
        return inspect.getsourcefile(type(module)) or ""
    except (TypeError, OSError):
        return ""
