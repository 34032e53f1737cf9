"""Requests are answered by as few calls as the contract allows, and each as if it were alone."""

from __future__ import annotations

import pytest
import torch

from examples.serving.batching import Answer, Batcher, answer
from handoff import InputsRefused, LoadedModel
from handoff.artifacts.serve.loader import load
from tests.tasks.built_release import ITEMS, BuiltRelease

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def model(built_release: BuiltRelease) -> LoadedModel:
    return load(built_release.folder, keys=built_release.key)


def request_of(rows: int) -> list[torch.Tensor]:
    return [torch.randint(ITEMS, (rows, 20)), torch.randn(rows, 64)]


def test_requests_of_other_rows_are_joined_up_to_the_contracts_bound(model: LoadedModel) -> None:
    requests = [request_of(rows) for rows in (1, 700, 3, 1400, 2)]
    answers = answer(model, requests)
    # At most 2048 rows go together.
    assert [one.rows for one in answers if isinstance(one, Answer)] == [704, 704, 704, 1402, 1402]
    for one, request in zip(answers, requests, strict=True):
        assert isinstance(one, Answer)
        torch.testing.assert_close(one.outputs[0], model(*request)[0])


def test_a_wrong_request_takes_no_other_with_it(model: LoadedModel) -> None:
    wrong, ragged, none = request_of(2), [request_of(1)[0], request_of(2)[1]], request_of(0)
    wrong[0][0, 0] = ITEMS
    answers = answer(model, [request_of(1), wrong, ragged, none, request_of(3)])
    assert [type(one) for one in answers] == [
        Answer, InputsRefused, InputsRefused, InputsRefused, Answer,
    ]  # fmt: skip


def test_a_batcher_answers_what_was_asked_before_it_is_closed(model: LoadedModel) -> None:
    batcher = Batcher(lambda: model, wait_s=0.05)
    asked = [batcher.ask(request_of(rows)) for rows in (1, 2, 3)]
    batcher.close()
    assert [future.result(0).rows for future in asked] == [6, 6, 6]
