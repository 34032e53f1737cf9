"""The JSON of operators that a package has called by name: what it may call, and where it lies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.serve.archive import (
    linked_library,
    operators_in,
    require_known_operators,
)


def naming(*operators: str) -> bytes:
    """Return a JSON that has these operators called."""
    nodes = [{"name": "buf0", "node": {"target": name, "inputs": []}} for name in operators]
    return json.dumps({"nodes": nodes}).encode()


def test_libtorchs_own_operators_may_be_called() -> None:
    data = naming("aten::linalg_inv_ex", "aten::bincount", "aten::index.Tensor", "aten::bincount")
    require_known_operators(data, "model.json")
    assert operators_in(data) == ("aten::linalg_inv_ex", "aten::bincount", "aten::index.Tensor")


@pytest.mark.parametrize(
    "operator",
    ["mine::run", "aten::from_file", "aten::from_file.out", "call_torchbind", "aten::", "::inv",
     "aten::inv.", "aten::inv;x", "xaten::inv", "aten::in v"],
)  # fmt: skip
def test_any_other_operator_is_refused_by_its_name(operator: str) -> None:
    with pytest.raises(PackageRefused, match="operators of libtorch alone"):
        require_known_operators(naming("aten::inverse", operator), "cpu-avx2/model.json")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"nodes": 1}', b'{"nodes": [{}]}',
                                  b'{"nodes": [{"node": {"target": 1}}]}'])  # fmt: skip
def test_what_is_no_list_of_operators_is_refused(data: bytes) -> None:
    with pytest.raises(PackageRefused, match="a list of operators in JSON"):
        require_known_operators(data, "model.json")


def test_the_two_lie_side_by_side_for_as_long_as_they_are_opened(tmp_path: Path) -> None:
    for name in ("library", "kernels"):
        (tmp_path / name).write_text(name)
    library, kernels = (os.open(tmp_path / name, os.O_RDONLY) for name in ("library", "kernels"))
    with linked_library(library, kernels) as path:
        assert Path(path).read_text() == "library"
        assert Path(path).with_suffix(".json").read_text() == "kernels"
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert not Path(path).parent.exists()
    os.close(library)
    os.close(kernels)
