"""Deliver: the training side. A module and its example inputs become a delivery.

It needs torch and safetensors. What is written is read back by the intake in the same run, and
compared with the original: a delivery that Handoff would refuse is not written.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    require_on_cpu,
    unwrap,
)
from tasks.delivering.calls import Call, Tensors, describe_call
from tasks.delivering.factory import default_name, make_model
from tasks.delivering.failures import Failure, describe_detour, describe_fixing, gravest
from tasks.delivering.golden import (
    GoldenCase,
    Goldens,
    agree,
    make_goldens,
    one_line,
    shapes_of,
    undisturbed,
)
from tasks.delivering.roads import ROADS, Captured, Request
from tasks.delivering.sources import write_sources
from tasks.float64 import flat_tensors
from tasks.intake import read_delivery
from tasks.lineage import lineage_from_git
from tasks.operators import BUILT_IN, own_namespaces

_CLEAN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def deliver(
    module: nn.Module,
    example_inputs: Sequence[Any],
    folder: Path,
    *,
    name: str,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    dimensions: Limits | None = None,
    ranges: Ranges | None = None,
    batch_invariant: bool = True,
    lineage: Lineage | None = None,
) -> DeliverResult:
    """Write a delivery of `module` to `folder`, all or nothing; return its contract and notes.

    `example_inputs` and `example_kwargs` are what forward is called with: tensors, or tuples,
    lists, dictionaries and dataclasses of them, which the delivery takes one by one (`batch_user`
    for `batch["user"]`); what is no tensor is fixed to its value.

    `dynamic` maps an input's name to its dynamic axes (`{"x": {0: "batch"}}`), `dimensions` each
    of their names to its smallest and largest size, both included (1 to 1024 without it). Without
    `dynamic`, axis 0 of every input is `batch` where all inputs agree on its size, and fixed, with
    a note, where no capture holds for more than the example's; `dynamic={}` means fixed shapes.
    `ranges` bounds what random inputs may hold, both ends included; for integers the example's own
    smallest and largest are the default. `batch_invariant=False` declares that the output for one
    row depends on the other rows on purpose.

    The module is delivered in evaluation mode, without its dropouts and losses, and is afterwards
    what it was before. `torch.fx` captures it; what that can't capture rightly or `to_folder`
    can't write so that it loads, `torch.export` captures.

    Raises `UsageProblem` for wrong arguments, `DeliveryUnreadable` for a model that can't be
    captured or written, and `DeliveryUnsound` for one that doesn't repeat itself, or whose capture
    computes something else.
    """
    _require_free(folder)
    module = unwrap(module)
    call, inputs = describe_call(module, example_inputs, example_kwargs or {})
    require_on_cpu(module, inputs)
    signature = describe_inputs(call.names, inputs, dynamic, dimensions, ranges)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        undisturbed(module),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch,
    ):
        goldens = make_goldens(module, call, inputs, signature)
        contract = DeliveryContract(
            model=_model_section(name, module),
            inputs=signature.inputs,
            dimensions=dict(signature.dimensions),
            source=lineage or Lineage(),
            structure=goldens.structure,
            draw=goldens.draw,
            batch_invariant=batch_invariant,
        )
        # The name ends up in module.py, beside each .pt file.
        built = Path(scratch) / (folder.name if _CLEAN_NAME.fullmatch(folder.name) else "delivery")
        failures: list[Failure] = []
        work = _Work(module, call, goldens, built, failures)
        result = work.build(contract)
        if result is None and dynamic is None and contract.dimensions:
            result = work.build_fixed(contract, inputs)
        if result is None:
            raise gravest(module, failures)
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


@dataclass(frozen=True)
class _Work:
    """What is being delivered where, and why it hasn't gone well so far."""

    module: nn.Module
    call: Call
    goldens: Goldens
    folder: Path
    failures: list[Failure]

    def build(self, contract: DeliveryContract) -> DeliverResult | None:
        """Write the delivery by the first road whose result is right when it is read back."""
        for road in ROADS:
            captured = None
            try:
                with undisturbed(self.module):
                    captured = road.capture(self._request(contract))
                    notes = self._write_checked(captured, contract, road.name)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - told below, or beside the road that went well
                self.failures.append(Failure(error, captured is not None))
                shutil.rmtree(self.folder, ignore_errors=True)
            else:
                detour = describe_detour(road.name, self.failures)
                return replace(notes, notes=(*notes.notes, *self.goldens.notes, *detour))
        return None

    def build_fixed(self, contract: DeliveryContract, inputs: Tensors) -> DeliverResult | None:
        """Write the delivery for the example's sizes alone, where no capture holds for others."""
        fixed = describe_inputs(self.call.names, inputs, {}, None, None).inputs
        specs = tuple(
            replace(spec, shape=same.shape)
            for spec, same in zip(contract.inputs, fixed, strict=True)
        )
        example, *_ = self.goldens.cases
        narrowed = replace(self, goldens=replace(self.goldens, cases=(example,)), failures=[])
        result = narrowed.build(replace(contract, inputs=specs, dimensions={}))
        if result is None:
            return None
        note = describe_fixing(contract, inputs, self.failures)
        return replace(result, notes=(note, *result.notes))

    def _request(self, contract: DeliveryContract) -> Request:
        example = self.goldens.cases[0]
        rows = example.inputs if contract.draw == "examples" else None
        return Request(self.module, self.call, contract.signature, example.left_out, rows)

    def _write_checked(
        self, captured: Captured, contract: DeliveryContract, road: str
    ) -> DeliverResult:
        narrowed = _narrow(contract, captured, road)
        kept = [_keep(c, contract.signature, captured.inputs) for c in self.goldens.cases]
        for case in kept:
            _require_same(captured.module, case, "the captured graph")
        _write(captured, narrowed, kept, self.folder)
        own = own_namespaces(captured.module.graph.nodes)
        loaded = read_delivery(self.folder, BUILT_IN | own)
        for case in kept:
            _require_same(loaded.module, case, "what was written")
        note = f"calls operators of {', '.join(sorted(own))}: the recipe has to name their library"
        return DeliverResult(self.folder, narrowed, (*captured.notes, *([note] if own else [])))


def _narrow(contract: DeliveryContract, captured: Captured, road: str) -> DeliveryContract:
    """Return the contract of what was captured: its inputs alone, and their dimensions."""
    kept = [place for place, spec in enumerate(contract.inputs) if spec.name in captured.inputs]
    inputs = tuple(contract.inputs[place] for place in kept)
    used = {axis for spec in inputs for axis in spec.shape}
    paths = contract.structure.inputs
    return replace(
        contract,
        model=replace(contract.model, captured_by=road),
        inputs=inputs,
        structure=replace(
            contract.structure, inputs=tuple(paths[place] for place in kept) if paths else ()
        ),
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
    write_sources(captured.module, folder)
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
        example_kwargs=options.pop("keywords", None),
        lineage=replace(lineage, created=created), **options,
    )  # fmt: skip
