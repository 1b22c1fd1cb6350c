"""`fsck` finds what is wrong, names the row that it is in, and nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from tests.maintenance.damage import Sound
from tests.maintenance.planted import PLANTED, Planted


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("parts", [1, 4])
def test_a_sound_store_has_no_problems(sound: Sound, parts: int) -> None:
    assert sound.copy().problems(parts=parts) == []
    assert sound.copy().problems(parts=parts, realm="default") == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_corruption_is_found_and_its_row_named(sound: Sound, planted: Planted) -> None:
    store = sound.copy()
    key = planted.damage(store)
    problems = store.problems()
    assert (planted.kind, key) in {(problem.kind, problem.key) for problem in problems}, problems
