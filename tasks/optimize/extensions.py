"""Extensions: Python modules of the deploy side that register operators and bring graph passes.

A recipe names them with the digest of their code, because they are run: what isn't the code that
somebody has looked at isn't imported. A module registers operators with `torch.library`, and may
hold `PASSES`, a tuple of classes derived from `tasks.optimize.passes.base.Pass`, and `METRICS`,
functions by their names, of a model's output and the labels of its rows, which give a number from 0
to 1 for each row.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_file, digest_tree
from handoff.artifacts.errors import UsageProblem
from handoff.infra.engine.import_paths import allow_import, find_extension
from handoff.tasks.optimize.operators import allow_namespaces, registered_namespaces
from handoff.tasks.verify.metric.samples import EXTENSION_METRICS


def load_extension(extension: str) -> None:
    """Import the extension `module@sha256:...`, for as long as the process lives.

    Raises `UsageProblem` for a module that can't be imported, has another digest or none in the
    recipe, or brings nothing.
    """
    module, _, expected = extension.partition("@")
    digest = digest_extension(module)
    if digest != expected:
        raise UsageProblem(
            f"the extension {module} is not the code that the recipe names",
            expected=f"the digest {expected}"
            if expected
            else f"{module}@{digest}, if you trust it",
            got=digest if expected else "a name without a digest",
            remedy="Look at what it does, and write its digest under 'extensions' in the recipe",
        )
    before = registered_namespaces()
    try:
        allow_import(module.partition(".")[0])
        imported = importlib.import_module(module)
    except Exception as error:
        raise _not_importable(module, f"{type(error).__name__}: {error}") from error
    added = registered_namespaces() - before
    allow_namespaces(added)
    passes = tuple(getattr(imported, "PASSES", ()))
    if passes:
        _add_passes(module, passes)
    metrics = dict(getattr(imported, "METRICS", {}))
    for name, metric in metrics.items():
        if EXTENSION_METRICS.setdefault(name, metric) is not metric:
            raise UsageProblem(
                f"the extension {module} brings a metric under a name that is taken",
                expected="a name that no other extension of the recipe has", got=str(name)[:60],
                remedy="Give the metric another name",
            )  # fmt: skip
    if not added and not passes and not metrics:
        raise UsageProblem(
            f"the extension {module} brings nothing",
            expected="operators in a namespace of its own, PASSES or METRICS",
            got="none of them",
            remedy="Fix the name under 'extensions' in the recipe",
        )


def digest_extension(module: str) -> Digest:
    """Return the digest of the module's file, or of all files of its top-level package.

    Sources in C++ and data are code as well; what Python has compiled of them isn't counted.
    Nothing is imported. Raises `UsageProblem` where there is no such module.
    """
    top = module.partition(".")[0]
    spec = find_extension(top)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if folders:
        root = Path(folders[0])
        return digest_tree(
            {
                path.relative_to(root).as_posix(): digest_file(path)
                for path in root.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts
            }
        )
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise _not_importable(module, "no Python file of that name")
    return digest_file(Path(spec.origin))


def _add_passes(module: str, passes: tuple[object, ...]) -> None:
    from handoff.tasks.optimize.passes import PASSES
    from handoff.tasks.optimize.passes.base import Pass

    for chosen in passes:
        if not (isinstance(chosen, type) and issubclass(chosen, Pass)):
            raise UsageProblem(
                f"the extension {module} brings something that is no pass",
                expected="classes derived from handoff.Pass in PASSES",
                got=repr(chosen)[:80],
                remedy="Fix PASSES in that module",
            )
        if PASSES.setdefault(chosen.name, chosen) is not chosen:
            raise UsageProblem(
                f"the extension {module} brings a pass under a name that is taken",
                expected="a name that none of 'handoff passes' has",
                got=chosen.name,
                remedy="Give the pass another name",
            )


def _not_importable(module: str, reason: str) -> UsageProblem:
    return UsageProblem(
        f"the extension {module} can't be imported",
        expected="an installed Python module, or one in the current folder",
        got=reason,
        remedy="Install it in Handoff's environment, or fix its name under 'extensions'",
    )
