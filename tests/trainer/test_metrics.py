"""Every figure of merit against brute force, numbers worked out by hand, or both; parts add up."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.metrics import (
    THRESHOLDS,
    Detection,
    Displacement,
    ExactMatch,
    Losses,
    Metrics,
    average_precision,
    normalised,
)

# ------------------------------------------------------------------------------------ trajectories


def test_displacements_by_hand():
    truth = torch.zeros(3, 2, 3)
    guess = torch.tensor(
        [[[3.0, 4.0, 9.0], [0.0, 1.0, 9.0]], [[0.0, 0.0, 0.0], [0.0, 2.5, 0.0]], [[1e9] * 3] * 2]
    )
    part = Displacement()
    part.add(guess, truth, torch.tensor([True, True, False]))
    # Sample 1: 5 m, 1 m; sample 2: 0 m, 2.5 m; headings do not count; the third has no label.
    assert part.result() == {"ade": (3.0 + 1.25) / 2, "fde": (1.0 + 2.5) / 2, "miss_rate": 0.5}
    assert part.samples == 2


def test_a_miss_is_more_than_two_metres_off():
    part = Displacement()
    part.add(torch.tensor([[[2.0, 0.0]], [[2.001, 0.0]]]), torch.zeros(2, 1, 2), torch.tensor([True, True]))
    assert part.misses == 1


def test_nothing_labelled_is_no_figure():
    part = Displacement()
    part.add(torch.zeros(2, 3, 3), torch.zeros(2, 3, 3), torch.tensor([False, False]))
    assert set(part.result().values()) == {None}


def test_the_baseline_drives_on_as_before():
    """One sample moves 2 m a pose along x and then turns: the baseline's error is the turn alone."""
    metrics = Metrics(classes=1)
    history = torch.tensor([[[-4.0, 0, 0], [-2, 0, 0], [0, 0, 0]]])
    truth = torch.tensor([[[2.0, 1.0, 0], [4.0, 3.0, 0]]])
    metrics.add_trajectories(truth, truth, torch.tensor([True]), history)
    assert metrics.constant_velocity.result() == {"ade": 2.0, "fde": 3.0, "miss_rate": 1.0}
    assert metrics.trajectory.result()["ade"] == 0.0


# ------------------------------------------------------------------------------------------- boxes


def boxes(*rows: tuple[float, ...]) -> torch.Tensor:
    """(x, y, class[, score]) to boxes of no size."""
    return torch.tensor([[row[0], row[1], 0, 1, 1, 1, 0, *row[2:]] for row in rows])


def by_definition(samples, kind: int, threshold: float) -> float:
    """nuScenes' rules over all samples at once, in lists: [(guesses (x, y, class, score), truths)]."""
    total = sum(truth[2] == kind for _, truths in samples for truth in truths)
    guesses = [(g, number) for number, (own, _) in enumerate(samples) for g in own if g[2] == kind]
    taken, points, hits = set(), [], 0
    for rank, (guess, number) in enumerate(sorted(guesses, key=lambda pair: -pair[0][3]), 1):
        open_ = [
            (math.dist(guess[:2], truth[:2]), at)
            for at, truth in enumerate(samples[number][1])
            if truth[2] == kind and (number, at) not in taken
        ]
        if open_ and min(open_)[0] < threshold:
            taken.add((number, min(open_)[1]))
            hits += 1
        points.append((hits / total, hits / rank))

    def precision(recall: float) -> float:
        """Linear between points; of several at one recall the last."""
        if recall > points[-1][0] + 1e-12:
            return 0.0
        before = [(r, p) for r, p in points if r <= recall + 1e-12]
        after = [(r, p) for r, p in points if r > recall + 1e-12]
        if not before:
            before = [(0.0, points[0][1])]
        if not after or abs(before[-1][0] - recall) < 1e-12:
            return before[-1][1]
        (low, a), (high, b) = before[-1], after[0]
        return a + (b - a) * (recall - low) / (high - low)

    if not hits:
        return 0.0
    return sum(max(precision(at / 100) - 0.1, 0) for at in range(11, 101)) / 90 / 0.9


box = st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float), st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(box, max_size=5), st.lists(box, min_size=1, max_size=4)), min_size=1, max_size=4
    ),
    st.integers(0, 10**6),
)
def test_average_precision_is_that_of_the_definition(scenes, seed):
    dice = random.Random(seed)
    # Distances of 0.1 beside the integers, so that no two are equal and none is a threshold.
    samples = [
        (
            [(x + dice.random() / 9, y + dice.random() / 9, kind, dice.random()) for x, y, kind in guesses],
            truths,
        )
        for guesses, truths in scenes
    ]
    detection = Detection(classes=2)
    for guesses, truths in samples:
        guess = boxes(*guesses) if guesses else torch.zeros(0, 9)
        detection.add(guess[None], boxes(*truths)[None], torch.ones(1, len(truths), dtype=torch.bool))
    result = detection.result()
    kinds = sorted({truth[2] for _, truths in samples for truth in truths})
    wanted = {kind: [by_definition(samples, kind, at) for at in THRESHOLDS] for kind in kinds}
    for kind in (0, 1):
        found = result["ap"][kind]
        assert found == (pytest.approx(np.mean(wanted[kind]), abs=1e-6) if kind in wanted else None)
    assert result["map"] == pytest.approx(np.mean(list(wanted.values())), abs=1e-6)
    for column, threshold in enumerate(THRESHOLDS):
        mean = np.mean([row[column] for row in wanted.values()])
        assert result["ap_at"][str(threshold)] == pytest.approx(mean, abs=1e-6)


