"""The formats: what is written is read back as the same value, and what doesn't fit is reported."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.delivery.contract import (
    DeliveryContract,
    Lineage,
    ModelSection,
    Structure,
    format_contract,
    parse_contract,
    read_contract,
)
from handoff.artifacts.delivery.signature import DTYPES, Dimension, ModelSignature, TensorSpec
from handoff.artifacts.digest import Digest, digest_bytes, digest_file, digest_folder
from handoff.artifacts.errors import (
    ERRORS,
    DeliveryUnreadable,
    HandoffError,
    PackageRefused,
    UsageProblem,
    error_from_record,
)
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CpuTarget, Target, parse_target
from handoff.artifacts.record import RecordInvalid, canonical_bytes, from_plain, to_plain
from handoff.artifacts.release.manifest import PackageFile, parse_manifest
from tests.artifacts.samples import sample_manifest

GOLDEN = Path(__file__).parent.parent / "golden" / "manifest-1.json"

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=30)
limits = st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda p: Dimension(p[0], sum(p)))


@st.composite
def contracts(draw: st.DrawFn) -> DeliveryContract:
    dimensions = draw(st.dictionaries(identifiers, limits, max_size=3))
    axis = st.integers(0, 500)
    axes = st.one_of(axis, st.sampled_from(sorted(dimensions))) if dimensions else axis
    names = draw(st.lists(identifiers, min_size=1, max_size=4, unique=True))
    specs = tuple(
        TensorSpec(name, draw(st.sampled_from(DTYPES)), tuple(draw(st.lists(axes, max_size=4))))
        for name in names
    )
    return DeliveryContract(
        ModelSection("toy", draw(texts), draw(texts), draw(texts)),
        specs,
        dimensions=dimensions,
        source=Lineage(draw(texts), draw(texts), draw(texts), draw(texts), draw(texts)),
    )


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "two\nlines", "\u202eturned", "\x00", "\x7f", "\u200b"]
)
def test_a_contract_whose_text_can_not_be_shown_as_it_is_is_refused(text: str) -> None:
    spec = TensorSpec("x", "float32", (3,))
    for model, source, structure in (
        (ModelSection("toy", text), Lineage(), Structure()),
        (ModelSection("toy"), Lineage(author=text), Structure()),
        (ModelSection("toy"), Lineage(), Structure(inputs=(f"batch[{text}]",))),
    ):
        contract = DeliveryContract(model, (spec,), source=source, structure=structure)
        with pytest.raises(RecordInvalid, match="expected printable text") as caught:
            parse_contract(format_contract(contract))
        assert str(caught.value).isprintable()


@given(contracts())
def test_a_contract_reads_back_as_it_was_written(contract: DeliveryContract) -> None:
    assert parse_contract(format_contract(contract)) == contract


def test_a_contract_with_a_typing_error_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "delivery.toml").write_text("[model]\nname = 'toy'\n[[inputs]]\nname = 'x'\n")
    with pytest.raises(DeliveryUnreadable, match=r"inputs\[0\]\.dtype: expected a value"):
        read_contract(tmp_path)


@pytest.mark.parametrize("name", ["", "A", "m ", "m\u200b", "ｍ", "-m", "a/b", "m" * 64])
def test_a_name_that_a_registry_would_only_seem_to_take_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="model name"):
        ModelSection(name)


@dataclass(frozen=True)
class Inner:
    number: float
    target: CpuTarget | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: tuple[Inner, ...] = ()
    table: dict[str, int] = field(default_factory=dict)
    flag: bool = False
    place: Path = Path()


@given(
    st.builds(
        Outer,
        texts,
        st.lists(
            st.builds(Inner, st.floats(allow_nan=False), st.none() | st.just(CpuTarget("avx2"))),
            max_size=3,
        ).map(tuple),
        st.dictionaries(texts, st.integers(), max_size=3),
        st.booleans(),
    )
)
def test_a_record_comes_back_as_the_same_value(value: Outer) -> None:
    assert from_plain(Outer, to_plain(value)) == value


def test_a_number_that_is_none_survives_json() -> None:
    plain = to_plain(Inner(math.nan))
    assert plain["number"] == "nan"
    assert math.isnan(from_plain(Inner, plain).number)


@pytest.mark.parametrize(
    ("plain", "match"),
    [
        ({}, r"Outer\.name: expected a value, got nothing"),
        ({"name": 3}, r"Outer\.name: expected a string, got 3"),
        ({"name": "x", "extra": 1}, "expected no other keys than name, .*got 'extra'"),
        ({"name": "x", "inner": [{}]}, r"Outer\.inner\[0\]\.number: expected a value"),
        ({"name": "x", "inner": {}}, r"Outer\.inner: expected a list"),
        ({"name": "x", "table": {"a": True}}, r"Outer\.table\.a: expected a whole number"),
        ({"name": "x", "flag": 1}, r"Outer\.flag: expected true or false"),
        ([], "Outer: expected a table"),
    ],
)
def test_a_plain_value_of_another_shape_is_told_with_its_place(plain: object, match: str) -> None:
    with pytest.raises(RecordInvalid, match=match):
        from_plain(Outer, plain)


def test_a_manifest_reads_back_and_has_one_form() -> None:
    manifest = sample_manifest()
    again = parse_manifest(manifest.to_bytes())
    assert again == manifest
    assert again.digest == manifest.digest
    assert replace(manifest, created="later").digest != manifest.digest


def test_a_manifest_of_schema_1_is_still_read(request: pytest.FixtureRequest) -> None:
    # Written once and kept: packages in the field were released with manifests like it.
    data = GOLDEN.read_bytes()
    manifest = parse_manifest(data)
    assert manifest.schema == 1
    assert manifest.to_bytes() == data


def test_a_capture_table_is_read_and_written_as_the_first_version_signed_it() -> None:
    plain = parse_json(GOLDEN.read_bytes())
    row = {"road": "torch.export", "captured": True, "tried": 3, "max_abs": 1e-7}
    data = canonical_bytes({**plain, "captures": [row]})
    manifest = parse_manifest(data)
    assert manifest.captures[0].method == "torch.export"
    assert b'"road":"torch.export"' in manifest.to_bytes()


@given(st.binary(max_size=200))
def test_what_is_no_manifest_is_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(PackageRefused, match="release record can't be read"):
        parse_manifest(data)


def test_a_manifest_of_a_later_schema_is_refused() -> None:
    later = sample_manifest().to_bytes().replace(b'"schema":1', b'"schema":2')
    with pytest.raises(PackageRefused, match="a newer Handoff may read it"):
        parse_manifest(later)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a\\b", "./a"])
def test_a_path_that_leaves_the_release_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        PackageFile(path, digest_bytes(b""), 0)


def test_a_folders_digest_is_what_sha256sum_would_give(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"2")
    lines = f"{digest_bytes(b'1').hex}  a\n{digest_bytes(b'2').hex}  sub/b\n"
    assert digest_folder(tmp_path) == digest_bytes(lines.encode())
    assert digest_file(tmp_path / "a") == digest_bytes(b"1")


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "g" * 64, "md5:" + "0" * 32])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        Digest(text)


@pytest.mark.parametrize("kind", ERRORS.values())
def test_an_error_is_the_same_after_a_journey(kind: type[HandoffError]) -> None:
    error = kind("a thing failed", expected="x", got="y", remedy="do z", where="module.py:3")
    again = error_from_record(error.as_record())
    assert type(again) is kind
    assert str(again) == "module.py:3: a thing failed: expected x, got y. Do z"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("targets = []", "at least one target"),
        ("targets = ['gpu']", "expected a target among cpu"),
        ("[options]\nfreezing = 1", "to be true or false"),
        ("[options]\ncxx = 'sh'", "expected options among"),
        ("[tolerance.float32]\natol = -1.0", "atol to be a finite number"),
        ('[tolerance."8 bits"]\natol = 1.0', "expected an identifier as a dtype or an output"),
        ("[verify]\nseeds = 0", "1 to 100 seeds"),
        ("speed = 3", "no other keys"),
        ("targets = ", "Invalid value"),
    ],
)
def test_a_wrong_recipe_is_told(text: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(UsageProblem, match=match):
        read_recipe(path)


def test_a_tolerance_that_float32_cannot_hold_is_told_when_the_recipe_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[tolerance.float32]\nrtol = 1e-9\n")
    with pytest.raises(UsageProblem, match=r"an rtol of at least 6.0e-08.*got rtol = 1e-09"):
        read_recipe(path)
    path.write_text("[tolerance.float32]\nrtol = 1e-7\n[tolerance.float64]\nrtol = 1e-9\n")
    assert read_recipe(path).tolerance_for("float32").rtol == 1e-7


def test_the_recipe_that_the_documents_show_is_the_default(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text()
    block = page.split("This is the default:")[1].split("```toml\n")[1].split("```")[0]
    path = tmp_path / "recipe.toml"
    path.write_text(block)
    shown = read_recipe(path)
    assert replace(shown, tolerance={}) == Recipe()
    assert shown.tolerance_for("float32") == Recipe().tolerance_for("float32")


def test_cpu_is_the_best_level_of_this_machine_and_built_once() -> None:
    native = parse_target("cpu")
    assert parse_target(native.slug) == native
    assert Recipe(targets=("cpu", native.slug)).resolved_targets() == (native,)


def test_dimensions_are_measured_and_inputs_have_to_agree() -> None:
    shape = ("batch", 3)
    signature = ModelSignature(
        (TensorSpec("a", "float32", shape), TensorSpec("b", "float32", shape)),
        (),
        {"batch": Dimension(2, 8)},
    )
    assert signature.measure({"a": (4, 3), "b": (4, 3)}) == {"batch": 4}
    for shapes, match in (
        ({"a": (4, 3), "b": (5, 3)}, "batch = 4 as in another input"),
        ({"a": (9, 3), "b": (9, 3)}, "batch from 2 to 8, got 9"),
        ({"a": (4, 2), "b": (4, 3)}, r"a: expected shape \['batch', 3\]"),
        ({"a": (4,), "b": (4, 3)}, "a: expected shape"),
    ):
        with pytest.raises(ValueError, match=match):
            signature.measure(shapes)


@dataclass(frozen=True)
class Held:
    target: Target


def test_machine_code_for_a_gpu_fits_its_capability_and_later_minor_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = Fit((), "2.15.0", platform.machine(), gpu_capability=80)
    for here, fits in (
        ((80,), True),
        ((75, 86), True),
        ((90,), False),
        ((75,), False),
        ((), False),
    ):
        monkeypatch.setattr(
            "handoff.artifacts.recipe.compatibility.host_gpu_capabilities", lambda here=here: here
        )
        misfit = fit.misfit("2.15.0+cu130")
        assert (misfit is None) == fits
        assert fits or "compute capability 8.0 (or a later 8.x)" in str(misfit)


def test_a_gpu_target_is_read_back_as_one() -> None:
    target = parse_target("cuda-sm90")
    assert from_plain(Held, to_plain(Held(target))) == Held(target)
    assert target.slug == "cuda-sm90"
