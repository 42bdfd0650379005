"""Figures of merit: trajectories in metres, 3D boxes by average precision, answers by exact match.

Each part holds sums over what it was given, so parts add up (`+`) over batches and ranks to what one process
would have found. Nothing here asks a model or a group of processes for anything.

Boxes are scored as in nuScenes: a prediction is right when a true box of its class, not yet taken by a more
confident one of the same sample, has its centre nearer than the threshold on the ground plane. Average
precision is the area under precision over recall where both exceed 10 %, scaled to [0, 1], averaged over
`THRESHOLDS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from trainer.heads import constant_velocity

THRESHOLDS = (0.5, 1.0, 2.0, 4.0)  # metres between centres
MISS = 2.0  # metres off at the end from which a trajectory is a miss
_RECALLS = np.linspace(0, 1, 101)
_FLOOR = 0.1  # recall and precision below count nothing


def ratio(total: float, count: float) -> float | None:
    """A mean; None of nothing."""
    return total / count if count else None


@dataclass
class Displacement:
    """Distance of predicted from true places, summed over labelled samples: mean over time, at the end."""

    samples: int = 0
    average: float = 0.0
    final: float = 0.0
    misses: int = 0

    def add(self, guess: Tensor, truth: Tensor, mask: Tensor) -> None:
        """Trajectories [B, T, 2 or more], x and y first, of which `mask` [B] says which are labelled."""
        offset = (guess[mask][..., :2].double() - truth[mask][..., :2].double()).cpu()
        distance = offset.square().sum(-1).sqrt()
        self.samples += len(distance)
        self.average += float(distance.mean(-1).sum())
        self.final += float(distance[:, -1].sum())
        self.misses += int((distance[:, -1] > MISS).sum())

    def __add__(self, other: Displacement) -> Displacement:
        return Displacement(
            self.samples + other.samples,
            self.average + other.average,
            self.final + other.final,
            self.misses + other.misses,
        )

    def result(self) -> dict[str, float | None]:
        """`ade`, `fde` in metres and `miss_rate`, the share with a final displacement over 2 m."""
        totals = {"ade": self.average, "fde": self.final, "miss_rate": self.misses}
        return {name: ratio(total, self.samples) for name, total in totals.items()}


@dataclass
class Detection:
    """Scored boxes: the score of each, at which thresholds it was right, and how many true ones there are.

    Rows of all samples are kept: precision needs one order of scores over all of them.
    """

    classes: int
    scores: list[np.ndarray] = field(default_factory=list)  # [n] float32
    kinds: list[np.ndarray] = field(default_factory=list)  # [n] class
    right: list[np.ndarray] = field(default_factory=list)  # [n, thresholds] bool
    truths: Counter[int] = field(default_factory=Counter)  # by class

    def add(self, guess: Tensor, truth: Tensor, mask: Tensor) -> None:
        """`guess` [B, Q, 9] (…, class, score), `truth` [B, K, 8], `mask` [B, K].

        A sample without true boxes is not labelled for detection, as in the loss, and is left out.
        """
        for ours, theirs, real in zip(
            guess.float().cpu().numpy(), truth.float().cpu().numpy(), mask.cpu().numpy(), strict=True
        ):
            if real.any():
                self._sample(ours, theirs[real])

    def _sample(self, guess: np.ndarray, truth: np.ndarray) -> None:
        guess = guess[np.argsort(-guess[:, 8], kind="stable")]
        distance = np.linalg.norm(guess[:, None, :2] - truth[None, :, :2], axis=-1)
        distance[guess[:, None, 7] != truth[None, :, 7]] = np.inf
        right = np.zeros((len(guess), len(THRESHOLDS)), bool)
        for column, threshold in enumerate(THRESHOLDS):
            free = np.ones(len(truth), bool)
            for row in range(len(guess)):
                nearest = int(np.where(free, distance[row], np.inf).argmin())
                if free[nearest] and distance[row, nearest] < threshold:
                    right[row, column], free[nearest] = True, False
        self.scores.append(guess[:, 8].astype(np.float32))
        self.kinds.append(guess[:, 7].astype(np.int64))
        self.right.append(right)
        self.truths.update(truth[:, 7].astype(int).tolist())

    def __add__(self, other: Detection) -> Detection:
        return Detection(
            self.classes,
            self.scores + other.scores,
            self.kinds + other.kinds,
            self.right + other.right,
            self.truths + other.truths,
        )

    def result(self) -> dict[str, object]:
        """`map`: mean over classes that occur; `ap` by class (None: does not occur), `ap_at` by threshold."""
        scores = np.concatenate(self.scores) if self.scores else np.zeros(0, np.float32)
        kinds = np.concatenate(self.kinds) if self.kinds else np.zeros(0, np.int64)
        right = np.concatenate(self.right) if self.right else np.zeros((0, len(THRESHOLDS)), bool)
        table: dict[int, list[float]] = {}
        for kind in sorted(self.truths):
            own = kinds == kind
            order = np.argsort(-scores[own], kind="stable")
            table[kind] = [
                average_precision(right[own][order, column], self.truths[kind])
                for column in range(len(THRESHOLDS))
            ]
        means = {kind: float(np.mean(row)) for kind, row in table.items()}
        columns = zip(*table.values(), strict=True)
        return {
            "map": float(np.mean(list(means.values()))) if means else None,
            "ap": [means.get(kind) for kind in range(self.classes)],
            "ap_at": {
                str(at): float(np.mean(column)) for at, column in zip(THRESHOLDS, columns, strict=False)
            },
        }


def average_precision(right: np.ndarray, truths: int) -> float:
    """nuScenes' AP of predictions in falling order of score; `right` [n] says which hit one of `truths`.

    Precision is read at 101 recalls (linear between those reached, 0 beyond); what lies above 10 % is
    averaged over the recalls above 10 % and scaled so that a perfect detector has 1.
    """
    hits = np.cumsum(right, dtype=np.float64)
    if not len(hits) or not hits[-1]:
        return 0.0
    precision = np.interp(_RECALLS, hits / truths, hits / np.arange(1, len(hits) + 1), right=0)
    above = np.clip(precision[round(100 * _FLOOR) + 1 :] - _FLOOR, 0, None)
    return float(above.mean() / (1 - _FLOOR))


def normalised(text: str) -> str:
    """Text as compared: case folded, blanks collapsed, none at the ends."""
    return " ".join(text.casefold().split())


@dataclass
class ExactMatch:
    """Answers equal to the true ones after `normalised`, by task; where no answer is known nothing counts."""

    asked: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    def add(self, answers: Sequence[str], truths: Sequence[str], tasks: Sequence[str]) -> None:
        """Three texts a sample."""
        for answer, truth, task in zip(answers, truths, tasks, strict=True):
            if wanted := normalised(truth):
                self.asked[task] += 1
                self.right[task] += int(normalised(answer) == wanted)

    def __add__(self, other: ExactMatch) -> ExactMatch:
        return ExactMatch(self.asked + other.asked, self.right + other.right)

    def result(self) -> dict[str, float]:
        """Share of right answers by task."""
        return {task: self.right[task] / asked for task, asked in sorted(self.asked.items())}


@dataclass
class Losses:
    """Sums and counts of the training's losses, by task."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> None:
        """As `Output` gives them."""
        for task, total in sums.items():
            self.sums[task] = self.sums.get(task, 0.0) + float(total)
            self.counts[task] = self.counts.get(task, 0) + int(counts[task])

    def __add__(self, other: Losses) -> Losses:
        tasks = sorted(self.sums.keys() | other.sums.keys())
        return Losses(
            {task: self.sums.get(task, 0.0) + other.sums.get(task, 0.0) for task in tasks},
            {task: self.counts.get(task, 0) + other.counts.get(task, 0) for task in tasks},
        )

    def result(self) -> dict[str, float | None]:
        """Mean by task; None where nothing is labelled."""
        return {task: ratio(total, self.counts[task]) for task, total in sorted(self.sums.items())}


