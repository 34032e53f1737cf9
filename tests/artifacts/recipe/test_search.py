"""What the words of a candidate stand for, alone and beside each other."""

from __future__ import annotations

import pytest

from handoff.artifacts.recipe.search import KNOBS, Search


def passes_of(candidate: str) -> list[str]:
    return [chosen.name for chosen in Search.variation(candidate).passes]


@pytest.mark.parametrize("word", ["int8", "int8-keep-25", "int8-sums"])
@pytest.mark.parametrize("candidate", ["channels-last+{}", "{}+channels-last"])
def test_int8_takes_pointwise_convolutions_as_they_are(word: str, candidate: str) -> None:
    assert "pointwise-to-linear" not in passes_of(candidate.format(word))
    assert {"channels-last", "squeeze-excite"} < set(passes_of(candidate.format(word)))


@pytest.mark.parametrize("beside", ["freezing", "bfloat16-between", "int8-dynamic"])
def test_where_convolutions_are_not_int8_pointwise_ones_become_linear(beside: str) -> None:
    # int8-dynamic is for linear layers: what convolutions compute stays float32.
    assert "pointwise-to-linear" in passes_of(f"channels-last+{beside}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_both_lower_precisions_have_a_word_for_products_and_one_for_all_between(dtype: str) -> None:
    products, between = (
        Search.variation(word).passes[0].parameters for word in (dtype, f"{dtype}-between")
    )
    assert products["dtype"] == between["dtype"] == dtype
    assert between["operators"] == f"{products['operators']},between"


def test_every_word_can_be_searched_for_and_another_is_reported() -> None:
    Search(candidates=tuple(KNOBS))
    with pytest.raises(ValueError, match="float16-between"):
        Search(candidates=("float17",))
