"""Reads a staged delivery: rebuilds its module, and checks it against its code and contract.

The code of the rebuilt graph is compared with the delivered code: equality of both trees shows that
nothing was misread, whatever torch's writer of code may come to write in a later version.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.fx

from handoff.artifacts.delivery.contract import (
    CALIBRATION_FILE,
    CONTRACT_FILE,
    EXAMPLES_FILE,
    INIT_FILE,
    MODULE_FILE,
    SOURCES_FILE,
    STATE_FILE,
    DeliveryContract,
    read_contract,
)
from handoff.artifacts.delivery.metric import EVALUATION_FILE
from handoff.artifacts.release.evidence import Finding
from handoff.infra.engine.budget import memory_bytes
from handoff.tasks.intake.constant_limits import require_small
from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.examples import (
    ExampleCase,
    LabelledBatch,
    read_calibration,
    read_evaluation,
    read_examples,
)
from handoff.tasks.intake.files.sources import attach_sources
from handoff.tasks.intake.findings import gather_findings
from handoff.tasks.intake.module_source import ModuleSource
from handoff.tasks.intake.rebuild import rebuild
from handoff.tasks.intake.source import INIT_TEXT, read_source
from handoff.tasks.intake.string_arguments import replace_messages
from handoff.tasks.intake.values import MODULE
from handoff.tasks.optimize.operators import allowed_namespaces
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs


def check_round_trip(module: torch.fx.GraphModule, path: Path) -> None:
    """Raise `DeliveryUnreadable` unless `module` writes the forward that `path` holds."""
    check_same_forward(module, path.read_text(encoding="utf-8"))


def check_same_forward(module: torch.fx.GraphModule, text: str) -> None:
    """Raise `DeliveryUnreadable` unless `module` writes the forward that `text` holds."""
    delivered = _list_statements(ast.parse(text))
    rebuilt = _list_statements(ast.parse(module.graph.python_code("self").src))
    for line, statement in delivered:
        written = rebuilt.pop(0)[1] if rebuilt else "nothing"
        if statement != written:
            raise _refuse_line(statement, written, line)
    if rebuilt:
        raise _refuse_line("the end", rebuilt[0][1], 0)


def _refuse_line(delivered: str, written: str, line: int) -> Exception:
    return refuse(
        f"{MODULE} can't be rebuilt exactly",
        expected=f"a line that torch {torch.__version__} writes again as it stands",
        got=f"{delivered} against {written}",
        where=f"{MODULE}:{line}" if line else MODULE,
    )


def _list_statements(tree: ast.AST) -> list[tuple[int, str]]:
    """Return line and normal form of each statement of forward, its signature first."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    forward = functions[-1]
    for argument in forward.args.args:
        argument.annotation = None
    statements = [(forward.lineno, ast.unparse(forward.args))]
    for statement in forward.body:
        match statement:
            case ast.Assign(value=ast.Constant(value=None)):
                continue
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                unannotated: ast.stmt = ast.copy_location(ast.Assign([target], value), statement)
            case _:
                unannotated = statement
        statements.append((statement.lineno, ast.unparse(unannotated)))
    return statements


@dataclass(frozen=True)
class LoadedDelivery:
    """A delivery in memory: contract, module in evaluation mode, examples, what was noticed.

    `calibration` are batches of inputs as they are served, of the contract's shapes and dtypes in
    its order, `evaluation` further ones with labels, of which the contract's metric is computed;
    there may be none.
    """

    contract: DeliveryContract
    module: torch.fx.GraphModule
    cases: tuple[ExampleCase, ...]
    findings: tuple[Finding, ...]
    calibration: tuple[tuple[torch.Tensor, ...], ...] = ()
    evaluation: tuple[LabelledBatch, ...] = ()

    @property
    def rows(self) -> tuple[torch.Tensor, ...] | None:
        """The example's inputs where the contract wants further ones drawn from them, else None.

        They are of the contract's shapes and dtypes, in its order.
        """
        return self.cases[0].inputs if self.contract.draw == "examples" else None

    def draw(self, case: CaseSpec) -> tuple[torch.Tensor, ...]:
        """Return inputs for a case of the plan, as the contract wants them drawn.

        They are of its dtypes, and of its shapes at the case's sizes.
        """
        return draw_inputs(self.contract.signature, case, self.rows)


