"""The delivery: a folder that `torch.fx.GraphModule.to_folder` wrote, its contract, its examples.

    delivery.toml          the contract: who, from what commit, which inputs and ranges
    examples.safetensors   example inputs and what the original module made of them
    calibration.safetensors   inputs as they are served, by which int8 chooses its ranges; may lack
    evaluation.safetensors   samples with their labels, by which a metric is measured; may lack
    sources.json           for each node of the graph the line of the model's code that made it
    module.py, __init__.py, state_dict.pt, <child>.pt ...   exactly as `to_folder` wrote them

`examples.safetensors` names its tensors `<case>/inputs/<input name>` and `<case>/outputs/<index>`;
cases are numbered from 0, and case 0 is the example that the module was traced with.
`calibration.safetensors` names its tensors in the same way, and holds inputs alone;
`evaluation.safetensors` has beside them `<case>/labels`, with a row for each of the inputs'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from handoff.artifacts.delivery.metric import Metric
from handoff.artifacts.delivery.result import ResultForm, parse_result
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.errors import DeliveryUnreadable, parse_message
from handoff.artifacts.files.strict_parsing import parse_toml
from handoff.artifacts.printable import one_line
from handoff.artifacts.record import RecordInvalid, added_field, from_plain, to_plain

CONTRACT_FILE = "delivery.toml"
EXAMPLES_FILE = "examples.safetensors"
CALIBRATION_FILE = "calibration.safetensors"
CALIBRATION_BATCHES = 256
CALIBRATION_BYTES = 1 << 30
SOURCES_FILE = "sources.json"
MODULE_FILE = "module.py"
INIT_FILE = "__init__.py"
STATE_FILE = "state_dict.pt"
# What Python may leave beside the code; no part of a delivery.
IGNORED_FOLDER = "__pycache__"
FORMAT = 1
Draw = Literal["random", "examples"]
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ALIAS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
# MLflow keeps these for itself: `models:/toy@latest`, and versions by number.
_RESERVED_ALIAS = re.compile(r"latest|v[0-9]+", re.IGNORECASE)
# fx's `to_folder` writes `torch.load(r'FOLDER/NAME.pt')`.
_FOLDER = re.compile(rb"(?<=torch\.load\(r')[^'\n]*/")


def code_without_folder(code: bytes) -> bytes:
    """Return a delivery's code without the names of the folder that it was written to.

    That is another one each time, and says nothing of what the code computes.
    """
    return _FOLDER.sub(b"", code)


def require_model_name(name: str) -> None:
    """Raise `ValueError` unless `name` is a model name that every store and registry can hold."""
    if not _MODEL_NAME.fullmatch(name):
        raise ValueError(
            "expected a model name of at most 63 lower-case letters, digits, '.', '_' and '-', "
            f"beginning with a letter or digit, got {name[:80]!r}"
        )


def require_alias_name(alias: str) -> None:
    """Raise `ValueError` unless `alias` is a name that every store and registry can hold."""
    if not _ALIAS_NAME.fullmatch(alias) or _RESERVED_ALIAS.fullmatch(alias):
        raise ValueError(
            "expected an alias of at most 63 letters, digits, '_' and '-', beginning with a "
            f"letter, and neither 'latest' nor 'v' with a number, got {alias[:80]!r}"
        )


@dataclass(frozen=True)
class ModelSection:
    """Which model this is: its name in the registry, its class, what captured it, which torch."""

    name: str
    class_name: str = ""
    torch: str = ""
    captured_by: str = ""

    def __post_init__(self) -> None:
        """Check the name."""
        require_model_name(self.name)


# What follows a commit with changes on top that weren't committed.
DIRTY = "-dirty"


@dataclass(frozen=True)
class Lineage:
    """Where the model comes from; every field is what the training side said, and may be empty."""

    repository: str = ""
    commit: str = ""
    training_run: str = ""
    author: str = ""
    created: str = ""

    def short_commit(self, digits: int = 12) -> str:
        """Return the commit as lists show it: so many digits, and what marks changes on top."""
        plain, mark, _ = self.commit.partition(DIRTY)
        return plain[:digits] + mark

    def merge(self, declared: Lineage) -> Lineage:
        """Return this with what `declared` adds; raise `ValueError` where it names another commit.

        Of two forms of one commit the longer one counts; all else that is there already stays.
        """
        for one, other in ((self.commit, declared.commit), (declared.commit, self.commit)):
            if not one.startswith(other) and not other.startswith(one):
                raise ValueError(f"expected commit {declared.commit[:80]}, got {self.commit[:80]}")
        filled = {
            field.name: getattr(self, field.name) or getattr(declared, field.name)
            for field in fields(self)
        }
        return Lineage(**{**filled, "commit": max(self.commit, declared.commit, key=len)})


NO_LINEAGE = Lineage()


@dataclass(frozen=True)
class Structure:
    """Where the flat inputs and outputs belong in the original model's call and result.

    `inputs` are paths such as `batch['user'][0]`, `outputs` such as `['logits']`, in the order of
    the flat ones; they are empty where forward takes and gives its tensors one by one. `fixed` are
    arguments that are no tensors, with the values that the capture has fixed. `losses` are tensors
    of the original's result that no package gives. `result` is the form of that result, empty
    where it is a tensor or a tuple of tensors (`parse_result`).
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    losses: tuple[str, ...] = added_field(())
    result: str = added_field("")

    def __post_init__(self) -> None:
        """Check that the result can be read, and has the outputs that are named."""
        if self.result:
            count = parse_result(self.result).tensors
            if self.outputs and count != len(self.outputs):
                raise ValueError(
                    f"expected a result of {len(self.outputs)} tensors, as outputs names them, "
                    f"got {count}"
                )

    def form_of(self, count: int) -> ResultForm | None:
        """Return the form of a result of `count` outputs; None where they are given one by one."""
        form = parse_result(self.result) if self.result else None
        return form if form and form.tensors == count else None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs' paths as identifiers: `['logits']` is `logits`."""
        return identifiers(self.outputs)

    def names_of(self, count: int) -> tuple[str, ...]:
        """Return what `count` outputs are called: by their paths, or by their places."""
        names = self.output_names
        return names if len(names) == count else tuple(f"output{place}" for place in range(count))