def test_average_precision_by_hand():
    assert average_precision(np.array([True, True]), 2) == pytest.approx(1.0)
    assert average_precision(np.array([True]), 2) == pytest.approx(
        (50 - 10) * 0.9 / 90 / 0.9
    )  # recall to 0.5
    assert average_precision(np.array([False, False]), 2) == 0.0
    assert average_precision(np.zeros(0, bool), 2) == 0.0


def test_nearer_thresholds_are_harder_and_each_truth_counts_once():
    detection = Detection(classes=1)
    guess = boxes((0.7, 0, 0, 0.9), (0.0, 0, 0, 0.8))  # both near the same single car
    detection.add(guess[None], boxes((0, 0, 0))[None], torch.tensor([[True]]))
    at = detection.result()["ap_at"]
    # Within 0.5 m the sure one is wrong, so precision is 1/2 throughout; wider, it is right and first.
    assert at["0.5"] == pytest.approx((0.5 * np.linspace(0.11, 1, 90) - 0.1).clip(0).mean() / 0.9)
    assert at["1.0"] == at["4.0"] == pytest.approx(1.0 - (0.5 / 90 / 0.9), abs=1e-9)


def test_a_sample_without_box_labels_is_left_out():
    detection = Detection(classes=1)
    detection.add(boxes((0, 0, 0, 0.9))[None], torch.zeros(1, 3, 8), torch.zeros(1, 3, dtype=torch.bool))
    assert detection.result() == {"map": None, "ap": [None], "ap_at": {}}


# ----------------------------------------------------------------------------------- text, losses


def test_answers_are_compared_as_people_read_them():
    assert normalised("  Turn\tLEFT \n now ") == "turn left now"
    part = ExactMatch()
    part.add(["Left ", "right", "2", ""], ["left", "left", "3", " "], ["vqa", "vqa", "detect", "drive"])
    assert part.result() == {"vqa": 0.5, "detect": 0.0}


def test_losses_are_means_over_labels_not_over_batches():
    part = Losses()
    part.add(
        {"text": torch.tensor(2.0), "action": torch.tensor(0.0)},
        {"text": torch.tensor(1), "action": torch.tensor(0)},
    )
    part.add(
        {"text": torch.tensor(4.0), "action": torch.tensor(0.0)},
        {"text": torch.tensor(5), "action": torch.tensor(0)},
    )
    assert part.result() == {"text": 1.0, "action": None}


def test_parts_of_ranks_add_up_to_the_whole():
    dice = torch.Generator().manual_seed(0)

    def fill(metrics: Metrics, batch: int) -> None:
        guess, truth = (torch.randn(4, 8, 3, generator=dice) for _ in range(2))
        metrics.add_trajectories(
            guess, truth, torch.tensor([True, False, True, True]), torch.randn(4, 4, 3, generator=dice)
        )
        found = torch.cat(
            [
                torch.randn(4, 6, 7, generator=dice),
                torch.randint(0, 2, (4, 6, 1), generator=dice),
                torch.rand(4, 6, 1, generator=dice),
            ],
            -1,
        )
        real = torch.cat(
            [torch.randn(4, 3, 7, generator=dice), torch.randint(0, 2, (4, 3, 1), generator=dice)], -1
        )
        metrics.boxes.add(found, real, torch.rand(4, 3, generator=dice) > 0.3)
        metrics.answers.add(["a", "b"], ["a", "c"], ["vqa", "detect"])
        metrics.losses.add({"text": torch.tensor(float(batch))}, {"text": torch.tensor(2)})
        metrics.samples += 4

    whole = Metrics(classes=2)
    for batch in range(6):
        fill(whole, batch)
    dice.manual_seed(0)
    parts = [Metrics(classes=2) for _ in range(3)]
    for batch in range(6):
        fill(parts[batch % 3], batch)
    together = (parts[0] + parts[1] + parts[2]).result()
    flat, ours = _flat(whole.result()), _flat(together)
    assert flat.keys() == ours.keys()
    assert all(value == pytest.approx(ours[name]) for name, value in flat.items())
    assert flat["exact_match.vqa"] == 1.0
    assert flat["samples"] == 24


def _flat(tree: object, prefix: str = "") -> dict[str, object]:
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    if not isinstance(tree, dict):
        return {prefix.rstrip("."): tree}
    return {
        name: value for key, part in tree.items() for name, value in _flat(part, f"{prefix}{key}.").items()
    }
