"""Deliver: the training side. A module and its example inputs become a delivery.

It needs torch and safetensors. What is written is read back by the intake in the same run, and
compared with the original: a delivery that Handoff would refuse is not written.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from artifacts.delivery import (
    CONTRACT_FILE,
    EXAMPLES_FILE,
    DeliveryContract,
    Lineage,
    ModelSection,
    format_contract,
)
from artifacts.errors import DeliveryUnsound, UsageProblem
from artifacts.signature import ModelSignature
from artifacts.steps import DeliverJob, DeliverResult
from tasks.delivering.arguments import (
    Dynamic,
    Limits,
    Ranges,
    describe_inputs,
    name_inputs,
    require_on_cpu,
    unwrap,
)
from tasks.delivering.factory import default_name, make_model
from tasks.delivering.failures import Failure, describe_detour, gravest
from tasks.delivering.golden import (
    GoldenCase,
    agree,
    make_golden_cases,
    one_line,
    shapes_of,
    undisturbed,
)
from tasks.delivering.roads import ROADS, Captured
from tasks.float64 import flat_tensors
from tasks.intake import read_delivery
from tasks.lineage import lineage_from_git

_CLEAN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def deliver(
    module: nn.Module,
    example_inputs: Sequence[torch.Tensor],
    folder: Path,
    *,
    name: str,
    dynamic: Dynamic | None = None,
    dimensions: Limits | None = None,
    ranges: Ranges | None = None,
    lineage: Lineage | None = None,
) -> DeliverResult:
    """Write a delivery of `module` to `folder`, all or nothing; return its contract and notes.

    `dynamic` maps an input's name to its dynamic axes (`{"x": {0: "batch"}}`), `dimensions` each
    of their names to its smallest and largest size, both included (1 to 1024 without it). Without
    `dynamic`, axis 0 of every input is `batch` where all inputs agree on its size; `dynamic={}`
    means fixed shapes. `ranges` bounds what random inputs may hold, both ends included; for
    integers the example's own smallest and largest are the default.

    The module is delivered in evaluation mode, without its dropouts and losses, and is afterwards
    what it was before. `torch.fx` captures it; what that can't capture rightly or `to_folder`
    can't write so that it loads, `torch.export` captures.

    Raises `UsageProblem` for wrong arguments, `DeliveryUnreadable` for a model that can't be
    captured or written, and `DeliveryUnsound` for one that doesn't repeat itself, or whose capture
    computes something else.
    """
    _require_free(folder)
    module, inputs = unwrap(module), tuple(example_inputs)
    names = name_inputs(module, inputs)
    require_on_cpu(module, inputs)
    signature = describe_inputs(names, inputs, dynamic, dimensions, ranges)
    contract = DeliveryContract(
        model=_model_section(name, module),
        inputs=signature.inputs,
        dimensions=dict(signature.dimensions),
        source=lineage or Lineage(),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        undisturbed(module),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch,
    ):
        cases = make_golden_cases(module, inputs, signature)
        # The name ends up in module.py, beside each .pt file.
        built = Path(scratch) / (folder.name if _CLEAN_NAME.fullmatch(folder.name) else "delivery")
        result = _build(module, contract, cases, built)
        built.rename(folder)
    return replace(result, folder=folder)


def _require_free(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    raise UsageProblem(
        f"{folder} can't be delivered to", expected="a new or an empty folder",
        got="a file" if folder.is_file() else "a folder with something in it",
        remedy="Name another folder; a delivery is never written over another",
    )  # fmt: skip


def _model_section(name: str, module: nn.Module) -> ModelSection:
    try:
        return ModelSection(name, type(module).__name__, torch.__version__)
    except ValueError as error:
        raise UsageProblem(
            "that can't be a model's name", expected="a name for the registry", got=repr(name[:80]),
            remedy=f"Give a name (--name): {error}",
        ) from error  # fmt: skip


def _build(
    module: nn.Module, contract: DeliveryContract, cases: tuple[GoldenCase, ...], folder: Path
) -> DeliverResult:
    """Write the delivery by the first road whose result is right when it is read back."""
    failures: list[Failure] = []
    for road in ROADS:
        captured = None
        try:
            captured = road.capture(module, contract.signature, cases[0].left_out)
            narrowed = _narrow(contract, captured, road.name)
            kept = [_keep(case, contract.signature, captured.inputs) for case in cases]
            for case in kept:
                _require_same(captured.module, case, "the captured graph")
            _write(captured, narrowed, kept, folder)
            loaded = read_delivery(folder)
            for case in kept:
                _require_same(loaded.module, case, "what was written")
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - told below, or beside the road that went well
            failures.append(Failure(error, captured is not None))
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return DeliverResult(folder, narrowed, (*captured.notes, *describe_detour(failures)))
    raise gravest(module, failures)


def _narrow(contract: DeliveryContract, captured: Captured, road: str) -> DeliveryContract:
    """Return the contract of what was captured: its inputs alone, and their dimensions."""
    inputs = tuple(spec for spec in contract.inputs if spec.name in captured.inputs)
    used = {axis for spec in inputs for axis in spec.shape}
    return replace(
        contract,
        model=replace(contract.model, captured_by=road),
        inputs=inputs,
        dimensions={name: d for name, d in contract.dimensions.items() if name in used},
    )


def _keep(case: GoldenCase, signature: ModelSignature, names: tuple[str, ...]) -> GoldenCase:
    pairs = zip(signature.inputs, case.inputs, strict=True)
    return replace(case, inputs=tuple(tensor for spec, tensor in pairs if spec.name in names))


def _require_same(module: nn.Module, case: GoldenCase, what: str) -> None:
    try:
        outputs = flat_tensors(module(*[tensor.clone() for tensor in case.inputs]))
        got = f"outputs of the shapes {shapes_of(outputs)}, or other values"
    except Exception as error:  # noqa: BLE001 - it is told as what was got
        outputs, got = (), one_line(error)
    if not agree(outputs, case.outputs):
        raise DeliveryUnsound(
            f"{what} computes something else than the model",
            expected=f"the model's own outputs for inputs of the shapes {shapes_of(case.inputs)}",
            got=got,
            remedy="The forward decides something by a value or a size that the capture has fixed: "
            "use torch.where, and x.shape instead of a number; or declare dynamic={}",
        )


def _write(
    captured: Captured, contract: DeliveryContract, cases: list[GoldenCase], folder: Path
) -> None:
    # torch writes the paths of the .pt files as they were given to it, and warns of modules that
    # it pickles: a clean relative name keeps the training side's own paths out of the delivery.
    with chdir(folder.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured.module.to_folder(folder.name, contract.model.class_name)
    tensors = {}
    for index, case in enumerate(cases):
        for spec, tensor in zip(contract.inputs, case.inputs, strict=True):
            tensors[f"{index}/inputs/{spec.name}"] = tensor.detach().contiguous().clone()
        for position, tensor in enumerate(case.outputs):
            tensors[f"{index}/outputs/{position}"] = tensor.contiguous().clone()
    save_file(tensors, folder / EXAMPLES_FILE)
    (folder / EXAMPLES_FILE).chmod(0o644)  # safetensors makes its files private
    (folder / CONTRACT_FILE).write_text(format_contract(contract), encoding="utf-8")


def run(job: DeliverJob) -> DeliverResult:
    """Deliver the model that `job.factory` makes.

    The factory is the training team's own code and is run here on purpose: this is the training
    side. It returns the model and its example inputs (a tuple), and maybe a dictionary of further
    arguments of `deliver`. The name is the job's, else the factory's option, else the factory's
    own. Without the option `lineage`, git is asked.
    """
    made = make_model(job.factory, job.search_path)
    options = dict(made.options)
    chosen = str(options.pop("name", "") or default_name(job.factory))
    lineage = options.pop("lineage", None) or lineage_from_git(job.search_path)
    created = lineage.created or datetime.now(UTC).isoformat(timespec="seconds")
    return deliver(
        made.module, made.inputs, job.folder, name=job.name or chosen,
        lineage=replace(lineage, created=created), **options,
    )  # fmt: skip