NO_STRUCTURE = Structure()


def identifiers(paths: Sequence[str]) -> tuple[str, ...]:
    """Give each path an identifier of its own: `batch['user'][0]` becomes `batch_user_0`."""
    taken: dict[str, None] = {}
    for path in paths:
        plain = _NOT_A_NAME.sub("_", path).strip("_")[:90]
        first = plain if plain and not plain[0].isdigit() else f"value_{plain}".rstrip("_")
        name, number = first, 1
        while name in taken:
            number += 1
            name = f"{first}_{number}"
        taken[name] = None
    return tuple(taken)


@dataclass(frozen=True)
class DeliveryContract:
    """The contents of `delivery.toml`.

    `draw` says where further inputs come from: random draws within the declared ranges, or rows of
    the example, for a model that doesn't run on anything else. `batch_invariant` is false for a
    model whose output for one row depends on the other rows on purpose. `left_out` lists what of
    the original is not in the graph, `metric` what is to be computed of the evaluation.
    """

    model: ModelSection
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    source: Lineage = Lineage()
    structure: Structure = NO_STRUCTURE
    draw: Draw = "random"
    batch_invariant: bool = True
    format: int = FORMAT
    left_out: tuple[str, ...] = added_field(())
    metric: Metric | None = added_field(None)

    def __post_init__(self) -> None:
        """Check the format number and the signature."""
        if self.format != FORMAT:
            raise ValueError(f"expected format {FORMAT}, got {self.format}")
        ModelSignature(self.inputs, self.outputs, self.dimensions)

    @property
    def signature(self) -> ModelSignature:
        """The inputs, outputs and dynamic dimensions as one value."""
        return ModelSignature(self.inputs, self.outputs, self.dimensions)

    def metric_output_index(self, count: int) -> int | None:
        """Return which of `count` outputs the metric is of; None where there is no metric.

        Raises `DeliveryUnreadable` where it is of one that there isn't.
        """
        if self.metric is None:
            return None
        try:
            return self.metric.place(self.structure.names_of(count))
        except ValueError as error:
            raise DeliveryUnreadable(
                f"the metric {self.metric.name} is of an output that the model doesn't have",
                expected=f"one of {', '.join(self.structure.names_of(count))}",
                got=one_line(self.metric.output)[:60], where=CONTRACT_FILE,
                remedy="Fix the output under [metric] in delivery.toml, or leave it out",
            ) from error  # fmt: skip


