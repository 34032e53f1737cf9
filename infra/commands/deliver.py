"""What `handoff deliver` does: asks what nothing says, and prints the contract that it wrote."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.artifacts.record import to_plain
from handoff.infra.cli.group import is_quiet
from handoff.infra.commands.input_flags import ask_name, ask_values
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.engine.import_paths import search_path_for_children
from handoff.infra.home import absolute_path
from handoff.infra.terminal.console import fit_to_terminal, print_json, print_table
from handoff.infra.terminal.output import echo
from handoff.tasks.deliver.messages import DeliverJob, DeliverResult, PrepareJob
from handoff.tasks.deliver.naming import require_factory, require_free, require_name

_LOOKS_EVERY_S = 0.2
_SAY = "ranges={{'{0}': (LOW, HIGH)}}"


def deliver_model(factory: str, folder: Path, name: str, *, ask: bool, as_json: bool) -> None:
    """Write a delivery of the model that `factory` makes.

    With `ask`, a person is asked for the name, and for ranges that nothing says; each before the
    model is captured, which takes long.
    """
    destination, search_path = absolute_path(folder), Path.cwd()
    # Before a process imports torch, which takes seconds.
    require_factory(factory, search_path, search_path_for_children())
    require_free(destination)
    if name:
        require_name(name)
    asks, shows = ask and not as_json, not (as_json or is_quiet())
    with _open_process() as process:
        with _show_prints(process.log.with_name("printed")) as prints:
            prepare_job = PrepareJob(
                factory, search_path, destination, reads_ranges=asks, prints=prints
            )
            prepared = process.run(prepare_job)
        asks_name = asks and not (name or prepared.is_chosen)
        chosen = name or (ask_name(prepared.name) if asks_name else prepared.name)
        if shows:
            note = "" if name or asks_name else f" (the name comes from {prepared.named_by})"
            echo(f"{chosen}: delivering {factory}{note}")
        ranges = {spec.name: _ask_range(spec) for spec in prepared.guessed}
        job = DeliverJob(factory, search_path, destination, chosen, ranges)
        result = process.run(job)
    if as_json:
        print_json({"folder": str(result.folder), "contract": to_plain(result.contract),
                    "notes": list(result.notes)})  # fmt: skip
    elif shows:
        _print_result(result)
    else:
        echo(str(result.folder))


def _ask_range(spec: TensorSpec) -> tuple[float, ...]:
    why = spec.origin.partition(": ")[2] or "nothing tells"
    echo(f"{spec.name}: which numbers will be served? The example has {spec.values}, and "
               f"nothing else says so ({why})", err=True)  # fmt: skip
    answer = ask_values(spec)
    assert answer.low is not None
    assert answer.high is not None
    return answer.low, answer.high


def _print_result(result: DeliverResult) -> None:
    contract = result.contract
    echo(f"{contract.model.name}: delivered to {result.folder}, captured by "
               f"{contract.model.captured_by}")  # fmt: skip
    print_contract(contract)
    for note in result.notes:
        echo(f"  {fit_to_terminal(note, 2)}")


@contextmanager
def _show_prints(file: Path) -> Iterator[Path]:
    """Print on standard error what is written to `file` during the body: the factory's own output.

    An accuracy that a training script ends with is what its delivery is chosen by. With `--quiet`
    it isn't printed.
    """
    file.touch()
    ended = threading.Event()
    follower = threading.Thread(target=_follow, args=(file, ended), daemon=True)
    if not is_quiet():
        follower.start()
    try:
        yield file
    finally:
        ended.set()
        if follower.is_alive():
            follower.join()


def _follow(file: Path, ended: threading.Event) -> None:
    """Print the lines of a file that grows until `ended`, without their colours."""
    with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        rest = ""
        while True:
            is_last = ended.is_set()
            *complete, rest = (rest + lines.read()).split("\n")
            for line in [*complete, rest] if is_last and rest else complete:
                # A progress bar writes over its line: what is seen is what it wrote last.
                shown = line.rstrip("\r").rpartition("\r")[2]
                echo(click.unstyle(shown), err=True)
            if is_last:
                return
            ended.wait(_LOOKS_EVERY_S)


@contextmanager
def _open_process() -> Iterator[StepProcess]:
    """Give the process that runs the training side's own code, in its own environment, whole."""
    with tempfile.TemporaryDirectory(prefix="handoff-log-") as logs:
        process = StepProcess(ProcessPlan("deliver", sees="whole"), Path(logs) / "deliver.log")
        try:
            yield process
        finally:
            process.close()


def print_contract(contract: DeliveryContract) -> None:
    """Print the inputs as a table, and what is drawn where nothing was declared."""
    columns = ("input", "dtype", "sizes", "values", "values come from")
    rows = [_row(spec, contract.dimensions) for spec in contract.inputs]
    print_table("", columns, rows)
    for name, limits in contract.dimensions.items():
        came = f", {limits.origin}" if limits.origin else ""
        echo(f"  {name}: {limits}{came}")
    for line in _describe_draws(contract):
        echo(f"  {fit_to_terminal(line, 2)}")


def _row(spec: TensorSpec, dimensions: Mapping[str, Dimension]) -> tuple[str, ...]:
    return (
        spec.name,
        spec.dtype,
        _sizes(spec, dimensions),
        "true or false" if spec.dtype == "bool" else spec.values or "any",
        spec.origin or ("" if spec.low is None else "not recorded"),
    )


def _sizes(spec: TensorSpec, dimensions: Mapping[str, Dimension]) -> str:
    """Return the axes with the bounds of those that may change: `batch (1 to 1024) x 20`."""
    axes = [
        f"{axis} ({dimensions[axis]})"
        if isinstance(axis, str) else str(axis)
        for axis in spec.shape
    ]  # fmt: skip
    return " x ".join(axes) or "scalar"


def _describe_draws(contract: DeliveryContract) -> Iterator[str]:
    """Say what floating-point inputs are verified with, and how to say it better."""
    floats = [spec for spec in contract.inputs if spec.is_unlimited]
    if contract.draw == "examples":
        yield "packages will be compared on rows of the example, and not on random inputs"
    elif floats:
        names = ", ".join(spec.name for spec in floats)
        yield (
            f"verification will draw {names} from a standard normal distribution, with NaN, "
            f"infinities and very large numbers among them; pass {_SAY.format(floats[0].name)} to "
            "say which values are served, and only those are drawn"
        )