@dataclass
class Metrics:
    """All of the above, and what driving on at constant velocity would have scored on the same samples."""

    classes: int
    samples: int = 0
    trajectory: Displacement = field(default_factory=Displacement)
    constant_velocity: Displacement = field(default_factory=Displacement)
    boxes: Detection = field(init=False)
    answers: ExactMatch = field(default_factory=ExactMatch)
    losses: Losses = field(default_factory=Losses)

    def __post_init__(self) -> None:
        self.boxes = Detection(self.classes)

    def add_trajectories(self, guess: Tensor, truth: Tensor, mask: Tensor, history: Tensor) -> None:
        """Model and baseline on one batch: [B, T, 3], [B, T, 3], [B], [B, P, 3]."""
        self.trajectory.add(guess, truth, mask)
        self.constant_velocity.add(constant_velocity(history.float(), truth.shape[1]), truth, mask)

    def __add__(self, other: Metrics) -> Metrics:
        both = Metrics(
            self.classes,
            self.samples + other.samples,
            self.trajectory + other.trajectory,
            self.constant_velocity + other.constant_velocity,
            self.answers + other.answers,
            self.losses + other.losses,
        )
        both.boxes = self.boxes + other.boxes
        return both

    def result(self) -> dict[str, object]:
        """Plain values; None where the data has no label for it."""
        return {
            "samples": self.samples,
            "trajectory": {"samples": self.trajectory.samples, **self.trajectory.result()},
            "constant_velocity": self.constant_velocity.result(),
            "boxes": self.boxes.result(),
            "exact_match": self.answers.result(),
            "loss": self.losses.result(),
        }
