"""The training team's factory: `module:function` that returns a model and its example inputs.

Its code is run, on purpose: this is the training side, and the code is theirs.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.errors import did_you_mean
from handoff.infra.engine.budget import is_out_of_memory, out_of_memory_error
from handoff.infra.engine.import_paths import importing_from, user_search_path
from handoff.tasks.deliver.capture.lines import one_line
from handoff.tasks.deliver.naming import missing_function_error, refuse, require_factory

OPTIONS = (
    "name", "keywords", "dynamic", "dimensions", "ranges", "batch_invariant", "lineage",
    "calibration", "evaluation", "metric",
)  # fmt: skip
# Names of functions that say nothing of the model: the module's name is taken instead.
_PLAIN_NAMES = ("build", "build_model", "create", "create_model", "factory", "make", "make_model",
                "get_model", "model", "main")  # fmt: skip
_PLAIN_CLASSES = ("Model", "Module", "Net", "Network")
# Between a small letter and a capital one, and before the last capital of an abbreviation.
_NEW_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class FactoryResult:
    """What a factory returned."""

    module: nn.Module
    inputs: tuple[Any, ...]
    options: dict[str, Any]


def default_name(factory: str, model: nn.Module) -> tuple[str, str]:
    """Return the name that a model goes by if nobody chose one, and what it was named after.

    That is its class (`user-model` for `UserModel`); where the class is torch's own, or says
    nothing, its factory: `user-model` for `train.user_model:build`.
    """
    kind = type(model)
    if kind.__module__.partition(".")[0] != "torch" and kind.__name__ not in _PLAIN_CLASSES:
        words = _NEW_WORD.sub("-", kind.__name__).replace("_", "-")
        return words.lower().strip("-."), f"its class {kind.__name__}"
    module, _, function = factory.partition(":")
    chosen = module.rpartition(".")[2] if function in _PLAIN_NAMES else function
    return chosen.lower().replace("_", "-").strip("-."), f"its factory {factory}"


# What was made to look at it first, for the delivery that follows in the same process.
_prepared: dict[tuple[str, Path], FactoryResult] = {}


def prepare_model(factory: str, search_path: Path) -> FactoryResult:
    """Do as `make_model`, and keep what was made for the next `take_model`."""
    result = _prepared[factory, search_path] = make_model(factory, search_path)
    return result


def take_model(factory: str, search_path: Path) -> FactoryResult:
    """Return what was prepared, once; else what `make_model` returns."""
    return _prepared.pop((factory, search_path), None) or make_model(factory, search_path)


def make_model(factory: str, search_path: Path) -> FactoryResult:
    """Call the factory that `factory` names, whose module is looked for in `search_path` first.

    Raises `UsageProblem` for a wrong name, for what the factory's own code raises (with its place
    in that code), and for what is not a model with its example inputs.
    """
    with importing_from(search_path):
        function = _import_factory(factory, search_path)
        try:
            result = function()
        except (Exception, SystemExit) as error:
            # By hand it would run: what lacks is memory for this step, which is reported as that.
            if is_out_of_memory(error):
                raise out_of_memory_error("deliver", error) from error
            raise refuse(
                f"{factory} failed", expected="a model and its example inputs",
                got=one_line(error), remedy="Call it by hand to see the whole trace",
                where=_raising_place(error, search_path),
            ) from error  # fmt: skip
    return _check_result(factory, result)


def _import_factory(factory: str, search_path: Path) -> Callable[[], Any]:
    module_name, name = require_factory(factory, search_path, user_search_path())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise refuse(
            f"{module_name} can't be imported", expected=f"a module that imports, in {search_path}",
            got=one_line(error),
            remedy=f"Try python -c 'import {module_name}' in that folder",
            where=_raising_place(error, search_path),
        ) from error  # fmt: skip
    function = getattr(module, name, None)
    if not callable(function) or isinstance(function, nn.Module):
        known = [n for n, f in vars(module).items()
                 if inspect.isfunction(f) and f.__module__ == module_name]  # fmt: skip
        got = "none of that name" if function is None else type(function).__name__
        raise missing_function_error(module_name, name, known, got)
    return function  # type: ignore[no-any-return]


def _check_result(factory: str, result: object) -> FactoryResult:
    parts = result if isinstance(result, tuple) else ()
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        raise refuse(
            f"{factory} returned something else", expected="the model and a tuple of its example "
            "inputs, and maybe a dictionary of options", got=_describe_type(result),
            remedy="Return (model, (x, ...)) or (model, (x, ...), {'dimensions': ...})",
        )  # fmt: skip
    inputs = parts[1] if isinstance(parts[1], (tuple, list)) else (parts[1],)
    options = parts[2] if len(parts) == 3 else {}
    wrong = [key for key in options if key not in OPTIONS] if isinstance(options, dict) else [""]
    if wrong:
        raise refuse(
            f"{factory} returned options that can't be used", expected=f"a dictionary of "
            f"{', '.join(OPTIONS)}", got=str(wrong[0]) or type(options).__name__,
            remedy=did_you_mean(str(wrong[0]), OPTIONS, "Fix that name; "
            "python -c 'import handoff; help(handoff.deliver)' says what each means"),
        )  # fmt: skip
    if not isinstance(options.get("lineage", Lineage()), Lineage):
        raise refuse(
            f"{factory} returned a lineage that can't be used",
            expected="a value of handoff.Lineage", got=type(options["lineage"]).__name__,
            remedy="Make one, or leave it out to take it from git",
        )  # fmt: skip
    return FactoryResult(parts[0], tuple(inputs), dict(options))


def _describe_type(result: object) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result) or 'nothing'}"
    return type(result).__name__


def _raising_place(error: BaseException, search_path: Path) -> str:
    """Return the innermost line of the error's trace that lies in the search path."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if search_path in path.parents and path != Path(__file__):
            return f"{path.relative_to(search_path)}:{frame.lineno}"
    return ""
