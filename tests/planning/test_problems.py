"""A problem says four things; several become one error."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.planning.problems import PlanError, Problem, either, nearest, raise_if

ONE = Problem("storage.home.capacity_gib", "32 GiB", "64 to 524288 GiB", "set capacity_gib to 64")
TWO = Problem("storage.home.backup_days", "91 days", "0 to 90 days", "set backup_days to 90")


def test_a_problem_prints_as_one_line():
    assert str(ONE) == (
        "storage.home.capacity_gib: given 32 GiB; allowed 64 to 524288 GiB; fix: set capacity_gib to 64"
    )


def test_no_problem_raises_nothing():
    raise_if([])


def test_problems_come_together():
    with pytest.raises(PlanError) as caught:
        raise_if(problem for problem in (ONE, TWO))
    assert caught.value.problems == (ONE, TWO)
    assert str(caught.value).splitlines() == [str(ONE), str(TWO)]
    assert isinstance(caught.value, ValueError)


def test_the_error_survives_a_process_boundary():
    copy = pickle.loads(pickle.dumps(PlanError([ONE, TWO])))
    assert copy.problems == (ONE, TWO)


@pytest.mark.parametrize(
    ("value", "around"),
    [(5, (10,)), (10, (10,)), (15, (10, 20)), (25, (20, 30)), (30, (30,)), (99, (30,))],
)
def test_nearest(value: int, around: tuple[int, ...]):
    assert nearest(value, (30, 10, 20)) == around


@given(st.sets(st.integers(-50, 50), min_size=1), st.integers(-60, 60))
def test_nearest_brackets_and_leaves_nothing_between(legal: set[int], value: int):
    around = nearest(value, legal)
    assert set(around) <= legal
    if value in legal:
        assert around == (value,)
        return
    gap = range(min(around), max(around) + 1) if len(around) == 2 else ()
    assert set(gap) & legal <= set(around)
    assert len(around) == (min(legal) < value) + (max(legal) > value)


def test_either_reads_as_a_sentence():
    assert either([1]) == "1"
    assert either([1, 2]) == "1 or 2"
    assert either(["a", "b", "c"], last="and") == "a, b and c"
