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
from handoff.tasks.deliver.capture.causes import (
    UNKNOWN,
    classify_failure,
    exception_chain,
    find_known_cause,
)
from handoff.tasks.deliver.capture.lines import (
    Line,
    current_user_line,
    find_calling_line,
    is_outside_torch_and_capture,
    is_user_code,
    one_line,
    parse_trace_lines,
    quote_line,
)

# Torch writes the forward's lines below one of these, the innermost one last.
_USER_CODE_HEADER = re.compile(
    r"^(?:from user code:|The following call raised this error:|Original traceback:)$", re.MULTILINE
)
_FAILING_NODE = re.compile(r"^While executing %(\w+) :", re.MULTILINE)


class _SizeGuardHandler(logging.Handler):
    """Notes the line at which a forward decides something by a size, when torch logs that."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.first: Line | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.first is None and record.getMessage().startswith("eval Eq("):
            self.first = current_user_line()


def note_size_decision(error: Exception, export: Callable[[], object]) -> None:
    """Note on `error` where a size was fixed, if it is about that: torch doesn't say.

    `export` fails again meanwhile; it has to run the forward, and not to read its bytecode.
    """
    if "Constraints violated" not in str(error):
        return
    logger, handler = (
        logging.getLogger("torch.fx.experimental.symbolic_shapes"),
        _SizeGuardHandler(),
    )
    state = logger.level, logger.propagate, logger.handlers
    logger.setLevel(logging.INFO)
    logger.propagate, logger.handlers = False, [handler]
    try:
        with contextlib.suppress(Exception):  # what it raises is reported already
            export()
    finally:
        logger.setLevel(state[0])
        _, logger.propagate, logger.handlers = state
    if handler.first:
        error.add_note('File "{}", line {}'.format(*handler.first))


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
    chain = list(exception_chain(error))
    texts = [str(one) for one in chain]
    what, got, remedy = classify_failure(chain)
    node = next((found[1] for text in texts if (found := _FAILING_NODE.search(text))), "")
    return Obstacle(what, got, remedy, _innermost_line(chain, texts, files), node)


def _innermost_line(
    chain: list[BaseException], texts: list[str], files: Collection[str]
) -> Line | None:
    """Return the innermost line that torch names, else the one at which the error was raised."""
    quoted = [line for text in texts for line in _parse_user_code_lines(text)]
    notes = [note for error in chain for note in getattr(error, "__notes__", ())]
    quoted += [line for note in notes for line in parse_trace_lines(note)]
    raised = [
        (frame.filename, frame.lineno)
        for error in chain
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None and is_user_code(frame.filename)
    ]
    for lines in (quoted, raised):
        preferred = [line for line in lines if line[0] in files]
        if preferred or lines:
            return (preferred or lines)[-1]
    return None


def _parse_user_code_lines(text: str) -> list[Line]:
    parts = _USER_CODE_HEADER.split(text)
    return [line for part in parts[1:] for line in parse_trace_lines(part.partition("\n\n")[0])]


# It is tried first since its graphs are the ones that people read, and it captures least.
FIRST_METHOD = "torch.fx"


@dataclass(frozen=True)
class Failure:
    """Why a method didn't lead to a delivery, and whether it led to a graph at least."""

    method: str
    error: Exception
    captured: bool


def describe_fallback(method: str, failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return a note on why the first method wasn't taken, if it wasn't."""
    if not failures:
        return ()
    return (f"captured by {method}, since torch.fx failed: {_summarize_error(failures[0].error)}",)


def describe_static_shapes(
    contract: DeliveryContract, inputs: Sequence[torch.Tensor], failures: Sequence[Failure]
) -> str:
    """Return the note on a delivery that holds for the example's sizes alone.

    `inputs` are the example's, of the contract's shapes; nothing is asked of their dtypes.
    """
    example_sizes = contract.signature.measure_inputs(inputs)
    sizes = ", ".join(f"{name} = {size}" for name, size in example_sizes.items())
    return (
        f"takes {sizes} only, as in the example: no capture works for other sizes: "
        f"{_summarize_error(failures[-1].error)}. If forward takes some other sizes, say which: "
        "dimensions={NAME: (LOW, HIGH)}"
    )


def _summarize_error(error: Exception) -> str:
    if not isinstance(error, HandoffError):
        # Where its message leads to a page, the line that names it ends there.
        return one_line(error).removesuffix("See:").rstrip(" .")
    place = f"{error.where}: " if error.where else ""
    return f"{place}{error.what}: {error.got}"


def choose_refusal(
    module: nn.Module, failures: Sequence[Failure], run: Callable[[], object]
) -> HandoffError:
    """Return the refusal to raise: of a wrong graph, else of an unreadable folder, else of all.

    `run` calls the model on its example, where a cause has to be looked for in what it does.
    """
    obstacle = _find_obstacle(module, failures)
    cause = find_known_cause([str(failure.error) for failure in failures])
    if cause and not obstacle.what:
        where, text = _format_location(
            module, cause.functions and find_calling_line(cause.functions, run)
        )
        scripts = "" if cause.functions else ", ".join(_find_scripted_parts(module))
        part = f" ({scripts})" if scripts else ""
        return NotCapturable(
            f"{type(module).__name__} can't be captured as a graph",
            expected="a forward of torch's operators on tensors",
            got=text + cause.what + part,
            remedy=cause.remedy,
            where=where,
        )
    errors = [failure.error for failure in failures if failure.captured]
    for kind in (DeliveryUnsound, DeliveryUnreadable):
        for error in errors:
            if isinstance(error, kind):
                return error
    where, text = _format_location(module, obstacle.line)
    return NotCapturable(
        f"{type(module).__name__} can't be captured as a graph"
        + (f", because {obstacle.what}" if obstacle.what else ""),
        expected="a model that torch.export can capture",
        got=text + obstacle.got,
        remedy=obstacle.remedy or UNKNOWN,
        where=where,
    )


def _find_scripted_parts(module: nn.Module) -> list[str]:
    """Return the paths of a model's parts that are TorchScript, without what lies in them."""
    found: list[str] = []
    for name, part in module.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and isinstance(part, torch.jit.ScriptModule) and not is_inside:
            found.append(name)
    return found


def _find_obstacle(module: nn.Module, failures: Sequence[Failure]) -> Obstacle:
    """Return what explains best why the model wasn't captured: one that is known, with a line."""
    # What torch.fx stops at is no obstacle: torch.export has to go on, and goes further.
    exports = [failure for failure in failures if failure.method != FIRST_METHOD] or list(failures)
    files = {_source_file(part) for part in module.modules()} - {""}
    files = {file for file in files if is_outside_torch_and_capture(file)}
    # The method's own sentence adds nothing here to what torch said.
    obstacles = [
        obstacle_of(failure.error.__cause__ or failure.error, files) for failure in exports
    ]
    return max(obstacles, key=lambda found: (bool(found.what), found.line is not None))


def _format_location(module: nn.Module, line: Line | None) -> tuple[str, str]:
    """Return a line as `file.py:12` with what is written on it, else the class's file."""
    if line is None:
        return Path(_source_file(module)).name, ""
    return f"{Path(line[0]).name}:{line[1]}", quote_line(line)


def _source_file(module: nn.Module) -> str:
    try:
        return inspect.getsourcefile(type(module)) or ""
    except (TypeError, OSError):
        return ""
