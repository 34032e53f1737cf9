"""`handoff init`: gives a folder that `to_folder` wrote the contract that makes it a delivery."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from handoff.artifacts.delivery.contract import (
    CONTRACT_FILE,
    EXAMPLES_FILE,
    DeliveryContract,
    Lineage,
    ModelSection,
    format_contract,
)
from handoff.artifacts.delivery.signature import DECLARED, Dimension, TensorSpec
from handoff.artifacts.errors import UsageProblem, did_you_mean
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.record import to_plain
from handoff.infra.commands.input_flags import (
    ask_dimension,
    ask_input,
    ask_name,
    ask_values,
    format_spec,
    parse_dimension,
    parse_input,
    parse_range,
)
from handoff.infra.commands.release import require_folder
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo
from handoff.tasks.propose.messages import (
    InputProposal,
    ProposeJob,
    ProposeResult,
    TryJob,
    TryResult,
)

# So much of why a range was inferred goes into the contract.
_WHY_LENGTH = 200


@dataclass(frozen=True)
class InitOptions:
    """What the user said by flags; the rest is inferred, or asked on a terminal."""

    name: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    source: Lineage = field(default_factory=Lineage)
    extensions: tuple[str, ...] = ()


def read_init_options(
    recipe: Path | None,
    *,
    name: str,
    inputs: Sequence[str],
    dimensions: Sequence[str],
    ranges: Sequence[str],
    **lineage: str,
) -> InitOptions:
    """Return what the flags say; raise `UsageProblem` for one that can't be read."""
    for flag, text in {"name": name, **lineage}.items():
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageProblem(
                "that is no text", expected=f"UTF-8 in --{flag.replace('_', '-')}", got=text[:80],
                remedy="Write it in UTF-8",
            )  # fmt: skip
    return InitOptions(
        name=name,
        inputs=tuple(parse_input(text) for text in inputs),
        dimensions=dict(parse_dimension(text) for text in dimensions),
        ranges=dict(parse_range(text) for text in ranges),
        source=Lineage(**lineage),
        extensions=read_recipe(recipe).extensions if recipe else (),
    )


def init_delivery(
    folder: Path, options: InitOptions, *, ask: bool, force: bool, as_json: bool
) -> None:
    """Write the contract of the bare folder, once the model was seen to run as it declares.

    Raises `DeliveryUnreadable` for a folder that can't be read, `UsageProblem` where something
    isn't known and can't be asked.
    """
    folder = require_folder(folder)
    path = folder / CONTRACT_FILE
    if path.exists() and not force:
        raise UsageProblem(
            f"{folder.name} has a contract already", expected=f"a folder without {CONTRACT_FILE}",
            got=str(path), remedy="Add --force to replace it",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="handoff-init-") as scratch:
        staging = Path(scratch) / "staging"
        plan = ProcessPlan(
            "init", extensions=options.extensions, reads=(folder,), writes=(Path(scratch),)
        )
        process = StepProcess(plan, Path(scratch) / "init.log")
        try:
            job = ProposeJob(folder, staging, options.inputs, options.dimensions)
            proposal = process.run(job)
            contract = _make_contract(folder, options, proposal, ask=ask and not as_json)
            _require_running(process.run(TryJob(staging, contract)))
        finally:
            process.close()
    write_atomically(path, format_contract(contract), mode=0o644)
    if as_json:
        print_json({"contract": to_plain(contract), "file": str(path)})
    else:
        _print_result(folder, contract, proposal)


