"""Controls as text, and the terms of the driving reward against figures worked out by hand."""

from __future__ import annotations

import math
import string

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.controls import ACCELERATIONS, HOLD, YAW_RATES, read, write
from trainer.errors import TrainerError
from trainer.heads import constant_velocity
from trainer.rewards import (
    RewardConfig,
    Surroundings,
    along_lane,
    collisions,
    comfort,
    lane_keeping,
    progress,
    rate,
    rate_texts,
)
from trainer.samples import Sample
from trainer.synthesize import generate
from trainer.world import simulate

CONFIG = RewardConfig()
STRAIGHT = np.stack([np.arange(-60.0, 140), np.zeros(200), np.zeros(200)], -1)[None]
CAR = (4.5, 1.9)


def moving(speeds, start=0.0, half=0.5):
    """Poses [1, n, 3] along x at these speeds (m/s), `half` seconds each."""
    x = start + np.cumsum(np.array(speeds, float) * half)
    return np.stack([x, np.zeros_like(x), np.zeros_like(x)], -1)[None]


def past(speed):
    """Four poses up to the origin at an even speed."""
    return moving([speed] * 4, start=-2.0 * speed)


def beside(*actors, steps=8, size=CAR):
    """Surroundings of one drive: actors (x, y, yaw, vx, vy) that keep their velocity."""
    boxes = np.array([[x, y, 0.8, *size, 1.6, yaw, 0] for x, y, yaw, _, _ in actors], float)
    times = 0.5 * np.arange(1, steps + 1)
    tracks = np.array([
        np.stack([x + vx * times, y + vy * times, np.full(steps, yaw)], -1) for x, y, yaw, vx, vy in actors
    ])  # fmt: skip
    return Surroundings(
        past(10), moving([10] * steps), STRAIGHT, boxes[None], tracks[None], np.ones((1, len(actors)), bool)
    )


@pytest.fixture(scope="module")
def scenes():
    drawn = simulate(400, np.random.default_rng(0))
    around = Surroundings(
        drawn.history, drawn.trajectory, drawn.lane, drawn.actors, drawn.tracks, drawn.present
    )
    return drawn, around


# ------------------------------------------------------------------------------------------ controls


def test_words_are_driven_as_written():
    """Ten metres a second, then +1 m/s² for a second, then a turn to the left: worked out step by step."""
    faster = string.ascii_lowercase[ACCELERATIONS.tolist().index(1.0)]
    even = string.ascii_lowercase[ACCELERATIONS.tolist().index(0.0)]
    left = max(range(len(YAW_RATES)), key=lambda place: YAW_RATES[place])
    straight = string.ascii_lowercase[YAW_RATES.tolist().index(0.0)]
    text = f"clear = {faster}{straight} {even}{string.ascii_lowercase[left]}"
    poses, readable = read([text], torch.from_numpy(past(10)), 4)
    assert readable.tolist() == [True]
    x, y, heading, speed, wanted = 0.0, 0.0, 0.0, 10.0, []
    for gain, turn in [(1, 0), (1, 0), (0, float(YAW_RATES[left])), (0, float(YAW_RATES[left]))]:
        speed += gain / 2
        heading += turn / 2
        x, y = x + speed * math.cos(heading) / 2, y + speed * math.sin(heading) / 2
        wanted.append([x, y, heading])
    assert np.allclose(poses[0], wanted, atol=1e-4)
    assert y > 0


def test_braking_ends_in_a_stand():
    brake = "a" + string.ascii_lowercase[-2]  # the hardest, with a full turn
    poses, _ = read([f"= {' '.join([brake] * 4)}"], torch.from_numpy(past(5)), 8)
    # 5 m/s and -6 m/s²: 2 m/s after half a second, none after a second.
    assert torch.allclose(poses[0, 1:, 0], poses[0, 1:2, 0].expand(7), atol=0.02)
    assert float(poses[0, -1, 0]) == pytest.approx(math.cos(0.3), abs=0.02)
    assert torch.allclose(poses[0, 1:, 2], poses[0, 1:2, 2].expand(7))


