"""What a Python serving process uses: a pulled release becomes a callable, after its checks.

    model = load("pulled")
    (scores,) = model(ids, features)

Fit and digest are checked before the file is opened, since opening one runs its code; each call's
inputs are checked before the package sees them, since a package that meets an id beyond its table
may end the whole process: its check throws, and nothing can be thrown out of OpenMP's threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from artifacts.checked_inputs import InputChecks
from artifacts.errors import EnvironmentLacking, PackageRefused, UsageProblem
from artifacts.manifest import Manifest, PackageFile, TargetRecord, read_manifest
from artifacts.package import check_file
from artifacts.signature import ModelSignature
from artifacts.target import Fit

if TYPE_CHECKING:
    import torch

FileName = Literal["model.so", "model.pt2"]
Run = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]


class LoadedModel:
    """A released model: inputs in the signature's order, outputs as a tuple in its order.

    Any thread may call it. As many calls run at once as it was loaded with `runners`; further ones
    wait.
    """

    def __init__(self, run: Run, checks: InputChecks, manifest: Manifest, target: str) -> None:
        """Hold what runs the package, and what is checked before it."""
        self.manifest = manifest
        self.target = target
        self._run = run
        self._checks = checks

    @property
    def signature(self) -> ModelSignature:
        """What the model takes and gives."""
        return self.manifest.signature

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs; raise `InputsRefused` for inputs that aren't what was declared.

        What the package itself refuses is a `RuntimeError`. The model can be called again after
        either.
        """
        checks = self._checks
        if not checks.fit(inputs):
            raise checks.refusal(inputs)
        return tuple(self._run(list(inputs)))


def load(
    folder: str | Path,
    target: str = "auto",
    *,
    file: FileName | None = None,
    runners: int = 1,
    check_values: bool = True,
) -> LoadedModel:
    """Open the package in a pulled folder, after checking that it fits and is what was released.

    `target` is a slug, or `auto` for the one of those in the folder that fits this machine and
    asks most of its processor. `file` is which of the two forms is opened: by default the `.so` on
    a CPU, which is mapped where it lies, and on a GPU the `.pt2`, which is unpacked into TMPDIR.
    `check_values` compares whole numbers with their declared range, which is a pass over those
    inputs; leave it out only where something else does it. Raises `PackageRefused`, and
    `UsageProblem` for a target that isn't there.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentLacking(
            "a package can't be loaded here",
            expected="torch",
            got=str(error),
            remedy="Install the torch that the release was built with",
        ) from error
    place = Path(folder).absolute()
    manifest = read_manifest(place)
    record, fit = _choose(place, manifest, target, torch.__version__)
    device = "cuda" if fit.gpu_capability else "cpu"
    name = file or ("model.pt2" if device == "cuda" else "model.so")
    chosen = _file_of(record, name)
    check_file(place, chosen)
    run = _open(place / chosen.path, device, runners)
    checks = InputChecks(manifest.signature, device=device, values=check_values)
    return LoadedModel(run, checks, manifest, record.slug)


def _choose(
    folder: Path, manifest: Manifest, wanted: str, torch_version: str
) -> tuple[TargetRecord, Fit]:
    """Return the target to open; the same one as `handoff pull` and the C++ runner choose."""
    there = [t for t in manifest.targets if t.accepted and t.fit and (folder / t.slug).is_dir()]
    named = [t for t in there if wanted in ("auto", t.slug)]
    if not named:
        slugs = ", ".join(target.slug for target in there) or "none"
        if wanted != "auto":
            raise UsageProblem(
                f"{folder} holds no package for {wanted[:60]}", expected=f"auto, or of: {slugs}",
                got=wanted[:60], remedy="Name one of these, or pull the release for that target",
            )  # fmt: skip
        raise PackageRefused(
            f"{folder} holds no package", expected="a folder for at least one accepted target",
            got="none", remedy="Pull the release again",
        )  # fmt: skip
    misfits = []
    fitting: list[tuple[int, TargetRecord, Fit]] = []
    for target in named:
        assert target.fit is not None
        if misfit := target.fit.misfit(torch_version):
            misfits.append(f"{target.slug}: {misfit}")
        else:
            fitting.append((len(target.fit.cpu_flags), target, target.fit))
    if not fitting:
        raise PackageRefused(
            f"nothing of {manifest.model} in {folder.name} is for this machine",
            expected="a package that fits it", got="; ".join(misfits),
            remedy="Pull the release on the machine that it is for, with --target auto",
        )  # fmt: skip
    _, best, fit = max(fitting, key=lambda found: found[0])
    return best, fit


def _file_of(record: TargetRecord, name: FileName) -> PackageFile:
    for file in record.files:
        if file.path == f"{record.slug}/{name}":
            return file
    raise UsageProblem(
        f"the release holds no {name} for {record.slug}", expected="model.so or model.pt2",
        got=name, remedy="Name the other one",
    )  # fmt: skip


def _open(path: Path, device: str, runners: int) -> Run:
    """Open a file that was checked; nothing of it has run before."""
    import torch

    try:
        return _run_of(path, device, runners)
    except RuntimeError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise PackageRefused(
            f"{path.name} can't be opened", expected=f"a package for torch {torch.__version__}",
            got=lines[0][:300],
            remedy="Pull the release again, or load it with the torch that it was built with",
        ) from error  # fmt: skip


def _run_of(path: Path, device: str, runners: int) -> Run:
    from torch._C import _aoti

    if path.suffix == ".pt2":
        return cast(Run, _aoti.AOTIModelPackageLoader(str(path), "model", False, runners).boxed_run)
    # By a name that no other file has had in this process: dlopen takes a library that it has
    # loaded from the same path for the one that lies there now, and never unloads most of ours
    # (their unique symbols). The descriptor stays open, so that its number is not used again.
    library = f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_CLOEXEC)}"
    if device == "cuda":
        folder = str(path.parent)
        return cast(Run, _aoti.AOTIModelContainerRunnerCuda(library, runners, device, folder).run)
    return cast(Run, _aoti.AOTIModelContainerRunnerCpu(library, runners).run)