def _make_contract(
    folder: Path, options: InitOptions, proposal: ProposeResult, *, ask: bool
) -> DeliveryContract:
    """Return the contract of what was given, inferred and, with `ask`, answered."""
    names = [proposed.name for proposed in proposal.inputs]
    _require_used("--input", [spec.name for spec in options.inputs], names)
    _require_used("--range", options.ranges, names)
    name = options.name or _sanitize_name(folder.name)
    if ask and not options.name:
        name = ask_name(name)
    declared = {spec.name for spec in options.inputs}
    unknown = [proposed for proposed in proposal.inputs if proposed.name not in declared]
    if unknown and not proposal.ran and not ask:
        raise _unknown_inputs(unknown)
    specs = []
    for proposed in proposal.inputs:
        open_to_ask = ask and proposed.name not in declared
        spec = ask_input(proposed) if open_to_ask or proposed.spec is None else proposed.spec
        specs.append(_add_range(spec, options, proposed.why, ask=open_to_ask))
    axes = dict.fromkeys(a for spec in specs for a in spec.shape if isinstance(a, str))
    _require_used("--dimension", options.dimensions, axes)
    dimensions = {axis: _dimension(axis, options, proposal, ask=ask) for axis in axes}
    source = replace(options.source, created=datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        section = ModelSection(name, proposal.class_name)
        return DeliveryContract(section, tuple(specs), dimensions=dimensions, source=source)
    except ValueError as error:
        raise UsageProblem(
            "no contract can be written", expected="a name and inputs that fit", got=str(error),
            remedy="Say them with --name, --input and --range",
        ) from error  # fmt: skip


def _require_used(flag: str, given_names: Iterable[str], names: Iterable[str]) -> None:
    known = list(names)
    for name in given_names:
        if name not in known:
            raise UsageProblem(
                f"{flag} names something that isn't there",
                expected=f"one of {', '.join(known)}" if known else "none: there are no such",
                got=name,
                remedy=did_you_mean(name, known, "forward's arguments in module.py are the inputs, "
                                    "names in their shapes the dimensions"),
            )  # fmt: skip


def _unknown_inputs(unknown: Sequence[InputProposal]) -> UsageProblem:
    flags = " ".join(
        f"--input '{each.name}:{format_spec(each.spec) if each.spec else 'float32:batch,8'}'"
        for each in unknown
    )
    return UsageProblem(
        "nothing was found that the model runs on",
        expected="a flag with dtype and shape for each input that can't be inferred",
        got="none for " + "; ".join(f"{each.name} ({each.why})" for each in unknown),
        remedy=f"Add what they really take, such as {flags}",
    )


def _add_range(spec: TensorSpec, options: InitOptions, why: str, *, ask: bool) -> TensorSpec:
    """Return the input with its values, and where those come from."""
    if spec.name in options.ranges:
        low, high = options.ranges[spec.name]
        return replace(spec, low=low, high=high, origin=DECLARED)
    if ask and "int" in spec.dtype:
        return replace(ask_values(spec), origin=DECLARED)
    return spec if spec.low is None else replace(spec, origin=why[:_WHY_LENGTH])


def _dimension(axis: str, options: InitOptions, proposal: ProposeResult, *, ask: bool) -> Dimension:
    if axis in options.dimensions:
        return replace(options.dimensions[axis], origin=DECLARED)
    known = proposal.dimensions.get(axis, Dimension())
    if ask:
        return replace(ask_dimension(axis, known), origin=DECLARED)
    return replace(known, origin="seen to run" if axis in proposal.dimensions else "by default")


def _sanitize_name(folder: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("._-")[:63] or "model"


def _require_running(trial: TryResult) -> None:
    if trial.failures:
        raise UsageProblem(
            "the model doesn't run on inputs like these, and nothing was written",
            expected="a result at the smallest sizes and at larger ones",
            got=trial.failures[0],
            remedy="Say what it takes with --input, --dimension and --range",
        )


def _print_result(folder: Path, contract: DeliveryContract, proposal: ProposeResult) -> None:
    echo(f"{contract.model.name}: wrote {folder / CONTRACT_FILE}")
    whys = {proposed.name: proposed.why for proposed in proposal.inputs}
    for spec in contract.inputs:
        values = "" if spec.low is None else f", values {spec.low:g} to {spec.high:g}"
        echo(f"  {spec}{values}: {whys[spec.name]}")
    for name, limits in contract.dimensions.items():
        echo(f"  {name} from {limits}")
    goldens = "There are no golden outputs: only 'handoff deliver' writes them"
    if (folder / EXAMPLES_FILE).is_file():
        goldens = f"It is compared with the examples in {EXAMPLES_FILE}, too"
    echo(f"The model runs with that. {goldens}")
    if not contract.source.commit:
        echo("Nothing says where it comes from: --repository, --commit and --author would")
    echo(f"Next: handoff inspect {folder}")