def test_what_is_written_comes_near_what_was_driven(scenes):
    drawn, _ = scenes
    history, trajectory = torch.from_numpy(drawn.history), torch.from_numpy(drawn.trajectory)
    poses, readable = read([f"x = {words}" for words in write(trajectory, history)], history, 8)
    assert readable.all()
    off = (poses - trajectory)[..., :2].norm(dim=-1)
    assert float(off.mean()) < 0.2
    assert float(off.max()) < 1
    assert float((constant_velocity(history, 8) - trajectory)[..., :2].norm(dim=-1).mean()) > 2


@pytest.mark.parametrize(
    "text", ["", "lm lm lm lm =", "= lm lm lm", "= lm lm lm lm lm", "= lmlm lm lm", "= tm lm lm lm",
             "= LM lm lm lm", "= lz lm lm lm", "= l\u00e9 lm lm lm"],
)  # fmt: skip
def test_other_texts_are_unreadable_and_roll_on(text):
    poses, readable = read([text, "so = lm lm lm lm"], torch.from_numpy(np.repeat(past(8), 2, 0)), 8)
    assert readable.tolist() == [False, True]
    assert torch.allclose(poses[0], torch.from_numpy(moving([8] * 8)[0]).float(), atol=1e-3)


@given(st.text())
def test_no_text_makes_the_reader_fail(text):
    poses, _ = read([text], torch.from_numpy(past(8)), 8)
    assert torch.isfinite(poses).all()


def test_the_last_mark_counts_and_an_odd_number_of_poses_is_cut():
    poses, readable = read(["= aa = lm lm"], torch.from_numpy(past(8)), 2 * HOLD - 1)
    assert readable.all()
    assert poses.shape == (1, 3, 3)


# ------------------------------------------------------------------------------------------ collision


@pytest.mark.parametrize(
    ("actor", "hit"),
    [
        ((20, 0, 0, 0, 0), True),  # a stopped car, driven through
        ((45, 0, 0, 0, 0), False),  # behind it at the end: 40 + 2.25 + 2.25 < 45
        ((44.4, 0, 0, 0, 0), True),  # 10 cm too far
        ((20, 0, 0, 10, 0), False),  # a lead at our speed
        ((20, 1.95, 0, 0, 0), False),  # beside: 0.95 + 0.95 < 1.95
        ((20, 1.85, 0, 0, 0), True),
        ((20, 3.0, math.pi / 2, 0, 0), True),  # across the next lane: 0.95 + 2.25 > 3
        ((20, 3.0, 0, 0, 0), False),
        ((12.25, 20, 0, 0, -16), True),  # it crosses our way between two poses
        ((12.25, 20, 0, 0, -50), False),  # it has crossed before we are there
        ((-7, 0, 0, 20, 0), True),  # from behind
    ],
)
def test_collision_by_hand(actor, hit):
    assert collisions(CONFIG, moving([10] * 8), beside(actor)).tolist() == [[hit]]


def test_an_oncoming_car_cannot_jump_through_between_poses():
    """Both at 25 m/s: 25 m closer from pose to pose, more than twice the length of both."""
    around = beside((62, 0, math.pi, -25, 0))
    assert collisions(CONFIG, moving([25] * 8), around).all()
    only_at_poses = CONFIG.model_copy(update={"substeps": 1})
    assert not collisions(only_at_poses, moving([25] * 8), beside((62.5, 0, math.pi, -25, 0))).any()


def test_padding_collides_with_nobody():
    around = beside((20, 0, 0, 0, 0), (500, 0, 0, 0, 0))
    absent = Surroundings(**{**vars(around), "present": np.array([[False, True]])})
    assert not collisions(CONFIG, moving([10] * 8), absent).any()


