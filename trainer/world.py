"""A small driving world in numpy: many scenes at once, simulated, then seen by camera, lidar and radar.

Ego follows a curved lane by pure pursuit on a kinematic bicycle and keeps its distance to a lead vehicle by
the intelligent driver model. The lane's curvature changes ahead and the lead may brake, so the past alone
does not tell the future, but the sensors do. Frames: x ahead, y left, metres, radians, seconds.
"""

from dataclasses import dataclass

import numpy as np

STEP = 0.1  # of the simulation
POSE_STEP = 0.5  # between poses of history and trajectory
LANE = 3.5
WHEELBASE = 2.8
_PAST, _AHEAD = 60, 140  # metres of road behind and ahead of the start
# Length, width, height, radar cross-section of car, truck, cyclist, pedestrian.
CLASSES = ("car", "truck", "cyclist", "pedestrian")
SIZES = np.array([[4.5, 1.9, 1.6, 10.0], [9.0, 2.5, 3.2, 20.0], [1.8, 0.6, 1.7, 2.0], [0.6, 0.6, 1.75, 1.0]])
ACTORS = 6


@dataclass(frozen=True)
class Scenes:
    """B scenes at time 0 in the ego frame.

    history [B, P, 3] and trajectory [B, T, 3]: x, y, heading. lane [B, S, 3]: centreline x, y, heading each
    metre. actors [B, K, 8]: boxes as in `trainer.samples`; velocity [B, K, 2]; present [B, K]; braking [B]
    (the lead, actor 0); curvature_ahead [B] in 1/m; speed [B, 2] now and at the end.
    """

    history: np.ndarray
    trajectory: np.ndarray
    lane: np.ndarray
    actors: np.ndarray
    velocity: np.ndarray
    present: np.ndarray
    tracks: np.ndarray
    braking: np.ndarray
    curvature_ahead: np.ndarray
    speed: np.ndarray


def simulate(count: int, rng: np.random.Generator, *, past: int = 4, future: int = 8) -> Scenes:
    """Scenes with `past` poses up to now and `future` poses after, all from one run of the simulation."""
    lane, bend = _roads(count, rng, past)
    speed = rng.uniform(5, 16, count)
    wish = speed * rng.uniform(0.95, 1.25, count)
    has_lead = rng.random(count) < 0.65
    lead_at = rng.uniform(10, 45, count) + 0.8 * speed
    lead_speed = speed * rng.uniform(0.5, 1.1, count)
    braking = has_lead & (rng.random(count) < 0.5)
    lead_brake = np.where(braking, rng.uniform(1.5, 4.0, count), 0.0)
    offset, tilt = rng.normal(0, 0.2, count), rng.normal(0, 0.01, count)
    rows = np.arange(count)
    start = lane[:, _PAST]
    pose = np.stack([
        start[:, 0] - offset * np.sin(start[:, 2]), start[:, 1] + offset * np.cos(start[:, 2]), start[:, 2] +
        tilt
    ], 1)  # fmt: skip
    per_pose = round(POSE_STEP / STEP)
    poses, kept, lead_track = [pose], {}, []
    travelled, nearest = lead_at, np.full(count, _PAST)
    last = (past - 1 + future) * per_pose
    for tick in range(last + 1):
        if tick == (past - 1) * per_pose:
            kept = {"speed": speed, "lead_speed": lead_speed, "pose": pose}
        if tick % per_pose == 0 and kept:
            lead_track.append(travelled)
        if tick == last:
            break
        # At most 2.5 m in a step: the nearest metre of road is among the next four.
        window = np.minimum(nearest[:, None] + np.arange(4), lane.shape[1] - 1)
        to = lane[rows[:, None], window, :2] - pose[:, None, :2]
        nearest = window[rows, np.square(to).sum(-1).argmin(1)]
        aim = np.minimum(nearest + np.round(3 + 0.5 * speed).astype(np.int64), lane.shape[1] - 1)
        to = lane[rows, aim, :2] - pose[:, :2]
        angle = np.arctan2(to[:, 1], to[:, 0]) - pose[:, 2]
        steer = np.arctan(2 * WHEELBASE * np.sin(angle) / np.maximum(np.hypot(to[:, 0], to[:, 1]), 1))
        gap = np.where(has_lead, travelled - (nearest - _PAST) - 4.5, 1e3)
        accel = _follow(speed, np.minimum(wish, _comfort(lane, rows, nearest)), gap, speed - lead_speed)
        accel = np.clip(accel, -6, 2)
        speed_next = np.maximum(speed + accel * STEP, 0)
        pose = pose + STEP * np.stack(
            [speed * np.cos(pose[:, 2]), speed * np.sin(pose[:, 2]), speed * np.tan(steer) / WHEELBASE], 1
        )
        speed = speed_next
        # The lead brakes from half a second before now: the history hardly shows it, lights and radar do.
        seen = tick >= (past - 2) * per_pose
        lead_speed = np.maximum(lead_speed - (lead_brake * STEP if seen else 0), 0)
        travelled = travelled + lead_speed * STEP
        if (tick + 1) % per_pose == 0:
            poses.append(pose)
    track = np.stack(poses, 1)
    now = kept["pose"]
    local = to_frame(track, now)
    actors, velocity, present, tracks = _traffic(
        lane, rng, has_lead, np.stack(lead_track, 1), kept["lead_speed"], now
    )
    return Scenes(
        history=local[:, :past].astype(np.float32),
        trajectory=local[:, past:].astype(np.float32),
        lane=to_frame(lane, now),
        actors=actors,
        velocity=velocity,
        present=present,
        tracks=tracks,
        braking=braking,
        curvature_ahead=bend,
        speed=np.stack([kept["speed"], speed], 1),
    )


