"""What is wrong with a plan, and what would be right.

Checks return problems instead of raising, so that one run reports everything; `raise_if` turns
them into one error at the edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One value that AWS would refuse.

    `path` is the dotted path in the deployment file, `given` what stands there, `allowed` the legal
    values nearest to it with the reason, `fix` what to write instead. None of the four is empty.
    """

    path: str
    given: str
    allowed: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: given {self.given}; allowed {self.allowed}; fix: {self.fix}"


class PlanError(ValueError):
    """A plan that cannot be deployed; `problems` says why, `str()` prints one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def raise_if(problems: Iterable[Problem]) -> None:
    """Raise `PlanError` when there is any problem; return when there is none."""
    found = tuple(problems)
    if found:
        raise PlanError(found)


def nearest(value: int, legal: Iterable[int]) -> tuple[int, ...]:
    """The legal values around an illegal one: the one below and the one above, where they exist.

    A value that is legal itself is returned alone.
    """
    ladder = sorted(legal)
    if value in ladder:
        return (value,)
    below = [step for step in ladder if step < value][-1:]
    above = [step for step in ladder if step > value][:1]
    return (*below, *above)


def either(values: Sequence[object], *, last: str = "or") -> str:
    """Values as a sentence lists them: `1`, `1 or 2`, `1, 2 or 3`."""
    words = [str(value) for value in values]
    head, tail = ", ".join(words[:-1]), words[-1]
    return f"{head} {last} {tail}" if head else tail
