"""A model repository for Triton: read by protobuf, opened as its backend opens, moved back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from torch._C import _aoti

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.errors import PackageRefused, UsageProblem
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.serve.triton import model_config
from tests.artifacts.recipe.gpu_generations import BOTH, for_gpus
from tests.artifacts.samples import sample_target, write_release
from tests.artifacts.serve.triton_schema import read_config
from tests.tasks.built_release import BuiltRelease
from tests.tasks.follow.versions import Shelf, shelf_of
from tests.tasks.registry.registering import some_registry


@pytest.fixture
def shelf(tmp_path: Path, built_release: BuiltRelease) -> Shelf:
    """A registry of two versions, of which the second is in production."""
    made = shelf_of(some_registry(tmp_path), built_release)
    made.release(1.0)
    made.release(2.0)
    return made


@pytest.mark.compile
def test_a_repository_is_what_the_backend_opens_and_a_roll_back_is_one_file(
    shelf: Shelf, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    for reference, version, factor in (("production", 2, 2.0), (1, 1, 1.0), (2, 2, 2.0)):
        result = shelf.registry.pull(repository, reference, layout="triton")
        config = read_config((repository / "toy" / "config.pbtxt").read_text())
        assert list(config.version_policy.specific.versions) == [version] == [result.version]
        assert result.folder == repository / "toy" / str(version)
        # As src/pt2/model_state.cc opens it: by this path, as "model", for several threads.
        package = repository / config.name / str(version) / config.default_model_filename
        loader = _aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
        (scores,) = loader.run(list(shelf.call))
        assert shelf.factor_of(scores) == factor
        takes, _ = (json.loads(spec) for spec in loader.get_call_spec())
        arguments = takes[1]["children_spec"][0]["children_spec"]
        assert len(arguments) == len(config.input) == 2
    assert sorted(path.name for path in (repository / "toy").iterdir()) == [
        "1",
        "2",
        "config.pbtxt",
    ]


@pytest.mark.compile
def test_a_version_that_was_changed_in_the_repository_isnt_served(
    shelf: Shelf, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shelf.registry.pull(repository, 1, layout="triton")
    config = (repository / "toy" / "config.pbtxt").read_bytes()
    (repository / "toy" / "2").mkdir(mode=0o755)
    (repository / "toy" / "2" / "model.pt2").write_bytes(b"another")
    with pytest.raises(PackageRefused, match=r"model\.pt2 is not the file that was released"):
        shelf.registry.pull(repository, 2, layout="triton")
    assert (repository / "toy" / "config.pbtxt").read_bytes() == config


def written(tmp_path: Path, *inputs: TensorSpec, slug: str = "cpu-avx2") -> str:
    manifest: Manifest = write_release(tmp_path / "release", sample_target(slug))
    dimensions = {"rows": Dimension(1, 64), "length": Dimension(2, 128)}
    outputs = (TensorSpec("scores", "float32", ("rows", 3)),)
    signature = ModelSignature(inputs, outputs, dimensions)
    made = replace(manifest, signature=signature)
    return model_config(made, made.targets[0], 7)


def test_a_configuration_says_what_the_contract_says(tmp_path: Path) -> None:
    inputs = (
        TensorSpec("ids", "int64", ("rows", "length"), low=0, high=999),
        TensorSpec("mask", "bool", ("rows", 4)),
        TensorSpec("image", "float16", (1, 3)),
    )
    text = written(tmp_path, *inputs, slug="cuda-sm90")
    config = read_config(text)
    assert (config.name, config.backend, config.platform) == ("toy", "pytorch", "torch_aoti")
    tensors = [(one.name, config.DESCRIPTOR.file.enum_types_by_name["DataType"]
             .values_by_number[one.data_type].name, list(one.dims))
            for one in (*config.input, *config.output)]  # fmt: skip
    assert tensors == [
        ("INPUT__0", "TYPE_INT64", [-1, -1]), ("INPUT__1", "TYPE_BOOL", [-1, 4]),
        ("INPUT__2", "TYPE_FP16", [1, 3]), ("OUTPUT__0", "TYPE_FP32", [-1, 3]),
    ]  # fmt: skip
    assert config.max_batch_size == 0
    assert [(one.count, one.kind) for one in config.instance_group] == [(1, 1)]
    assert "# ids; rows 1 to 64; length 2 to 128; values 0 to 999" in text


@pytest.mark.parametrize(
    "spec",
    [TensorSpec("x", "bfloat16", ("rows", 3)), TensorSpec("x", "float32", ()),
     TensorSpec("x", "float32", ("rows", 0))],
)  # fmt: skip
def test_what_the_backend_doesnt_take_is_refused(tmp_path: Path, spec: TensorSpec) -> None:
    with pytest.raises(UsageProblem, match="can't be served by Triton's pytorch backend"):
        written(tmp_path, spec)


def test_the_reader_refuses_what_the_servers_would() -> None:
    for wrong in ('inputs [ { name: "x" } ]', 'input [ { dims: [ "x" ] } ]',
                  "input [ { data_type: TYPE_FLOAT } ]"):  # fmt: skip
        with pytest.raises(text_format.ParseError):
            read_config(wrong)


def test_a_package_for_several_gpus_is_served_from_the_model_s_folder(tmp_path: Path) -> None:
    """No folder of a target's is left, whose name would have a `+`."""
    made = some_registry(tmp_path)
    manifest = replace(write_release(made.root / "one", for_gpus(80, 90)), created="2026-11-22")
    (made.root / "one" / "manifest.json").write_bytes(manifest.to_bytes())
    made.register(manifest, made.root / "one")
    repository = tmp_path / "repository"
    made.pull(repository, target=BOTH, layout="triton")
    left = {path.name for path in (repository / "toy" / "1").iterdir()}
    assert left == {"model.pt2", "manifest.json", "release.dsse.json"}
    config = read_config((repository / "toy" / "config.pbtxt").read_text())
    assert [one.kind for one in config.instance_group] == [1], "KIND_GPU"
