"""What camera, lidar and radar see of scenes of `trainer.world`, many scenes at once."""

from functools import lru_cache

import numpy as np

from trainer.world import CLASSES, LANE, SIZES, Scenes

_EYE = 1.6  # camera height, metres
_REACH = 70.0
_GRASS, _ASPHALT, _PAINT, _SKY = (70, 120, 60), (90, 90, 95), (235, 235, 225), (150, 190, 235)
_PAINTS = np.array([[40, 70, 200], [200, 140, 40], [200, 60, 160], [230, 210, 60]])  # by class
_BRAKE = (255, 20, 20)


def camera_yaws(cameras: int) -> list[float]:
    """Directions of the cameras: ahead first, the others evenly around, radians."""
    return [2 * np.pi * number / cameras for number in range(cameras)]


def lane_table(scenes: Scenes) -> np.ndarray:
    """Lateral place [B, 141] of the centreline at x = -70 … 70 m."""
    xs = np.arange(-_REACH, _REACH + 1)
    # A road that turned back on itself would not be a function of x; x is kept rising.
    rising = np.maximum.accumulate(scenes.lane[..., 0], 1)
    return np.stack([np.interp(xs, x, y) for x, y in zip(rising, scenes.lane[..., 1], strict=True)])


def cameras(scenes: Scenes, count: int, side: int) -> np.ndarray:
    """Pictures [B, count, side, side, 3] uint8: sky, grass, road and its lines, boxes far ones first."""
    table = lane_table(scenes)
    out = np.empty((len(table), count, side, side, 3), np.uint8)
    for number, yaw in enumerate(camera_yaws(count)):
        out[:, number] = _ground(table, yaw, side)
        _draw(out[:, number], scenes, yaw, side)
    return out


