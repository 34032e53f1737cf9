"""Deliver: the training side. A module and its example inputs become a delivery.

It needs torch and safetensors. What is written is read back by the intake in the same run, and
compared with the original: a delivery that Handoff would refuse is not written.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.fx
from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.loss import _Loss

from artifacts.delivery import (
    CONTRACT_FILE,
    EXAMPLES_FILE,
    DeliveryContract,
    Lineage,
    ModelSection,
    format_contract,
)
from artifacts.errors import DeliveryUnreadable, DeliveryUnsound, UsageProblem
from artifacts.signature import Dimension, ModelSignature, TensorSpec
from artifacts.steps import DeliverJob, DeliverResult
from tasks.float64 import flat_tensors
from tasks.intake import read_delivery
from tasks.lineage import lineage_from_git
from tasks.plan import CaseSpec, draw_inputs
from tasks.tracer import trace_for_inference

Tensors = tuple[torch.Tensor, ...]

DEFAULT_BATCH = Dimension(1, 1024)


def deliver(
    module: nn.Module,
    example_inputs: Sequence[torch.Tensor],
    folder: Path,
    *,
    name: str,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    dimensions: Mapping[str, tuple[int, int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    lineage: Lineage | None = None,
) -> DeliverResult:
    """Write a delivery of `module` to `folder`, all or nothing; return its contract and notes.

    `dynamic` maps an input's name to its dynamic axes (`{"x": {0: "batch"}}`), `dimensions` each
    of their names to its range. Without them axis 0 of every input is `batch`, from 1 to 1024,
    where all inputs agree on its size; `dynamic={}` means fixed shapes. `ranges` bounds what
    random inputs may hold; for integers the example's own smallest and largest are the default.

    The module is delivered in evaluation mode, and left in the mode that it was in.

    Raises `UsageProblem` for wrong arguments, `DeliveryUnreadable` for a model that can't be
    captured or written, and `DeliveryUnsound` for one whose capture computes something else.
    """
    _require_free(folder)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            return _deliver(
                module, tuple(example_inputs), folder, name, dynamic, dimensions, ranges, lineage
            )
    finally:
        for part, training in modes.items():
            part.training = training


def _deliver(  # noqa: PLR0917 - `deliver` is the interface; this is its body under eval()
    module: nn.Module,
    inputs: Tensors,
    folder: Path,
    name: str,
    dynamic: Mapping[str, Mapping[int, str]] | None,
    dimensions: Mapping[str, tuple[int, int]] | None,
    ranges: Mapping[str, tuple[float, float]] | None,
    lineage: Lineage | None,
) -> DeliverResult:
    names = _input_names(module, inputs)
    signature = describe_inputs(names, inputs, dynamic, dimensions, ranges)
    captured, used, captured_by, notes = _capture(module, signature)
    kept = ModelSignature(
        tuple(spec for spec in signature.inputs if spec.name in used), (), signature.dimensions
    )
    cases = _golden_cases(module, captured, inputs, signature, used)
    contract = DeliveryContract(
        model=_model_section(name, module, captured_by),
        inputs=kept.inputs,
        dimensions=dict(kept.dimensions),
        source=lineage or Lineage(),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write(captured, contract, cases, partial)
        _read_back(partial, cases)
        if folder.exists():
            folder.rmdir()
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return DeliverResult(folder, contract, tuple(notes))


def _require_free(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    raise UsageProblem(
        f"{folder} can't be delivered to", expected="a new or an empty folder",
        got="a file" if folder.is_file() else "a folder with something in it",
        remedy="Name another folder; a delivery is never written over another",
    )  # fmt: skip


def _model_section(name: str, module: nn.Module, captured_by: str) -> ModelSection:
    try:
        return ModelSection(name, type(module).__name__, torch.__version__, captured_by)
    except ValueError as error:
        raise UsageProblem(
            "that can't be a model's name", expected="a name for the registry", got=name[:80],
            remedy=str(error).capitalize(),
        ) from error  # fmt: skip


def _input_names(module: nn.Module, inputs: Tensors) -> list[str]:
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise UsageProblem(
                f"example input {index} can't be delivered", expected="a tensor",
                got=type(value).__name__, remedy="Wrap the model so that it takes tensors alone",
            )  # fmt: skip
    names = list(inspect.signature(module.forward).parameters)[: len(inputs)]
    if len(names) < len(inputs):
        raise UsageProblem(
            "the example inputs don't fit the model",
            expected=f"{len(names)} for forward({', '.join(names)})", got=str(len(inputs)),
            remedy="Give one tensor for each argument of forward",
        )  # fmt: skip
    return names


def describe_inputs(
    names: Sequence[str],
    inputs: Tensors,
    dynamic: Mapping[str, Mapping[int, str]] | None,
    dimensions: Mapping[str, tuple[int, int]] | None,
    ranges: Mapping[str, tuple[float, float]] | None,
) -> ModelSignature:
    """Return the signature of the inputs; `deliver` says what the defaults are."""
    if dynamic is None:
        leading = {tensor.shape[0] if tensor.dim() else None for tensor in inputs}
        same = len(leading) == 1 and None not in leading
        dynamic = {name: {0: "batch"} for name in names} if same else {}
    unknown = sorted({*dynamic, *(ranges or {})} - set(names))
    if unknown:
        raise UsageProblem(
            "dynamic or ranges name an input that the model doesn't have",
            expected=f"one of {', '.join(names)}", got=unknown[0], remedy="Mend that name",
        )  # fmt: skip
    used = {axis for axes in dynamic.values() for axis in axes.values()}
    given = {name: Dimension(*limits) for name, limits in (dimensions or {}).items()}
    specs = []
    for name, tensor in zip(names, inputs, strict=True):
        axes = dynamic.get(name, {})
        shape = tuple(axes.get(axis, size) for axis, size in enumerate(tensor.shape))
        low, high = (ranges or {}).get(name) or _observed_range(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, shape, low, high))
    return ModelSignature(tuple(specs), (), {d: given.get(d, DEFAULT_BATCH) for d in sorted(used)})


def _observed_range(tensor: torch.Tensor) -> tuple[float | None, float | None]:
    if tensor.is_floating_point() or tensor.dtype is torch.bool or not tensor.numel():
        return None, None
    return float(tensor.min()), float(tensor.max())


def _capture(
    module: nn.Module, signature: ModelSignature
) -> tuple[torch.fx.GraphModule, set[str], str, list[str]]:
    """Return the captured graph, the inputs that it uses, what captured it, and notes."""
    try:
        traced, dropped = trace_for_inference(module)
    except Exception as fx_error:  # noqa: BLE001 - fx fails in any way; export is the second road
        captured = _export(module, signature, fx_error)
        return captured, {s.name for s in signature.inputs}, "torch.export", []
    notes = [f"left out: {count} {name}" for name, count in dropped.items()]
    traced.eval()
    used = set()
    for node in traced.graph.find_nodes(op="placeholder"):
        # An input that only a loss used (the label) is no input of the deployed model.
        if dropped and not node.users:
            notes.append(f"the input {node.target} was used by what was left out, and is dropped")
            traced.graph.erase_node(node)
        else:
            used.add(str(node.target))
    traced.recompile()
    traced.delete_all_unused_submodules()
    return traced, used, "torch.fx", notes


def _export(
    module: nn.Module, signature: ModelSignature, fx_error: Exception
) -> torch.fx.GraphModule:
    from tasks.capture import capture

    errors = [fx_error]
    for strict in (False, True):
        try:
            program = capture(module, signature, strict=strict)
            graph_module = program.module(check_guards=False)
            assert isinstance(graph_module, torch.fx.GraphModule)
            graph_module.graph.set_codegen(torch.fx.graph.CodeGen())
            graph_module.recompile()
        except Exception as error:  # noqa: BLE001 - each road's reason is told
            errors.append(error)
        else:
            return graph_module
    raise DeliveryUnreadable(
        f"{type(module).__name__} can't be captured as a graph",
        expected="a model that torch.fx or torch.export can trace",
        got="; ".join(_one_line(error) for error in errors[:2]),
        remedy="Take Python control flow on tensor values, len(tensor) and .item() out of the "
        "forward (torch.where and x.shape do the same)",
        where=_own_line(module, fx_error),
    ) from fx_error


def _one_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:200]}"


def _own_line(module: nn.Module, error: Exception) -> str:
    """Return the innermost line of the error's trace that is not torch's or Handoff's own."""
    ours = {Path(torch.__file__).parent, Path(__file__).parent}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not ours & set(path.parents) and path.exists():
            return f"{path.name}:{frame.lineno}"
    return inspect.getsourcefile(type(module)) or ""


