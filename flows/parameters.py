"""The parameters of the flows, which Prefect's UI renders as forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

from artifacts.changes import Author
from artifacts.recipe import Recipe
from artifacts.record import from_plain
from artifacts.registering import SigningKey, Stores


class ReleaseParameters(BaseModel):
    """What to release, how, and where to keep it. Secrets are never among the parameters."""

    delivery: Path = Field(description="The delivery's folder.")
    workspace: Path = Field(description="An empty or missing folder for this run's files.")
    objects: str = Field(description="The object store: a folder or s3://bucket/prefix.")
    tracking_uri: str = Field(description="MLflow's tracking URI.")
    artifact_root: str = Field("", description="Where MLflow keeps artifacts when it is embedded.")
    trusted: list[str] = Field(
        default_factory=list, description="Files and folders of the public keys that are trusted."
    )
    seen: Path | None = Field(None, description="The file that remembers how far ledgers went.")
    signing_key: str = Field(description="The key that signs: a PEM file or a KMS's address.")
    public_key: Path = Field(description="The file of its public key.")
    make_missing_key: bool = Field(
        default=False, description="Make the signing key where there is none."
    )
    by: str = Field("", description="Who asks for the release, as the ledger names them.")
    recipe: dict[str, Any] = Field(
        default_factory=dict, description="The recipe, as in a recipe file; empty for defaults."
    )
    compiler: str = Field(
        "g++", description="The C++ compiler, part of what a release is made from."
    )
    rebuild: bool = Field(
        default=False, description="Build anew even where the same release was made before."
    )
    alias: str = Field(
        "candidate",
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$",
        description="The alias that the new version carries.",
    )

    @field_validator("recipe")
    @classmethod
    def _recipe_is_valid(cls, plain: dict[str, Any]) -> dict[str, Any]:
        from_plain(Recipe, plain, "recipe")
        return plain

    def parsed_recipe(self) -> Recipe:
        """Return the recipe as its value type."""
        return from_plain(Recipe, self.recipe, "recipe")

    @property
    def stores(self) -> Stores:
        """The stores as one value."""
        return Stores(
            self.objects, self.tracking_uri, self.artifact_root, tuple(self.trusted), self.seen
        )

    @property
    def key(self) -> SigningKey:
        """The signing key as one value."""
        return SigningKey(self.signing_key, self.public_key, self.make_missing_key)

    def author(self, run: str) -> Author:
        """Return who asks for the release, in the flow run `run`."""
        return Author(self.by or "unknown", run=run)
