"""What a Python serving process uses: a pulled release becomes a callable, after its checks.

    model = load("pulled", keys="team.pub", name="ranker")
    (scores,) = model(ids, features)

Nothing of a package runs before a trusted key's signature, the record and the file's digest were
verified, in this order, each of them read once. The file is copied into sealed memory while it is
hashed, and loaded from there: who changes it on the disk afterwards changes nothing. Three things
are outside of that: torch unpacks a `.pt2` from there into a folder of mode 700 in TMPDIR and opens
it there, where this user's other processes could change it; a `.so` that has operators called by
name (`model.json`) is opened through links in such a folder; and a GPU's `.so` takes its kernels
from files beside it by their path, which are checked before, and so a GPU's default is the `.pt2`.

The copy costs memory: as many bytes as the `.so` has, for as long as the process lives, and once
for the same bytes however often they are loaded (a `.pt2` only while it is opened). Its pages are
those that the package runs on, so that the resident size is the same (RssShmem and not RssFile in
/proc/PID/status); but the kernel can't drop them as it can a file's cached pages. It took 1.4 times
as long as hashing alone (64 against 49 ms for 48 MiB, 1.6 against 1.1 s for 1 GiB).

The process keeps what calls free for the next one, up to 60 MiB in each thread's arena.

Each call's inputs are checked before the package sees them, since a package that meets an id beyond
its table may end the whole process: its check throws, and nothing can be thrown out of OpenMP's
threads.

Without that, glibc gives freed memory back to the system beyond a threshold, and gets it again,
page by page, in the next call: a package of wav2vec 2.0 met 1568 page faults a call and took 11.6
ms with them, and 9.1 without (two threads). Not in every process: a block that happens to lie at
the heap's end keeps all of it. Other runtimes have an arena of their own.

The threshold isn't fixed: a large block that was mapped and is freed raises it to twice its size
(mallopt(3), "dynamic mmap threshold"), which one block does here that nothing writes to. Where an
operator has set a threshold (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_), glibc leaves it as it is;
another malloc notices nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.errors import EnvironmentLacking, PackageRefused, UsageProblem, first_line
from handoff.artifacts.recipe.compatibility import Fit, best_of
from handoff.artifacts.release.manifest import Manifest, PackageFile, TargetRecord, read_manifest
from handoff.artifacts.release.package import read_release
from handoff.artifacts.release.signing import Trust, read_trust
from handoff.artifacts.serve.archive import (
    EXTERN_KERNELS_FILE,
    linked_library,
    read_descriptor,
    require_known_members,
    require_known_operators,
)
from handoff.artifacts.serve.checked_inputs import InputChecks
from handoff.artifacts.serve.code_reuse import open_known_code, register_library
from handoff.artifacts.serve.sealing import check_file, keep_sealed, seal_file

if TYPE_CHECKING:
    import torch


# glibc looks at blocks of up to 32 MiB, of which an alignment to huge pages may take 2.
_BLOCK_BYTES = 30 << 20


def keep_freed_memory() -> None:
    """Let this process's malloc keep up to 60 MiB of what is freed, in each of its arenas."""
    import torch

    torch.empty(_BLOCK_BYTES, dtype=torch.uint8)


def ask_for_tiles() -> bool:
    """Ask Linux for AMX's tile registers; return whether this process may use them.

    It kills a process that uses them without having asked (arch_prctl(2)). oneDNN asks when it
    first computes with them; the matrix products that Inductor writes into a package don't.
    """
    import torch

    return bool(torch.cpu._init_amx())


FileName = Literal["model.so", "model.pt2"]
Layouts = Literal["refuse", "copy"]
Run = Callable[[list["torch.Tensor"]], Sequence["torch.Tensor"]]
Keys = Trust | str | Path | Iterable[str | Path]