def _golden_cases(
    module: nn.Module,
    captured: torch.fx.GraphModule,
    inputs: Tensors,
    signature: ModelSignature,
    used: set[str],
) -> list[tuple[Tensors, Tensors]]:
    """Return the example and a second size, each with what the original module gives.

    Raises `DeliveryUnsound` where the original doesn't repeat itself, or the capture differs.
    """
    names = [spec.name for spec in signature.inputs]
    sizes = {name: min(max(5, d.min), d.max) for name, d in signature.dimensions.items()}
    second = draw_inputs(signature, CaseSpec("second size", sizes, 0))
    cases = []
    for given in [inputs, second] if signature.dimensions else [inputs]:
        with losses_passed_through():
            golden = flat_tensors(module(*[t.clone() for t in given]))
            again = flat_tensors(module(*[t.clone() for t in given]))
        if not _agree(again, golden):
            raise DeliveryUnsound(
                "the model gives another output when it is run again", expected="the same output",
                got="a different one",
                remedy="Take random operators and state that changes out of the forward",
            )  # fmt: skip
        kept = tuple(t for name, t in zip(names, given, strict=True) if name in used)
        if not _agree(flat_tensors(captured(*[t.clone() for t in kept])), golden):
            shapes = ", ".join(str(list(t.shape)) for t in given)
            raise DeliveryUnsound(
                "the captured graph computes something else than the model",
                expected=f"the model's own outputs for inputs of the shapes {shapes}",
                got="others", remedy="The forward decides something by a value or a size that the "
                "capture has fixed: use torch.where, and x.shape instead of a number",
            )  # fmt: skip
        cases.append((kept, golden))
    return cases