def to_frame(poses: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Poses [B, n, 3] seen from poses [B, 3]; headings in (-pi, pi]."""
    cos, sin = np.cos(origin[:, None, 2]), np.sin(origin[:, None, 2])
    x, y = poses[..., 0] - origin[:, None, 0], poses[..., 1] - origin[:, None, 1]
    turn = poses[..., 2] - origin[:, None, 2]
    return np.stack([x * cos + y * sin, y * cos - x * sin, np.arctan2(np.sin(turn), np.cos(turn))], -1)


def _roads(count: int, rng: np.random.Generator, past: int) -> tuple[np.ndarray, np.ndarray]:
    """Centrelines [B, S, 3], a metre apart; curvature changes from one value to another ahead of now."""
    along = np.arange(-_PAST, _AHEAD, dtype=np.float64)
    first, second = (
        rng.uniform(-1, 1, count) * np.where(rng.random(count) < 0.25, 0.0, 0.03) for _ in range(2)
    )
    change = rng.uniform(8 * (past - 1) * POSE_STEP, 40, count)
    blend = np.clip((along[None] - change[:, None]) / 15, 0, 1)
    curvature = first[:, None] + (second - first)[:, None] * blend * blend * (3 - 2 * blend)
    heading = np.cumsum(curvature, 1)
    heading -= heading[:, [_PAST]]
    lane = np.stack([np.cumsum(np.cos(heading), 1), np.cumsum(np.sin(heading), 1), heading], -1)
    lane[..., :2] -= lane[:, [_PAST], :2]
    return lane, second


def _comfort(lane: np.ndarray, rows: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Speed at which the bend 10 m ahead costs 2 m/s² sideways."""
    a, b = np.minimum(nearest + 8, lane.shape[1] - 1), np.minimum(nearest + 14, lane.shape[1] - 1)
    bend = np.abs(lane[rows, b, 2] - lane[rows, a, 2]) / 6
    return np.sqrt(2.0 / np.maximum(bend, 1e-3))


def _follow(speed: np.ndarray, wish: np.ndarray, gap: np.ndarray, closing: np.ndarray) -> np.ndarray:
    """Acceleration of the intelligent driver model."""
    desired = 2 + np.maximum(speed * 1.2 + speed * closing / (2 * np.sqrt(1.5 * 2.0)), 0)
    return 1.5 * (1 - (speed / np.maximum(wish, 1)) ** 4 - (desired / np.maximum(gap, 0.5)) ** 2)


def _traffic(  # noqa: PLR0917 - state of the simulation at one moment
    lane: np.ndarray,
    rng: np.random.Generator,
    has_lead: np.ndarray,
    lead_track: np.ndarray,
    lead_speed: np.ndarray,
    now: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Boxes [B, K, 8], velocities [B, K, 2], presence [B, K] and tracks [B, K, T, 3] in the ego frame.

    Actor 0 is the lead, `lead_track` [B, 1 + T] metres along the lane from now; the others keep their pace.
    """
    count = len(lane)
    kind = rng.choice(4, (count, ACTORS), p=[0.6, 0.15, 0.1, 0.15])
    kind[:, 0] = 0
    # Vehicles come towards us in the left lane; cyclists keep to the right edge, pedestrians beside the road.
    side = np.where(kind < 2, LANE, np.where(kind == 2, -1.4, -4.0)) + rng.normal(0, 0.15, kind.shape)
    side[:, 0] = 0.0
    start = rng.uniform(-20, 70, kind.shape)
    pace = np.where(kind < 2, -rng.uniform(5, 15, kind.shape), np.where(kind == 2, 4.0, 1.0))
    pace[:, 0] = lead_speed
    at = start[..., None] + pace[..., None] * POSE_STEP * np.arange(lead_track.shape[1])
    at[:, 0] = lead_track
    local = to_frame(lane, now)
    index = np.clip(np.round(at).astype(np.int64) + _PAST, 0, lane.shape[1] - 1)
    place = local[np.arange(count)[:, None, None], index]
    along = place[..., 2]
    yaw = np.where(pace[..., None] < 0, along + np.pi, along)
    poses = np.stack([
        place[..., 0] - side[..., None] * np.sin(along),
        place[..., 1] + side[..., None] * np.cos(along),
        np.arctan2(np.sin(yaw), np.cos(yaw)),
    ], -1)  # fmt: skip
    x, y, yaw, heading = poses[:, :, 0, 0], poses[:, :, 0, 1], poses[:, :, 0, 2], along[:, :, 0]
    size = SIZES[kind]
    boxes = np.stack([x, y, size[..., 2] / 2, size[..., 0], size[..., 1], size[..., 2], yaw, kind], -1)
    velocity = np.stack([pace * np.cos(heading), pace * np.sin(heading)], -1)
    present = rng.random(kind.shape) < 0.55
    present[:, 0] = has_lead
    # A cyclist or pedestrian within our own outline, or anything out of range, is left out.
    near = (np.abs(x) < 60) & (np.abs(y) < 60) & (np.hypot(x, y) > 4)
    return boxes.astype(np.float32), velocity, present & near, poses[:, :, 1:].astype(np.float32)
