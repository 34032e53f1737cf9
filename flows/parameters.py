"""The parameters of the flows, which Prefect's UI renders as forms. No secret is among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import from_plain
from handoff.tasks.registry.changes import NIGHTLY_ALIAS, Author

ModelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
TARGET_PATTERN = r"^(cpu|cuda)-[a-z0-9+-]{1,30}$"
# Flows that are started again after a crash take it beside their parameters.
Attempt = Annotated[
    int, Field(ge=1, le=9, description="How often it was started, since earlier runs crashed.")
]
AliasName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]


def _set_field_order(schema: dict[str, Any]) -> None:
    """Give Prefect's pages the order of a form's fields, which goes by name else."""
    for place, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = place


class _Form(BaseModel):
    """Parameters that Prefect's pages show as a form; what they don't know is refused."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_set_field_order)


class ReleaseParameters(_Form):
    """What to release and how: the one payload that every way to a release ends in."""

    delivery: str = Field(
        min_length=1,
        max_length=2000,
        description="The delivery: a folder of the worker's, s3://, https:// with its digest, or "
        "git+https:// with a commit and a path.",
    )
    model: ModelName | None = Field(None, description="The model; else what the delivery says.")
    repository: str = Field("", max_length=500, description="Where the model's code is kept.")
    commit: str = Field(
        "", pattern=r"^([0-9a-f]{7,64})?$", description="The commit that it was trained with."
    )
    by: str = Field("", max_length=200, description="Who asks for it, as the ledger names them.")
    recipe: dict[str, Any] = Field(
        default_factory=dict,
        description="The recipe, as in a recipe file; empty for the one that the worker's recipes "
        "folder has for the model, else the defaults.",
    )
    rebuild: bool = Field(
        default=False, description="Build again even where the same release was made before."
    )
    alias: AliasName = Field("candidate", description="The alias that the new version carries.")

    @field_validator("recipe")
    @classmethod
    def _validate_recipe(cls, plain: dict[str, Any]) -> dict[str, Any]:
        from_plain(Recipe, plain, "recipe")
        return plain

    def parsed_recipe(self) -> Recipe | None:
        """Return the recipe as its value type; None where the model's own one is wanted."""
        return from_plain(Recipe, self.recipe, "recipe") if self.recipe else None

    @property
    def lineage(self) -> Lineage:
        """What these parameters say about the delivery's source."""
        return Lineage(repository=self.repository, commit=self.commit)

    @property
    def label_of_delivery(self) -> str:
        """The model, or where it isn't given the last part of the delivery's address."""
        return self.model or Path(self.delivery.partition("#")[0].rstrip("/")).name

    @property
    def label(self) -> str:
        """The model and the commit, as far as they are given, for a run's name."""
        return " ".join(filter(None, (self.label_of_delivery, self.commit[:12])))

    def author(self, by: str, run: str) -> Author:
        """Return who asks for the release, `by` where they don't say it, in the flow run `run`."""
        return Author(self.by or by or "unknown", run=run)


class BuildTargetParameters(_Form):
    """Which target of which delivery is built; a release fills this in."""

    delivery: str = Field(
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="The list of a delivery's parts.",
    )
    label: str = Field("", max_length=200, description="What it is of, for the run's name.")
    target: str = Field(pattern=TARGET_PATTERN, description="The target, such as cuda-sm90.")
    recipe: dict[str, Any] = Field(description="The release's recipe.")
    rebuild: bool = Field(default=False, description="Use nothing that was compiled before.")

    def parsed_recipe(self) -> Recipe:
        """Return the recipe as its value type."""
        return from_plain(Recipe, self.recipe, "recipe")


class RecompileParameters(_Form):
    """Which models are rebuilt in a night."""

    alias: AliasName = Field("production", description="What this alias serves is rebuilt.")
    models: list[ModelName] = Field(
        default_factory=list, max_length=10_000, description="Only these; else all that it serves."
    )
    conformance: bool = Field(
        default=True, description="Ask the toolchain's operators, where nobody has yet."
    )


# The parameters of a scheduled night: the defaults.
EVERYTHING = RecompileParameters()


class RebuildParameters(_Form):
    """One model of a night; the nightly fills this in."""

    model: ModelName = Field(description="The model's name in the registry.")
    version: int = Field(ge=1, description="The version that is served now.")
    alias: AliasName = Field("production", description="The alias that serves it.")
    night: str = Field(pattern=r"^[0-9]{8}T[0-9]{6}Z$", description="When the night began, in UTC.")
    recipe: dict[str, Any] = Field(description="The recipe to rebuild with.")
    changed: list[str] = Field(default_factory=list, description="Why it is rebuilt.")
    made_from: str = Field("", max_length=80, description="The fingerprint of the rebuild.")
    by: str = Field("nightly recompile", max_length=200, description="Who asks for it.")

    def parsed_recipe(self) -> Recipe:
        """Return the recipe as its value type."""
        return from_plain(Recipe, self.recipe, "recipe")

    def as_release(self, delivery: str) -> ReleaseParameters:
        """Return the release of the delivery that it makes, under an alias of the nights' own."""
        return ReleaseParameters(
            delivery=delivery,
            model=self.model,
            by=self.by,
            recipe=self.recipe,
            alias=NIGHTLY_ALIAS,
        )


class ConformanceParameters(_Form):
    """Of which target today's toolchain is asked, and which operators."""

    target: str = Field(pattern=r"^cpu-[a-z0-9-]{1,30}$", description="The target: cpu-avx512.")
    operators: list[str] = Field(
        default_factory=list, max_length=1000,
        description="Only these of PyTorch's test suite; what comes out is not kept then.",
    )  # fmt: skip
    again: bool = Field(default=False, description="Ask again what was asked before.")


class PromoteParameters(_Form):
    """Which version an alias is to stand for, and why."""

    model: ModelName = Field(description="The model's name in the registry.")
    version: int | AliasName = Field(
        "candidate", description="The version's number, or an alias that points to it."
    )
    alias: AliasName = Field("production", description="The alias that is moved.")
    reason: str = Field("", max_length=2000, description="Why; the ledger keeps it.")
    override: bool = Field(
        default=False, description="Set the rules of a promotion aside; needs a reason."
    )
    narrower: bool = Field(
        default=False, description="Even if it takes less than what it replaces."
    )
    new_alias: bool = Field(
        default=False, description="Create the alias, even if it is like one that is there."
    )
    by: str = Field("", max_length=200, description="Who asks for it, as the ledger names them.")

    @property
    def label(self) -> str:
        """What is promoted, for a run's name."""
        return f"{self.model}@{self.version} to {self.alias}"


class VerifyParameters(_Form):
    """Which version is compared with its delivery again, on the machine that has the hardware."""

    model: ModelName = Field(description="The model's name in the registry.")
    version: int | AliasName = Field("production", description="A version's number, or an alias.")
    target: str = Field(
        "auto",
        pattern=f"^auto$|{TARGET_PATTERN}",
        description="The target; auto for the best one that fits the worker's machine.",
    )

    @property
    def label(self) -> str:
        """What is verified where, for a run's name."""
        return f"{self.model}@{self.version} on {self.target}"