class LoadedModel:
    """A released model, called as the original is, with its inputs one by one or by name.

    Any thread may call it. As many calls run at once as it was loaded with `runners`; further ones
    wait. `version` is the number that was signed; 0 for a package that is not released yet.
    """

    def __init__(
        self,
        run: Run,
        checks: InputChecks,
        manifest: Manifest,
        target: str,
        version: int,
        *,
        copies: bool = False,
    ) -> None:
        """Hold what runs the package, and what is checked before it.

        With `copies`, an input in another layout is copied, instead of being refused.
        """
        self.manifest = manifest
        self.target = target
        self.version = version
        self._run = run
        self._checks = checks
        self._copies = copies
        self._form = manifest.structure.form_of(len(manifest.signature.outputs))

    def __repr__(self) -> str:
        return f"<{self.manifest.model} version {self.version} for {self.target}>"

    @property
    def signature(self) -> ModelSignature:
        """What the model takes and gives."""
        return self.manifest.signature

    def __call__(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:  # noqa: ANN401
        """Return the outputs in the structure of the original model's result.

        Inputs are given in the signature's order, or by its names. A tensor, or a tuple of tensors,
        comes as a tuple; dictionaries, lists and nested ones as they are in the original, a
        dataclass as a named tuple of its fields, with None for what is no output (a loss). Of a
        version whose record doesn't hold the structure, all outputs come in one tuple.

        Raises `InputsRefused` for inputs that aren't what was declared: other names, or others than
        the signature's shapes and dtypes. What the package itself refuses is a `RuntimeError`. The
        model can be called again after either.
        """
        outputs = self.tensors(*inputs, **named)
        return outputs if self._form is None else self._form.fill(outputs)

    def tensors(self, *inputs: torch.Tensor, **named: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs one by one, in the signature's order, whatever the structure.

        Inputs are of the signature's shapes and dtypes, as are the outputs. Raises as a call does.
        """
        checks = self._checks
        if named:
            inputs = checks.order_inputs(inputs, named)
        if not checks.fit(inputs):
            if not self._copies:
                raise checks.refusal(inputs)
            inputs = checks.make_contiguous(inputs)
            if not checks.fit(inputs):
                raise checks.refusal(inputs)
        return tuple(self._run(list(inputs)))


@dataclass(frozen=True)
class _LoadOptions:
    """What of a release is opened, and how."""

    target: str
    file: FileName | None
    runners: int
    check_values: bool
    layouts: Layouts = "refuse"
    known_code: bool = False


def load(
    folder: str | Path,
    *,
    keys: Keys,
    name: str | None = None,
    version: int | None = None,
    target: str = "auto",
    file: FileName | None = None,
    runners: int = 1,
    check_values: bool = True,
    layouts: Layouts = "refuse",
    known_code: bool = False,
) -> LoadedModel:
    """Open the package in a pulled folder, after checking that it was signed and fits.

    `keys` are the public keys of which one has to have signed the release: PEM files, folders of
    `*.pub`, or a `Trust`. `name` and `version` are those that it has to be: without them another
    model's release, or an older one, that somebody put there is validly signed, too. `target` is a
    slug, or `auto` for the one of those in the folder that fits this machine and asks most of its
    processor. `file` is which of the two forms is opened: by default the `.so` on a CPU, and on a
    GPU the `.pt2`. `check_values` compares whole numbers with their declared range, which is a pass
    over those inputs; leave it out only where something else does it. `layouts` says what happens
    to an input that isn't contiguous, such as an image in channels-last order: no package takes
    one, so that it is refused, or copied. With `known_code`, a `.so` whose code this process has
    opened already, byte for byte, gets that with its own weights, instead of being kept in memory
    beside it for good. Raises `PackageRefused`, and `UsageProblem` for a key or a target that isn't
    there.
    """
    _require_torch()
    path = Path(folder).absolute()
    manifest, claim = read_release(path, trust_in(keys), name=name, version=version)
    options = _LoadOptions(target, file, runners, check_values, layouts, known_code)
    return _open_release(path, manifest, claim.version, options)


def load_unreleased(folder: Path, target: str) -> LoadedModel:
    """Open a package that nobody has signed yet: the pipeline's own, from which a release is made.

    Raises `PackageRefused` as `load` does, but for the signature.
    """
    _require_torch()
    options = _LoadOptions(target, file=None, runners=1, check_values=True)
    return _open_release(folder.absolute(), read_manifest(folder), 0, options)


def trust_in(keys: Keys) -> Trust:
    """Return the public keys that `load` was given as a `Trust`, or by their places."""
    if isinstance(keys, Trust):
        return keys
    return read_trust((keys,) if isinstance(keys, str | Path) else keys)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401 - what loads a package
    except ImportError as error:
        raise EnvironmentLacking(
            "a package can't be loaded here",
            expected="torch",
            got=str(error),
            remedy="Install the torch that the release was built with",
        ) from error


def _open_release(
    folder: Path, manifest: Manifest, version: int, options: _LoadOptions
) -> LoadedModel:
    import torch

    record, fit = _choose(folder, manifest, options.target, torch.__version__)
    if "amx_tile" in fit.cpu_flags and not ask_for_tiles():
        raise PackageRefused(
            f"the package for {record.slug} can't be opened in this process",
            expected="a kernel that lets it use AMX's tiles", got="a refusal of arch_prctl(2)",
            remedy="Allow that call in the container's seccomp profile, or open the release with "
            "target='cpu-avx512', if it has that",
        )  # fmt: skip
    device = "cuda" if fit.gpu_capability else "cpu"
    chosen = _find_file(record, options.file or ("model.pt2" if device == "cuda" else "model.so"))
    if chosen.path.endswith(".pt2"):
        run = _open_package(folder, chosen, options.runners)
    else:
        if device == "cuda":
            for kernel in record.files:
                check_file(folder, kernel)
        run = _open_library(folder, record, chosen, device, options)
    keep_freed_memory()
    checks = InputChecks(manifest.signature, device=device, values=options.check_values)
    copies = options.layouts == "copy"
    return LoadedModel(run, checks, manifest, record.slug, version, copies=copies)


def _choose(
    folder: Path, manifest: Manifest, requested: str, torch_version: str
) -> tuple[TargetRecord, Fit]:
    """Return the target to open; the same one as `handoff pull` and the C++ runner choose."""
    present = [t for t in manifest.targets if t.accepted and t.fit and (folder / t.slug).is_dir()]
    candidates = [t for t in present if requested in ("auto", t.slug)]
    if not candidates:
        slugs = ", ".join(target.slug for target in present) or "none"
        if requested != "auto":
            raise UsageProblem(
                f"{folder} holds no package for {requested[:60]}", expected=f"auto, or of: {slugs}",
                got=requested[:60], remedy="Name one of these, or pull the release for that target",
            )  # fmt: skip
        raise PackageRefused(
            f"{folder} holds no package", expected="a folder for at least one accepted target",
            got="none", remedy="Pull the release again",
        )  # fmt: skip
    misfits = []
    fitting: list[tuple[TargetRecord, Fit]] = []
    for target in candidates:
        assert target.fit is not None
        if misfit := target.fit.misfit(torch_version):
            misfits.append(f"{target.slug}: {misfit}")
        else:
            fitting.append((target, target.fit))
    if not fitting:
        raise PackageRefused(
            f"nothing of {manifest.model} in {folder.name} is for this machine",
            expected="a package that fits it", got="; ".join(misfits),
            remedy="Pull the release on the machine that it is for, with --target auto",
        )  # fmt: skip
    return fitting[best_of([fit for _, fit in fitting])]


def _find_file(record: TargetRecord, name: FileName) -> PackageFile:
    for file in record.files:
        if file.path == f"{record.slug}/{name}":
            return file
    raise UsageProblem(
        f"the release holds no {name} for {record.slug}", expected="model.so or model.pt2",
        got=name, remedy="Name the other one",
    )  # fmt: skip


def _open_package(folder: Path, file: PackageFile, runners: int) -> Run:
    archive = seal_file(folder, file, hold=False)
    try:
        require_known_members(archive, file.path)
        return _open(f"/proc/self/fd/{archive}", folder / file.path, "", runners)
    finally:
        # It is unpacked by now, and dlopen never saw it.
        os.close(archive)


def _open_library(
    folder: Path, record: TargetRecord, file: PackageFile, device: str, options: _LoadOptions
) -> Run:
    """Open a sealed `.so`, beside the sealed JSON of operators that it has called, if any."""
    kernel_files = [
        one for one in record.files if one.path == f"{record.slug}/{EXTERN_KERNELS_FILE}"
    ]
    path, runners = folder / file.path, options.runners
    if not kernel_files and device == "cpu" and options.known_code:
        return _open_with_known_code(folder, file, runners)
    library = seal_file(folder, file, hold=True)
    if not kernel_files:
        return _open(f"/proc/self/fd/{library}", path, device, runners)
    kernels = seal_file(folder, kernel_files[0], hold=False)
    try:
        require_known_operators(
            read_descriptor(kernels, kernel_files[0].path), kernel_files[0].path
        )
        with linked_library(library, kernels) as linked:
            return _open(linked, path, device, runners)
    finally:
        # It is read by now.
        os.close(kernels)


def _open_with_known_code(folder: Path, file: PackageFile, runners: int) -> Run:
    """Open a sealed `.so` for the CPU by code that is open already, where that is its code."""
    sealed = seal_file(folder, file, hold=False)
    try:
        runner = open_known_code(sealed, runners)
    except BaseException:
        os.close(sealed)
        raise
    if runner is not None:
        os.close(sealed)
        return cast(Run, runner.run)
    descriptor = keep_sealed(file.digest, sealed)
    run = _open(f"/proc/self/fd/{descriptor}", folder / file.path, "cpu", runners)
    register_library(file.digest, descriptor)
    return run


def _open(sealed: str, path: Path, device: str, runners: int) -> Run:
    """Open the sealed copy of the file at `path`; nothing of it has run before."""
    import torch

    try:
        return _make_run(sealed, path, device, runners)
    except RuntimeError as error:
        raise PackageRefused(
            f"{path.name} can't be opened", expected=f"a package for torch {torch.__version__}",
            got=first_line(error),
            remedy="Pull the release again, or load it with the torch that it was built with",
        ) from error  # fmt: skip


def _make_run(sealed: str, path: Path, device: str, runners: int) -> Run:
    from torch._C import _aoti

    if path.suffix == ".pt2":
        # Torch before 2.15 has no default for the device; -1 is none in particular.
        return cast(
            Run, _aoti.AOTIModelPackageLoader(sealed, "model", False, runners, -1).boxed_run
        )
    # By a name that no other bytes have had in this process: dlopen takes a library that it has
    # loaded from the same path for the one that lies there now, and never unloads most of ours
    # (their unique symbols).
    if device == "cuda":
        folder = str(path.parent)
        return cast(Run, _aoti.AOTIModelContainerRunnerCuda(sealed, runners, device, folder).run)
    return cast(Run, _aoti.AOTIModelContainerRunnerCpu(sealed, runners).run)
