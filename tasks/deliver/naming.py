"""A factory's name, `module:function`, and a folder: checked before anything is imported or run.

An import of torch takes seconds, and a misspelt name needs none. What the source alone doesn't
show (a module that makes its names when it is imported) is left to the import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from handoff.artifacts.delivery.contract import require_model_name
from handoff.artifacts.errors import UsageProblem, did_you_mean, split_expected_got
from handoff.artifacts.files.writing import is_free
from handoff.infra.engine.import_paths import find_module, reserved_names

# What a module may make names by that its source doesn't show.
_DYNAMIC = ("__getattr__", "__path__", "sys.modules", "globals(", "exec(", "import *", "vars(")
_NAMES_AT_MOST = 12
# What checkpoints are called.
_WEIGHT_SUFFIXES = (".pt", ".pth", ".pkl", ".bin", ".ckpt", ".safetensors", ".onnx")


def require_factory(factory: str, search_path: Path, places: Sequence[str]) -> tuple[str, str]:
    """Return the module and the function that `factory` names, where both seem to be there.

    Modules are looked for in `search_path`, then in `places`. Raises `UsageProblem` for another
    form, a module that isn't there or is hidden by a library, and a function that a module lacks.
    """
    if factory.endswith(_WEIGHT_SUFFIXES):
        raise refuse(
            f"{factory} holds weights, and no model", expected="MODULE:FACTORY, a function that "
            "returns the model and its example inputs",
            got="a file's name", remedy="Write a function that makes the model, loads that file "
            "into it (load_state_dict) and returns it with example inputs, such as build in "
            "train.py, and name it: handoff deliver train:build",
        )  # fmt: skip
    module_name, separator, name = factory.partition(":")
    is_file = module_name.endswith(".py") or "/" in module_name
    if is_file or not (separator and module_name and name.isidentifier()):
        raise refuse(
            "that is not the name of a factory", expected="MODULE:FACTORY", got=repr(factory),
            remedy=f"Write {_suggest_factory(factory) or 'it as examples.resnet18:build'}",
        )  # fmt: skip
    _require_reachable(module_name, search_path)
    _require_function(_require_module(module_name, search_path, places), module_name, name)
    return module_name, name


def require_name(name: str) -> None:
    """Raise `UsageProblem` for what can't be a model's name."""
    try:
        require_model_name(name)
    except ValueError as error:
        expected, _ = split_expected_got(str(error))
        raise UsageProblem(
            "that can't be a model's name", expected=expected, got=repr(name[:80]),
            remedy="Give another one (--name)",
        ) from error  # fmt: skip


def require_free(folder: Path) -> None:
    """Raise `UsageProblem` unless `folder` is a new or an empty one."""
    if is_free(folder):
        return
    raise UsageProblem(
        f"{folder} can't be delivered to", expected="a new or an empty folder",
        got="a file" if folder.is_file() else "a folder with something in it",
        remedy="Name another folder; a delivery is never written over another",
    )  # fmt: skip


def missing_function_error(
    module_name: str, name: str, known: Sequence[str], got: str = "none of that name"
) -> UsageProblem:
    """Return the refusal of a function that a module lacks; `known` are those that it has."""
    public = sorted(other for other in known if not other.startswith("_"))
    return refuse(
        f"{module_name} has no function {name}",
        expected=f"one of {', '.join(public[:_NAMES_AT_MOST])}" if public else "a function in it",
        got=got, remedy=did_you_mean(name, known, "Name a function that takes no arguments"),
    )  # fmt: skip


def refuse(what: str, *, expected: str, got: str, remedy: str, where: str = "") -> UsageProblem:
    """Return the refusal of a factory."""
    return UsageProblem(what, expected=expected, got=got, remedy=remedy, where=where)


def _suggest_factory(factory: str) -> str:
    """Return MODULE:FACTORY for a file and a function in it, or for two names with a dot."""
    path, separator, name = factory.partition(":")
    if separator and name.isidentifier():
        return f"{path.removesuffix('.py').strip('./').replace('/', '.')}:{name}"
    module, _, function = factory.rpartition(".")
    return f"{module}:{function}" if module and function != "py" and not separator else ""


def _require_reachable(module_name: str, search_path: Path) -> None:
    """Raise `UsageProblem` for a module of the folder that a library's name hides."""
    top = module_name.partition(".")[0]
    if top in reserved_names() and PathFinder.find_spec(top, [str(search_path)]) is not None:
        raise refuse(
            f"{top} in {search_path} is hidden by the library of that name",
            expected="a factory in a module with a name of its own", got=module_name,
            remedy="Move the function that makes the model to a module of another name, such as "
            "deliver_model.py",
        )  # fmt: skip


def _require_module(
    module_name: str, search_path: Path, places: Sequence[str]
) -> ModuleSpec | None:
    """Return where the module is; None where only an import shows it. None of it is run."""
    top, *inner = module_name.split(".")
    spec = find_module(top, [str(search_path), *places])
    if spec is None:
        raise _missing_module_error(module_name, top, [str(search_path)], str(search_path))
    for depth, part in enumerate(inner, start=1):
        if spec.submodule_search_locations is None or _read_source(spec) is None:
            return None
        folders = list(spec.submodule_search_locations)
        package = ".".join([top, *inner[: depth - 1]])
        spec = PathFinder.find_spec(f"{package}.{part}", folders)
        if spec is None:
            raise _missing_module_error(
                module_name, part, folders, f"the package {package}", f"{package}."
            )
    return spec


def _missing_module_error(
    module_name: str, part: str, folders: Sequence[str], where: str, before: str = ""
) -> UsageProblem:
    known = {f"{before}{path.stem}" for folder in folders for path in _modules_in(Path(folder))}
    return refuse(
        f"there is no module {module_name}", expected=f"a module that imports, in {where}",
        got=f"none named {part}",
        remedy=did_you_mean(f"{before}{part}", sorted(known), "Name one that is there, or run this "
        "in the folder that it is in"),
    )  # fmt: skip


def _modules_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix == ".py" or (path / "__init__.py").is_file():
                yield path


def _require_function(spec: ModuleSpec | None, module_name: str, name: str) -> None:
    """Raise `UsageProblem` for a function that no line of the module's source can make."""
    source = None if spec is None else _read_source(spec)
    if source is None:
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # which the import reports, with its place
    if not any(name == other for other in _bound_names(tree)):
        known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        raise missing_function_error(module_name, name, known)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield all that the source gives a name, at any depth: what isn't among it can't be there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _read_source(spec: ModuleSpec) -> str | None:
    """Return the source of a module that shows all its names; None for any other module."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        source = Path(spec.origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if any(word in source for word in _DYNAMIC) else source
