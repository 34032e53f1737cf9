"""Under load nothing fails and no answer is mixed while versions take over, and fail to.

`python -m tests.studies.following` is the long form.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import handoff
from handoff.tasks.follow import following
from tests.tasks.built_release import BuiltRelease
from tests.tasks.follow.load import loaded, spoilers
from tests.tasks.follow.versions import QUICK_PLAN, crashing_library, shelf_of
from tests.tasks.registry.registering import some_registry


@pytest.mark.compile
def test_eight_threads_get_whole_answers_over_take_overs_and_broken_releases(
    built_release: BuiltRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = some_registry(tmp_path)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", registry.stores.objects)
    monkeypatch.setattr(following, "_TRY_RELEASE_PLAN", QUICK_PLAN)
    shelf = shelf_of(registry, built_release)
    shelf.release(1.0)
    spoil = spoilers(shelf, crashing_library(tmp_path))
    options = {"keys": registry.stores.trusted[0], "every_s": 9999.0, "runners": 2}
    with (
        handoff.follow("toy@production", **options) as followed,  # type: ignore[arg-type]
        loaded(followed, shelf) as load,
    ):
        for number in range(2):
            good = shelf.release(number + 2.0)
            assert followed.look().version == good
            spoil[number](90.0 + number)
            assert followed.look().version == good
            assert followed.serves.error
    assert load.failed == []
    assert set(load.answered) == {1.0, 2.0, 3.0}