def read_contract(folder: Path) -> DeliveryContract:
    """Return the contract of the delivery in `folder`; raise `DeliveryUnreadable` with a reason."""
    path = folder / CONTRACT_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DeliveryUnreadable(
            f"{folder} has no contract",
            expected=f"a file {CONTRACT_FILE} beside module.py",
            got="none",
            remedy="'handoff init FOLDER' writes one, 'handoff deliver' always does",
        ) from None
    except OSError as error:
        raise DeliveryUnreadable(
            f"{path} can't be read", expected="a UTF-8 text file", got=error.strerror or str(error),
            remedy="Deliver the model again",
        ) from error  # fmt: skip
    try:
        return parse_contract(data)
    except RecordInvalid as error:
        place, expected, got = parse_message(str(error))
        key = place.removeprefix(CONTRACT_FILE).lstrip(".")
        raise DeliveryUnreadable(
            f"{CONTRACT_FILE} is not a delivery contract" + (f", at {key}" if key else ""),
            expected=expected or "the keys that 'handoff deliver' writes",
            got=got,
            remedy="Fix that line, or deliver the model again",
            where=str(path),
        ) from error


def parse_contract(text: str | bytes) -> DeliveryContract:
    """Return the contract that `text` (TOML) holds; raise `RecordInvalid` for anything else."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", errors="surrogatepass")
    plain = parse_toml(data)
    _require_printable(plain, CONTRACT_FILE)
    return from_plain(DeliveryContract, plain, where=CONTRACT_FILE)


def _require_printable(value: object, where: str) -> None:
    """Raise `RecordInvalid` for a text that can't be shown on one line as it is.

    Authors, commits and paths are printed by terminals and registries; none of them has a use for
    a control character, an escape sequence or a mark that turns the direction of writing.
    """
    if isinstance(value, str) and one_line(value) != value:
        raise RecordInvalid(
            f"{where}: expected printable text on one line, got {one_line(value)[:80]}"
        )
    if isinstance(value, dict):
        for key, item in value.items():
            _require_printable(key, where)
            _require_printable(item, f"{where}.{key}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _require_printable(item, f"{where}[{index}]")


def format_contract(contract: DeliveryContract) -> str:
    """Return the contract as TOML that `parse_contract` reads back as the same value."""
    plain = to_plain(contract)
    heads = ("format", "draw", "batch_invariant", "left_out")
    lines = _format_pairs({key: plain[key] for key in heads if key in plain})
    for section in ("model", "source"):
        lines += ["", f"[{section}]", *_format_pairs(plain[section])]
    if contract.structure != NO_STRUCTURE:
        lines += ["", "[structure]", *_format_pairs(plain["structure"])]
    if contract.metric:
        lines += ["", "[metric]", *_format_pairs(plain["metric"])]
    for section in ("inputs", "outputs"):
        for spec in plain[section]:
            lines += ["", f"[[{section}]]", *_format_pairs(spec)]
    for name, limits in plain["dimensions"].items():
        lines += ["", f"[dimensions.{name}]", *_format_pairs(limits)]
    return "\n".join(lines) + "\n"


def _format_pairs(table: dict[str, object]) -> list[str]:
    return [f"{key} = {_format_value(value)}" for key, value in table.items() if value is not None]


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    # A JSON string, number or boolean is one of TOML as well, but for the delete character,
    # which JSON leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