@contextmanager
def losses_passed_through() -> Iterator[None]:
    """Let every loss module give its first input, as the tracer does, while the body runs."""

    def first_input(module: nn.Module, arguments: Any, output: Any) -> Any:  # noqa: ANN401
        return arguments[0] if isinstance(module, _Loss) and arguments else output

    handle = nn.modules.module.register_module_forward_hook(first_input)
    try:
        yield
    finally:
        handle.remove()


def _agree(got: Tensors, want: Tensors) -> bool:
    return len(got) == len(want) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        for a, b in zip(got, want, strict=True)
    )


def _write(
    captured: torch.fx.GraphModule,
    contract: DeliveryContract,
    cases: list[tuple[Tensors, Tensors]],
    folder: Path,
) -> None:
    # torch writes the paths of the .pt files as they were given to it, and warns of modules that
    # it pickles: a clean relative name keeps the training side's own paths out of the delivery.
    with chdir(folder.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured.to_folder(folder.name, contract.model.class_name)
    tensors = {}
    for index, (inputs, outputs) in enumerate(cases):
        for spec, tensor in zip(contract.inputs, inputs, strict=True):
            tensors[f"{index}/inputs/{spec.name}"] = tensor.detach().contiguous().clone()
        for position, tensor in enumerate(outputs):
            tensors[f"{index}/outputs/{position}"] = tensor.detach().contiguous().clone()
    save_file(tensors, folder / EXAMPLES_FILE)
    (folder / EXAMPLES_FILE).chmod(0o644)  # safetensors makes its files private
    (folder / CONTRACT_FILE).write_text(format_contract(contract), encoding="utf-8")


def _read_back(folder: Path, cases: list[tuple[Tensors, Tensors]]) -> None:
    loaded = read_delivery(folder)
    for inputs, outputs in cases:
        if not _agree(flat_tensors(loaded.module(*[t.clone() for t in inputs])), outputs):
            raise DeliveryUnsound(
                "what was written computes something else than the model",
                expected="the same outputs after reading it back", got="others",
                remedy="Report this with the model: to_folder lost something",
            )  # fmt: skip


def run(job: DeliverJob) -> DeliverResult:
    """Deliver the model that `job.factory` makes.

    The factory is the training team's own code and is run here on purpose: this is the training
    side. It returns the model and its example inputs (a tuple), and maybe a dictionary of further
    arguments of `deliver`.
    """
    module, inputs, options = _make(job.factory, job.search_path)
    name = job.name or str(options.pop("name", "") or _default_name(job.factory))
    options.pop("name", None)
    lineage = options.pop("lineage", None) or lineage_from_git(job.search_path)
    stamped = replace(lineage, created=datetime.now(UTC).isoformat(timespec="seconds"))
    return deliver(module, inputs, job.folder, name=name, lineage=stamped, **options)


def _default_name(factory: str) -> str:
    module, _, function = factory.partition(":")
    chosen = module.rpartition(".")[2] if function in ("build", "make", "model") else function
    return chosen.lower().replace("_", "-")


def _make(factory: str, search_path: Path) -> tuple[nn.Module, Tensors, dict[str, Any]]:
    module_name, separator, attribute = factory.partition(":")
    if not (separator and module_name and attribute):
        raise _bad_factory("MODULE:FACTORY", factory, "Write it as examples.resnet18:build")
    sys.path.insert(0, str(search_path))
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except Exception as error:
        traceback.print_exc()
        raise _bad_factory(
            "a function that can be imported and called without arguments",
            _one_line(error),
            "Run it by hand to see why it fails; the module is looked for in this folder first",
        ) from error
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)):
        raise _bad_factory(
            "the model and a tuple of its example inputs", type(made).__name__,
            "Return (model, (x, ...)), and maybe a dictionary of further arguments",
        )  # fmt: skip
    inputs = made[1] if isinstance(made[1], (tuple, list)) else (made[1],)
    return made[0], tuple(inputs), dict(made[2]) if len(made) == 3 else {}


def _bad_factory(expected: str, got: str, remedy: str) -> UsageProblem:
    return UsageProblem("the factory can't be used", expected=expected, got=got, remedy=remedy)