@settings(max_examples=150, deadline=None)
@given(
    x=st.floats(-6, 6), y=st.floats(-4, 4), yaw=st.floats(-3.2, 3.2), heading=st.floats(-3.2, 3.2),
    size=st.tuples(st.floats(0.6, 9), st.floats(0.6, 2.5)),
)  # fmt: skip
def test_outlines_against_a_grid_of_points(x, y, yaw, heading, size):
    """They meet if some point of one lies in the other; a little smaller and larger, for the grid."""

    def inside(grow):
        u, v = np.meshgrid(np.linspace(-0.5, 0.5, 81), np.linspace(-0.5, 0.5, 81))
        u, v = u * CAR[0] * grow, v * CAR[1] * grow
        px, py = u * np.cos(heading) - v * np.sin(heading) - x, u * np.sin(heading) + v * np.cos(heading) - y
        a, b = px * np.cos(yaw) + py * np.sin(yaw), py * np.cos(yaw) - px * np.sin(yaw)
        return bool(((np.abs(a) <= size[0] * grow / 2) & (np.abs(b) <= size[1] * grow / 2)).any())

    around = beside((x, y, yaw, 0, 0), size=size, steps=1)
    still = Surroundings(**{**vars(around), "boxes": around.boxes + np.array([0, 1e3, 0, 0, 0, 0, 0, 0])})
    found = bool(collisions(CONFIG.model_copy(update={"substeps": 1}), np.array([[[0, 0, heading]]]), still))
    if inside(0.98):
        assert found
    if found:
        assert inside(1.06)


# ------------------------------------------------------------------------------------------ other terms


def test_comfort_by_finite_differences():
    """Speeds 10 → 11 → 13 → 13 → 8 m/s at half seconds: accelerations 2, 4, 0, -10; jerks 4, 4, -8, -20."""
    speeds = [11, 13, 13, 8]
    bearable = [True, False, True, False]  # 2 | 4 > 2.5 | 0, jerk -8 is the limit | -10 < -4.5
    assert comfort(CONFIG, moving(speeds), past(10)).tolist() == [np.mean(bearable)]
    stricter = CONFIG.model_copy(update={"jerk": 7.9})
    assert comfort(stricter, moving(speeds), past(10)).tolist() == [0.25]


def test_comfort_counts_what_the_car_was_doing_before():
    # It braked at 4 m/s² and now holds its speed: a jerk of 8 m/s³.
    history = moving([14, 14, 12, 10], start=-25)
    strict = CONFIG.model_copy(update={"jerk": 7.9})
    assert comfort(CONFIG, moving([10, 10]), history).tolist() == [1.0]
    assert comfort(strict, moving([10, 10]), history).tolist() == [0.5]


def test_comfort_in_a_bend():
    """10 m/s on a circle of 20 m: 5 m/s² sideways, over the limit of 4; on one of 40 m, 2.5."""
    for radius, wanted in ((20, 0.0), (40, 1.0)):
        angle = 10 * 0.5 * np.arange(-3, 9) / radius
        arc = np.stack([radius * np.sin(angle), radius * (1 - np.cos(angle)), angle], -1)[None]
        assert comfort(CONFIG, arc[:, 4:], arc[:, :4]).tolist() == [wanted]


def test_progress_is_a_share_of_the_drivers():
    recorded = moving([10] * 8)
    for speed, share in ((5, 0.5), (10, 1.0), (15, 1.0), (0, 0.0), (-3, 0.0)):
        assert progress(moving([speed] * 8), recorded, STRAIGHT).tolist() == [share]
    stood = moving([0] * 8)
    assert progress(stood, stood, STRAIGHT).tolist() == [0.0]
    assert progress(moving([0.5] * 8), stood, STRAIGHT, least=4.0).tolist() == [0.5]


