"""A small recommender as a real release: compiled, its reference run, its manifest written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.inspect.messages import TraceabilityResult
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.registry import assemble, target_record
from handoff.tasks.release.processes import Processes
from tests.artifacts.samples import sample_key, sign_release
from tests.limits import LIMIT_S
from tests.shared_tools import made_once, share_built
from tests.tasks.deliveries import write_delivery

ITEMS = 1000
RECIPE = Recipe(verify=VerifyPlan(seeds=1))


class Recommender(nn.Module):
    """Ids `[N, 20]` of a thousand items and features `[N, 64]` to scores `[N, 3]`.

    Large enough that Inductor splits its loop over threads, as it does for real ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, ids: Tensor, features: Tensor) -> Any:
        return self.head(torch.relu(self.items(ids).mean(1) + features))


@dataclass(frozen=True)
class BuiltRelease:
    """Where the release lies, what its manifest says, the reference of its cases, and the key.

    The key is the public one in PEM; it was signed as version 3.
    """

    folder: Path
    slug: str
    manifest: Manifest
    reference: Path
    key: Path

    @property
    def package(self) -> Path:
        """The folder of the target's files."""
        return self.folder / self.slug


def build_release(folder: Path) -> BuiltRelease:
    """Compile the recommender for this machine in `folder`, the way a release does."""
    return release_of(folder, *sample_recommender(), Dimension(1, 2048))


def shared_release(folder: Path) -> BuiltRelease:
    """Return that release in `folder`, compiled once for all processes of a test run.

    It is a copy that this process has signed, since each has a key of its own.
    """
    made = made_once("recommender", build_release)
    root = made.key.parent
    shutil.copytree(root, folder, symlinks=True, dirs_exist_ok=True)
    folder_of, reference, key = (
        folder / path.relative_to(root) for path in (made.folder, made.reference, made.key)
    )
    sign_release(folder_of, made.manifest, version=3)
    key.write_bytes(sample_key().pem)
    return replace(made, folder=folder_of, reference=reference, key=key)


def sample_recommender() -> tuple[Recommender, dict[str, Tensor]]:
    """Return the recommender that is built, and the inputs of its example."""
    torch.manual_seed(0)
    ids = torch.randint(ITEMS, (6, 20))
    ids[0, 0], ids[0, 1] = 0, ITEMS - 1
    inputs = {"ids": ids, "features": torch.randn(6, 64)}
    return Recommender().eval(), inputs


def release_of(
    folder: Path, module: nn.Module, inputs: dict[str, Tensor], batch: Dimension,
    recipe: Recipe = RECIPE,
) -> BuiltRelease:  # fmt: skip
    """Compile a model in `folder`, the way a release does, and sign it."""
    write_delivery(folder / "delivery", module, inputs, batch=batch)
    return release_of_delivery(folder, recipe)


def release_of_delivery(folder: Path, recipe: Recipe = RECIPE) -> BuiltRelease:
    """Compile the delivery in `folder`/delivery, the way a release does, and sign it.

    It is for the first of the recipe's targets, by default this machine's level.
    """
    delivery = folder / "delivery"
    target = recipe.resolved_targets()[0]
    share_built(folder / "builds")
    with Processes(folder / "builds" / "workspace", recipe, delivery=delivery) as processes:
        intake = IntakeJob(delivery, processes.jobs.staging)
        taken = processes.graph.run(intake, limit_s=LIMIT_S)
        optimized = processes.graph.run(processes.jobs.optimize(), limit_s=LIMIT_S)
        processes.tools(target).result(LIMIT_S)
        compiling = processes.jobs.compile(optimized, target)
        compiled = processes.compiler(target).run(compiling, limit_s=LIMIT_S)
        referring = processes.jobs.reference(optimized)
        reference = processes.runner().run(referring, limit_s=LIMIT_S)
        manifest = assemble.assemble(
            processes.jobs.release,
            recipe=recipe,
            taken=taken,
            judged=TraceabilityResult("sound", ()),
            fingerprint=digest_bytes(b"built for a test"),
            optimized=optimized,
            signature=assemble.signature_of(taken.contract, optimized),
            built=target_record.BuiltTargets(
                (TargetRecord(target.slug, True, (), compiled.files, compiled.fit),),
                compiled.toolchain,
                reference.plan,
            ),
        )
        sign_release(processes.jobs.release, manifest, version=3)
        (folder / "key.pub").write_bytes(sample_key().pem)
        return BuiltRelease(
            processes.jobs.release, target.slug, manifest, reference.file, folder / "key.pub"
        )
