"""Handoff from Python: what the commands of the same names do, with values in place of tables.

    import handoff

    handoff.deliver(model, inputs, "delivery", name="ranker")
    released = handoff.release("delivery")
    served = handoff.load("pulled", keys="team.pub", name="ranker")

This is the whole public API: any other module may change with each version. Settings are those of
the command line (`HANDOFF_HOME`, `HANDOFF_STORE` and so on). Every refusal is a `HandoffError`: one
class for each decision that an operator takes, one sentence with what was expected, what was found
and what to do.

Importing this imports nothing else; each name is imported when it is asked for, and torch where it
is needed. A serving process, which takes `load`, `pull` and `follow` alone, needs neither Prefect
nor MLflow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from handoff.artifacts.delivery.contract import Lineage
    from handoff.artifacts.delivery.metric import Metric
    from handoff.artifacts.errors import (
        BlessingRefused,
        BudgetSpent,
        BuildCrashed,
        DeliveryUnreachable,
        DeliveryUnreadable,
        DeliveryUnsound,
        EnvironmentLacking,
        HandoffError,
        InputsRefused,
        KeyUnusable,
        NightFailed,
        NotCapturable,
        NotShownYet,
        PackageRefused,
        PromotionRefused,
        RegistryFailed,
        StepCrashed,
        StepKilled,
        StoreFailed,
        StoreUnreachable,
        UsageProblem,
    )
    from handoff.artifacts.recipe.recipe import Recipe
    from handoff.artifacts.release.evidence import Finding
    from handoff.artifacts.release.manifest import Manifest
    from handoff.artifacts.release.signing import Trust
    from handoff.artifacts.serve.loader import LoadedModel, load
    from handoff.infra.api import (
        Inspection,
        Released,
        deliver,
        follow,
        inspect,
        promote,
        pull,
        release,
        trusted_keys,
    )
    from handoff.tasks.deliver.messages import DeliverResult
    from handoff.tasks.follow.following import FollowedModel
    from handoff.tasks.follow.serving import Serving
    from handoff.tasks.optimize.passes.base import Pass
    from handoff.tasks.optimize.passes.pattern import PatternPass
    from handoff.tasks.registry.messages import PullResult

_PLACES = {
    "artifacts.delivery.contract": ("Lineage",),
    "artifacts.delivery.metric": ("Metric",),
    "artifacts.errors": (
        "BlessingRefused", "BudgetSpent", "BuildCrashed", "DeliveryUnreachable",
        "DeliveryUnreadable", "DeliveryUnsound", "EnvironmentLacking", "HandoffError",
        "InputsRefused", "KeyUnusable", "NightFailed", "NotCapturable", "NotShownYet",
        "PackageRefused", "PromotionRefused", "RegistryFailed", "StepCrashed", "StepKilled",
        "StoreFailed", "StoreUnreachable", "UsageProblem",
    ),
    "artifacts.release.evidence": ("Finding",),
    "artifacts.serve.loader": ("LoadedModel", "load"),
    "artifacts.release.manifest": ("Manifest",),
    "artifacts.recipe.recipe": ("Recipe",),
    "tasks.registry.messages": ("PullResult",),
    "artifacts.release.signing": ("Trust",),
    "tasks.deliver.messages": ("DeliverResult",),
    "tasks.follow.following": ("FollowedModel",),
    "tasks.follow.serving": ("Serving",),
    "infra.api": (
        "Inspection", "Released", "deliver", "follow", "inspect", "promote", "pull", "release",
        "trusted_keys",
    ),
    # For operators and passes of a team's own.
    "tasks.optimize.passes.base": ("Pass",),
    "tasks.optimize.passes.pattern": ("PatternPass",),
}  # fmt: skip
_MODULE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "BlessingRefused", "BudgetSpent", "BuildCrashed", "DeliverResult", "DeliveryUnreachable",
    "DeliveryUnreadable", "DeliveryUnsound", "EnvironmentLacking", "Finding", "FollowedModel",
    "HandoffError", "InputsRefused", "Inspection", "KeyUnusable", "Lineage", "LoadedModel",
    "Manifest", "Metric", "NightFailed", "NotCapturable", "NotShownYet", "PackageRefused", "Pass",
    "PatternPass", "PromotionRefused", "PullResult", "Recipe", "RegistryFailed", "Released",
    "Serving", "StepCrashed", "StepKilled", "StoreFailed", "StoreUnreachable", "Trust",
    "UsageProblem", "deliver", "follow", "inspect", "load", "promote", "pull", "release",
    "trusted_keys",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Return what is asked for the first time, from the module that has it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, for those who look around."""
    return sorted({*globals(), *__all__})


class _FormerName:
    """Lets MLflow load what it was shown by 0.1, whose file MLmodel names `infra.flavor`.

    It is asked last, and gives MLflow's process alone anything: `infra` is a name for all.
    """

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return an empty package for `infra`, and what `infra.flavor` has become."""
        if name not in {"infra", "infra.flavor"} or "mlflow" not in sys.modules:
            return None
        from importlib.machinery import ModuleSpec

        loader = None if name == "infra" else cast("Loader", cls())
        return ModuleSpec(name, loader, is_package=loader is None)

    def create_module(self, spec: ModuleSpec) -> None:
        """Take the usual empty module, whose place is taken then."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the loader of today in the module's place."""
        from importlib import import_module

        sys.modules[module.__name__] = import_module("handoff.infra.flavor")


sys.meta_path.append(_FormerName)