def read_delivery(staging: Path, namespaces: frozenset[str] | None = None) -> LoadedDelivery:
    """Return the delivery in `staging` as a graph module that was rebuilt, not executed.

    The module is in evaluation mode and needs no gradients; weights keep their dtype and their
    ties. Each node's `meta["module_line"]` is its line in module.py, and `meta["source_line"]` the
    line of the training side's code that made it, where the delivery says so. `namespaces` are
    those of `torch.ops` that the graph may call: without them torch's own, and those of the
    operator libraries that this process has loaded. Raises `DeliveryUnreadable` with a reason.
    """
    contract = read_contract(staging)
    _require_room(contract)
    allowed = allowed_namespaces() if namespaces is None else namespaces
    source = read_source(staging / MODULE_FILE, allowed)
    require_small(source)
    _check_files(staging, source)
    with _single_thread():
        rebuilt = rebuild(source, staging)
        findings = gather_findings(rebuilt, source)
    _check_and_clean(rebuilt.module, staging)
    _check_inputs(source, contract)
    cases = read_examples(staging, contract)
    _require_examples(contract, cases)
    calibration = read_calibration(staging, contract)
    evaluation = read_evaluation(staging, contract)
    attach_sources(rebuilt.module, staging / SOURCES_FILE)
    return LoadedDelivery(contract, rebuilt.module, cases, findings, calibration, evaluation)


def read_bare(staging: Path) -> tuple[ModuleSource, torch.fx.GraphModule]:
    """Return what module.py says and the rebuilt module of a folder that may lack a contract.

    Raises `DeliveryUnreadable` with a reason.
    """
    source = read_source(staging / MODULE_FILE, allowed_namespaces())
    require_small(source)
    with _single_thread():
        rebuilt = rebuild(source, staging)
    _check_and_clean(rebuilt.module, staging)
    return source, rebuilt.module


def _check_and_clean(module: torch.fx.GraphModule, staging: Path) -> None:
    """Compare the graph with the delivered code, then replace the messages of its assertions."""
    check_round_trip(module, staging / MODULE_FILE)
    replace_messages(module)


@contextlib.contextmanager
def _single_thread() -> Iterator[None]:
    """Let torch copy and compare with one thread, then with as many as before.

    Hundreds of short operations wait for each other's threads: 1.2 s instead of 0.1 s for a
    ResNet-18 where another process keeps one of two cores busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_files(staging: Path, source: ModuleSource) -> None:
    """Raise `DeliveryUnreadable` unless the files are those that module.py names."""
    if (staging / INIT_FILE).read_bytes().strip() != INIT_TEXT.encode():
        raise refuse(
            f"{INIT_FILE} is not what torch.fx writes",
            expected=INIT_TEXT,
            got="something else",
            where=INIT_FILE,
        )
    blobs = {f"{child.name}.pt" for child in source.children if child.layer is None}
    expected = blobs | {STATE_FILE, MODULE_FILE, INIT_FILE, CONTRACT_FILE}
    present = {path.name for path in staging.iterdir()} - {
        CALIBRATION_FILE, EVALUATION_FILE, EXAMPLES_FILE, SOURCES_FILE,
    }  # fmt: skip
    odd = sorted(expected ^ present)
    if odd:
        raise refuse(
            "the files are not those that module.py names",
            expected=f"{odd[0]} to be there" if odd[0] in expected else "no other files",
            got="no such file" if odd[0] in expected else odd[0],
            where=odd[0],
        )


def _check_inputs(source: ModuleSource, contract: DeliveryContract) -> None:
    """Raise `DeliveryUnreadable` unless the contract names forward's inputs, in their order.

    Inputs with a default may be left out at the end.
    """
    inputs = [step for step in source.steps if step.op == "placeholder"]
    names = [spec.name for spec in contract.inputs]
    defaults = inputs[len(names) :]
    if [str(step.target) for step in inputs[: len(names)]] != names or not all(
        step.args for step in defaults
    ):
        raise refuse(
            f"{CONTRACT_FILE} and module.py disagree on the inputs",
            expected=", ".join(str(step.target) for step in inputs) or "no inputs",
            got=", ".join(names) or "no inputs",
            where=CONTRACT_FILE,
            remedy="Name forward's inputs in delivery.toml, in their order",
        )


def _require_room(contract: DeliveryContract) -> None:
    """Raise `DeliveryUnreadable` for inputs that this machine can't hold at their smallest."""
    smallest = {name: limits.min for name, limits in contract.dimensions.items()}
    for spec in contract.inputs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        size_bytes = math.prod(spec.sizes(smallest)) * dtype.itemsize
        if size_bytes > memory_bytes():
            raise refuse(
                f"the input {spec.name} is larger than this machine's memory",
                expected=f"at most {memory_bytes()} bytes at its smallest sizes", got=size_bytes,
                where=CONTRACT_FILE, remedy="Fix the sizes in delivery.toml",
            )  # fmt: skip


def _require_examples(contract: DeliveryContract, cases: tuple[ExampleCase, ...]) -> None:
    if contract.draw == "examples" and not cases:
        raise refuse(
            f"{CONTRACT_FILE} wants inputs drawn from the examples",
            expected=f"example inputs in {EXAMPLES_FILE}",
            got="none",
            where=CONTRACT_FILE,
            remedy="Deliver with 'handoff deliver', or write draw = \"random\"",
        )