def test_progress_in_a_bend_is_along_the_lane():
    """A quarter of a circle of 30 m: its middle is half the way, though at 71 % of the x."""
    along = np.arange(-20, 100) / 30
    lane = np.stack([30 * np.sin(along), 30 * (1 - np.cos(along)), along], -1)[None]

    def at(angle, off=0.0):
        return np.array([[[(30 - off) * np.sin(angle), 30 - (30 - off) * np.cos(angle), angle]]])

    assert progress(at(np.pi / 4), at(np.pi / 2), lane)[0] == pytest.approx(0.5, abs=0.01)
    ahead, off = along_lane(at(np.pi / 3, off=1.0), lane)
    assert off[0, 0] == pytest.approx(1.0, abs=0.01)  # left is towards the centre of the circle
    origin, _ = along_lane(at(0.0), lane)
    assert (ahead - origin)[0, 0] == pytest.approx(30 * np.pi / 3, abs=0.6)


def test_lane_keeping_by_hand():
    drive = moving([10] * 4)
    drive[..., 1] = [0.0, 0.875, -1.75, 5.0]
    assert lane_keeping(drive, STRAIGHT).tolist() == [(1 + 0.5 + 0 + 0) / 4]


# ------------------------------------------------------------------------------------------ the whole


def test_total_is_the_weighted_sum_and_texts_are_rated_alike():
    around = beside((20, 0, 0, 0, 0))
    config = RewardConfig(progress=2, collision=3, comfort=0.5, lane=0.25, unreadable=-7)
    rated = rate(config, moving([10] * 8), around)
    assert {name: float(value[0]) for name, value in rated.items()} == {
        "progress": 1, "collision": 1, "comfort": 1, "lane": 1, "total": 2 - 3 + 0.5 + 0.25
    }  # fmt: skip
    both = Surroundings(**{name: np.repeat(value, 2, 0) for name, value in vars(around).items()})
    told = rate_texts(config, ["no lead = mm mm mm mm", "I would rather not"], both)
    assert told["total"].tolist() == [pytest.approx(-0.25), -7]
    assert told["readable"].tolist() == [1, 0]
    assert told["progress"].tolist() == [pytest.approx(1), 0]


def test_the_recorded_driver_does_best(scenes):
    drawn, around = scenes
    human = rate(CONFIG, drawn.trajectory, around)["total"]
    standing = rate(CONFIG, np.zeros_like(drawn.trajectory), around)["total"]
    steady = constant_velocity(torch.from_numpy(drawn.history), 8).numpy()
    rng = np.random.default_rng(1)
    drunk = drawn.trajectory.copy()
    drunk[..., 1] += rng.choice([-3, 3], (400, 1)) * np.linspace(0, 1, 8)
    assert (human >= standing).all()
    assert human.mean() > 1.6
    assert human.mean() > rate(CONFIG, steady, around)["total"].mean() + 0.3
    assert human.mean() > rate(CONFIG, drunk, around)["total"].mean() + 0.3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.floats(-4, 4)), min_size=8, max_size=8))
def test_every_term_lies_between_nought_and_one(poses):
    rated = rate(CONFIG, np.array([poses]), beside((20, 0, 0, 3, 0), (9, 4, 1, 0, -2)))
    for name in ("progress", "collision", "comfort", "lane"):
        assert 0 <= float(rated[name][0]) <= 1


def test_surroundings_of_samples_pad_what_is_ragged():
    samples = [Sample.from_columns(one) for one in generate(30, 2, stage="rl")]
    around = Surroundings.of(samples)
    together = rate(CONFIG, around.recorded, around)
    for row, sample in enumerate(samples):
        alone = rate(CONFIG, sample.trajectory[None], Surroundings.of([sample]))
        for name, value in alone.items():
            assert together[name][row] == pytest.approx(float(value[0]))
    assert (around.present.sum(1) == [(sample.boxes[:, 7] >= 0).sum() for sample in samples]).all()


def test_samples_that_cannot_be_rated_are_refused():
    for stage in ("sft", "cot"):
        sample = Sample.from_columns(next(iter(generate(1, 2, stage=stage))))
        with pytest.raises(TrainerError, match=r"without lane, tracks or trajectory; .*--stage rl"):
            Surroundings.of([sample])
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        RewardConfig(collision=-1)