def lidar(scenes: Scenes, points: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Per scene up to `points` returns [N, 4]: half on the near faces of boxes, the rest on the ground."""
    count = len(scenes.actors)
    table, rows = lane_table(scenes), np.arange(count)[:, None]
    on_box = points // 2
    which = _pick(scenes.present, on_box, rng)
    box = scenes.actors[rows, which]
    local = rng.uniform(-0.5, 0.5, (count, on_box, 3))
    face = rng.integers(0, 2, (count, on_box))
    np.put_along_axis(local, face[..., None], 0.5, 2)
    cos, sin = np.cos(box[..., 6]), np.sin(box[..., 6])
    # The sensor sees the faces towards it: points go to the side on which the ego (the origin) lies.
    for axis, toward in (
        (0, -(box[..., 0] * cos + box[..., 1] * sin)),
        (1, box[..., 0] * sin - box[..., 1] * cos),
    ):
        chosen = face == axis
        local[..., axis] = np.where(chosen, np.copysign(0.5, toward), local[..., axis])
    scaled = local * box[..., 3:6]
    hits = np.stack([
        box[..., 0] + scaled[..., 0] * cos - scaled[..., 1] * sin,
        box[..., 1] + scaled[..., 0] * sin + scaled[..., 1] * cos,
        box[..., 2] + scaled[..., 2],
        0.5 + 0.1 * box[..., 7],
    ], -1)  # fmt: skip
    ground_count = points - on_box
    reach, angle = (
        rng.uniform(3, 40, (count, ground_count)),
        rng.uniform(-np.pi, np.pi, (count, ground_count)),
    )
    # Two thirds look ahead, where the road goes.
    angle = np.where(np.arange(ground_count) % 3 > 0, angle / 4, angle)
    x, y = reach * np.cos(angle), reach * np.sin(angle)
    off = y - table[rows, np.round(x + _REACH).astype(np.int64)]
    road = (off > -LANE / 2) & (off < 1.5 * LANE)
    ground = np.stack(
        [x, y, np.zeros_like(x), np.where(_painted(off, x, 0.4), 1.0, np.where(road, 0.2, 0.05))], -1
    )
    returns = np.concatenate([hits, ground], 1)
    returns[..., :3] += rng.normal(0, 0.02, returns[..., :3].shape)
    valid = np.concatenate(
        [np.broadcast_to(scenes.present.any(1)[:, None], which.shape), np.ones_like(x, bool)], 1
    )
    valid &= rng.random(valid.shape) > 0.1
    valid[:, -1] = True  # MDS stores no empty array
    return [one[keep].astype(np.float32) for one, keep in zip(returns, valid, strict=True)]


def radar(scenes: Scenes, returns: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Per scene 1 to `returns` detections [M, 5]: place, radial (Doppler) relative velocity, rcs."""
    ego = np.stack([scenes.speed[:, 0], np.zeros(len(scenes.speed))], -1)
    out = []
    for boxes, velocity, present, own in zip(
        scenes.actors, scenes.velocity, scenes.present, ego, strict=True
    ):
        place = np.repeat(boxes[present, :2], 2, 0)[:returns] + 0.0
        relative = np.repeat(velocity[present], 2, 0)[:returns] - own
        rcs = np.repeat(SIZES[boxes[present, 7].astype(int), 3], 2)[:returns]
        # Still things beside the road: they move towards us with our own speed.
        clutter = int(rng.integers(1, max(returns - len(place), 1) + 1)) if len(place) < returns else 0
        still = np.stack([rng.uniform(3, 60, clutter), rng.choice([-9.0, 9.0], clutter)], -1)
        place, relative = (
            np.concatenate([place, still]),
            np.concatenate([relative, np.tile(-own, (clutter, 1))]),
        )
        rcs = np.concatenate([rcs, rng.uniform(0, 5, clutter)])
        toward = place / np.maximum(np.linalg.norm(place, axis=1, keepdims=True), 1e-6)
        doppler = (relative * toward).sum(1, keepdims=True) * toward
        noise = rng.normal(0, 1, (len(place), 5)) * (0.2, 0.2, 0.1, 0.1, 0.5)
        out.append((np.concatenate([place, doppler, rcs[:, None]], 1) + noise).astype(np.float32))
    return out


def _pick(present: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
    """`number` draws [B, number] among the present actors of each scene."""
    order = np.argsort(~present, 1, kind="stable")
    draw = (rng.random((len(present), number)) * np.maximum(present.sum(1), 1)[:, None]).astype(np.int64)
    return np.take_along_axis(order, draw, 1)


def _painted(off: np.ndarray, x: np.ndarray, width: np.ndarray | float) -> np.ndarray:
    """Whether a lateral offset from the centreline lies on a line; the middle line is dashed."""
    edge = (np.abs(off + LANE / 2) < width) | (np.abs(off - 1.5 * LANE) < width)
    return edge | ((np.abs(off - LANE / 2) < width) & (x % 6 < 3))


@lru_cache(maxsize=16)
def _rays(yaw: float, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pixels that see the ground within reach, the place they see (x, y), half a pixel's width there."""
    focal = side / 2  # 90 degrees
    v, u = np.mgrid[:side, :side] + 0.5 - side / 2
    down = np.maximum(v.ravel(), 1e-6) / focal
    depth, across = _EYE / down, -u.ravel() / focal * _EYE / down
    x, y = depth * np.cos(yaw) - across * np.sin(yaw), depth * np.sin(yaw) + across * np.cos(yaw)
    seen = np.nonzero((v.ravel() > 0) & (np.abs(x) < _REACH - 1) & (np.abs(y) < _REACH))[0]
    return seen, x[seen], y[seen], np.maximum(0.12, 0.5 * depth[seen] / focal)


def _ground(table: np.ndarray, yaw: float, side: int) -> np.ndarray:
    seen, x, y, width = _rays(yaw, side)
    flat = np.empty((len(table), side * side, 3), np.uint8)
    flat[:, : side * side // 2] = _SKY
    flat[:, side * side // 2 :] = _GRASS
    low = np.floor(x + _REACH).astype(np.int64)
    part = x + _REACH - low
    off = (y - table[:, low] * (1 - part) - table[:, low + 1] * part).astype(np.float32)
    kind = ((off > -LANE / 2) & (off < 1.5 * LANE)).astype(np.uint8)
    kind[_painted(off, x.astype(np.float32), width.astype(np.float32))] = 2
    flat[:, seen] = np.array([_GRASS, _ASPHALT, _PAINT], np.uint8)[kind]
    return flat.reshape(len(table), side, side, 3)


def _draw(pictures: np.ndarray, scenes: Scenes, yaw: float, side: int) -> None:
    """Paint each box as the rectangle around its projected corners; brake lights of a braking lead."""
    focal = side / 2
    corner = np.array([[a, b, c] for a in (-0.5, 0.5) for b in (-0.5, 0.5) for c in (-0.5, 0.5)])
    box = scenes.actors.astype(np.float64)
    points = corner * box[:, :, None, 3:6]
    turn = box[:, :, None, 6]
    x = box[:, :, None, 0] + points[..., 0] * np.cos(turn) - points[..., 1] * np.sin(turn)
    y = box[:, :, None, 1] + points[..., 0] * np.sin(turn) + points[..., 1] * np.cos(turn)
    z = box[:, :, None, 2] + points[..., 2] - _EYE
    depth, across = x * np.cos(yaw) + y * np.sin(yaw), y * np.cos(yaw) - x * np.sin(yaw)
    visible = scenes.present & (depth.min(-1) > 0.5)
    depth = np.maximum(depth, 0.5)
    u, v = side / 2 - focal * across / depth, side / 2 - focal * z / depth
    left, right = np.floor(u.min(-1)), np.ceil(u.max(-1))
    top, bottom = np.floor(v.min(-1)), np.ceil(v.max(-1))
    visible &= (right > 0) & (left < side) & (bottom > 0) & (top < side)
    edges = np.clip(np.stack([left, right, top, bottom], -1), 0, side).astype(np.int64).tolist()
    distance = depth.mean(-1)
    order = np.argsort(-distance, 1)
    kinds = box[..., 7].astype(np.int64)
    shade = np.clip(1.1 - distance / 90, 0.4, 1.0)
    paint = (_PAINTS[kinds] * shade[..., None]).astype(np.uint8)
    for scene, actors in enumerate(order.tolist()):
        for actor in actors:
            if not visible[scene, actor]:
                continue
            l, r, t, b = edges[scene][actor]  # noqa: E741
            pictures[scene, t:b, l:r] = paint[scene, actor]
            if actor == 0 and scenes.braking[scene]:
                third = max((b - t) // 3, 1)
                pictures[scene, t + third : t + 2 * third, l:r] = _BRAKE


def class_name(kind: float) -> str:
    """Word for a box's class."""
    return CLASSES[int(kind)]
