"""Sample order without state: position -> sample by arithmetic, in constant time and memory.

The samples lie in blocks (an MDS shard each). An epoch visits the blocks in a shuffled order, `window` of
them at a time, and draws from one window uniformly before it moves to the next: as well mixed as a shuffle
buffer of `window` whole shards, yet object storage sees each shard fetched once per epoch. Both shuffles are
Feistel networks over Z_a x Z_b (a*b just above n, so cycle walking rarely walks), keyed by seed, epoch and
window. Nothing is stored but, when blocks are ragged, two arrays over blocks.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from trainer.errors import TrainerError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_C1, _C2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ROUNDS = 4
_PATTERN = 1024  # positions in one cycle of a mixture: weights are met exactly to 1/1024


def fold(*values: int) -> int:
    """One 64-bit key out of several integers (splitmix64 over them)."""
    key = 0
    for value in values:
        key = (key + value * 0xD1342543DE82EF95 + _GOLDEN) & _MASK
        key = ((key ^ (key >> 30)) * int(_C1)) & _MASK
        key = ((key ^ (key >> 27)) * int(_C2)) & _MASK
        key ^= key >> 31
    return key


def _mix(values: np.ndarray, key: np.ndarray | np.uint64) -> np.ndarray:
    mixed = (values + key) * _C1
    mixed ^= mixed >> np.uint64(31)
    mixed *= _C2
    mixed ^= mixed >> np.uint64(29)
    mixed *= _C1
    # Two bits are given up so that the sums below cannot wrap: wrapped sums would not be a bijection.
    return mixed >> np.uint64(34)


def permute(index: np.ndarray, n: np.ndarray | int, key: np.ndarray | int) -> np.ndarray:
    """Keyed permutation of range(n), element by element; `n` and `key` may differ per element. uint64."""
    x = np.asarray(index, np.uint64)
    size = np.broadcast_to(np.asarray(n, np.uint64), x.shape)
    keys = np.broadcast_to(np.asarray(key, np.uint64), x.shape)
    wide = np.maximum(np.ceil(np.sqrt(size.astype(np.float64))), 1).astype(np.uint64)
    high = (size + wide - np.uint64(1)) // wide
    out = _feistel(x, wide, high, keys)
    walking = np.nonzero(out >= size)[0]
    while walking.size:
        out[walking] = _feistel(out[walking], wide[walking], high[walking], keys[walking])
        walking = walking[out[walking] >= size[walking]]
    return out


def _feistel(x: np.ndarray, wide: np.ndarray, high: np.ndarray, keys: np.ndarray) -> np.ndarray:
    left, right = np.divmod(x, high)
    for turn in range(_ROUNDS):
        left = (left + _mix(right, keys + np.uint64(fold(turn, 1)))) % wide
        right = (right + _mix(left, keys + np.uint64(fold(turn, 2)))) % high
    return left * high + right


class _Even:
    """Blocks of one size, the last possibly shorter: arithmetic only; `place` is a block's turn."""

    def __init__(self, n: int, block: int, key: int) -> None:
        self.block, self.full = block, n // block
        self.tail = n % block
        self.count = self.full + (self.tail > 0)
        self.key = key
        # The short block takes a keyed turn of its own; the full ones share the other turns.
        self.tail_place = fold(key, 7) % self.count if self.tail else self.count
        self.gap = block - self.tail if self.tail else 0

    def locate(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(place, offset in the block) of each position in the concatenation of blocks in turn order."""
        after = flat >= self.tail_place * self.block + self.tail
        return np.divmod(flat + np.where(after, self.gap, 0), self.block)

    def first(self, place: np.ndarray) -> np.ndarray:
        """Position at which the block of this turn begins."""
        return place * self.block - np.where(place > self.tail_place, self.gap, 0)

    def begin(self, place: np.ndarray) -> np.ndarray:
        """First sample of the block whose turn this is."""
        turn = np.minimum(place - (place > self.tail_place), max(self.full - 1, 0))
        block = permute(turn, max(self.full, 1), self.key).astype(np.int64)
        return np.where(place == self.tail_place, self.full, block) * self.block


class _Ragged:
    """Blocks of unequal size: two cumulative arrays over blocks."""

    def __init__(self, sizes: np.ndarray, key: int) -> None:
        self.count = len(sizes)
        turns = permute(np.arange(self.count), self.count, key).astype(np.int64)
        self._begin = (np.cumsum(sizes) - sizes)[turns]
        self._first = np.concatenate([[0], np.cumsum(sizes[turns])])

    def locate(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = np.searchsorted(self._first, flat, side="right") - 1
        return place, flat - self._first[place]

    def first(self, place: np.ndarray) -> np.ndarray:
        return self._first[place]

    def begin(self, place: np.ndarray) -> np.ndarray:
        return self._begin[place]


class Order:
    """A permutation of range(n): sample number at each position of one epoch.

    `block`: samples per block, or `sizes`: samples of each block when they differ. `window`: blocks mixed at
    a time. `lanes` > 1 cuts the epoch in that many parts read side by side, `stripe` positions of one then of
    the next, so that ranks of one node keep to few lanes and a node fetches about 1/lanes of the data.
    """

    def __init__(
        self,
        n: int,
        seed: int,
        epoch: int = 0,
        block: int = 4096,
        *,
        sizes: np.ndarray | None = None,
        window: int = 16,
        lanes: int = 1,
        stripe: int = 1,
    ) -> None:
        for name, value in (
            ("n", n),
            ("block", block),
            ("window", window),
            ("lanes", lanes),
            ("stripe", stripe),
        ):
            if value < 1:
                raise TrainerError(f"order.{name}", value, "at least 1", f"set {name} to 1 or more")
        self.n, self.window, self._key = n, window, fold(seed, epoch)
        self._lanes, self._stripe = lanes, stripe
        key = fold(self._key, 1)
        self._blocks: _Even | _Ragged = _Even(n, block, key) if sizes is None else _shape(sizes, n, key)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, position: int) -> int:
        return int(self.take(np.array([position]))[0])

    def take(self, positions: np.ndarray) -> np.ndarray:
        """Sample number at each position; int64, same length."""
        flat = np.asarray(positions, np.int64)
        if flat.size and (int(flat.min()) < 0 or int(flat.max()) >= self.n):
            bad = int(flat.min()) if int(flat.min()) < 0 else int(flat.max())
            raise IndexError(f"position {bad} outside an epoch of {self.n} samples")
        flat = self._spread(flat)
        blocks = self._blocks
        place, _ = blocks.locate(flat)
        turn = place // self.window
        low = blocks.first(turn * self.window)
        high_place = np.minimum((turn + 1) * self.window, blocks.count)
        high = blocks.first(high_place)
        keys = _mix(turn.astype(np.uint64), np.uint64(fold(self._key, 2))) * _C2 + np.uint64(
            fold(self._key, 3)
        )
        inside = permute(flat - low, high - low, keys).astype(np.int64)
        place, offset = blocks.locate(low + inside)
        return blocks.begin(place) + offset

    def _spread(self, flat: np.ndarray) -> np.ndarray:
        if self._lanes == 1:
            return flat
        row = self._lanes * self._stripe
        rows = self.n // row
        lane, inside = np.divmod(flat % row, self._stripe)
        spread = lane * rows * self._stripe + flat // row * self._stripe + inside
        return np.where(flat < rows * row, spread, flat)


def _shape(sizes: np.ndarray, n: int, key: int) -> "_Even | _Ragged":
    sizes = np.asarray(sizes, np.int64)
    if int(sizes.sum()) != n or (sizes < 1).any():
        raise TrainerError(
            "order.sizes", f"sum {int(sizes.sum())}", f"positive sizes that sum to n={n}", "recount"
        )
    even = len(sizes) == 1 or ((sizes[:-1] == sizes[0]).all() and sizes[-1] <= sizes[0])
    return _Even(n, int(sizes[0]), key) if even else _Ragged(sizes, key)


class Mixture:
    """Streams by weight: position -> (stream, sample), endlessly; an exhausted stream is shuffled anew.

    A fixed pattern of 1024 positions, spread evenly, says which stream serves a position, so the stream's own
    position follows by arithmetic. With one stream every epoch holds each sample exactly once.
    """

    def __init__(
        self,
        sizes: Sequence[np.ndarray],
        weights: Sequence[float],
        seed: int,
        *,
        window: int = 16,
        lanes: int = 1,
        stripe: int = 1,
    ) -> None:
        if len(sizes) != len(weights) or not sizes or min(weights) <= 0:
            raise TrainerError(
                "data.streams", list(weights), "one weight above 0 per stream", "set each weight"
            )
        self.sizes = [np.asarray(one, np.int64) for one in sizes]
        self.totals = np.array([int(one.sum()) for one in self.sizes], np.int64)
        self.seed, self._shape = seed, {"window": window, "lanes": lanes, "stripe": stripe}
        self._pattern, self._before, self._quota = _pattern(np.asarray(weights, np.float64))
        self._orders: OrderedDict[tuple[int, int], Order] = OrderedDict()

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(stream, sample in the stream) of each global position; int64 both."""
        cycle, turn = np.divmod(np.asarray(positions, np.int64), len(self._pattern))
        stream = self._pattern[turn]
        epoch, inside = np.divmod(cycle * self._quota[stream] + self._before[turn], self.totals[stream])
        sample = np.empty_like(stream)
        for one, when in {(int(s), int(e)) for s, e in zip(stream, epoch, strict=True)}:
            here = (stream == one) & (epoch == when)
            sample[here] = self._order(one, when).take(inside[here])
        return stream, sample

    def epochs(self, position: int) -> list[int]:
        """How many whole epochs of each stream lie before this position."""
        cycle, turn = divmod(position, len(self._pattern))
        done = [cycle * int(q) + int((self._pattern[:turn] == s).sum()) for s, q in enumerate(self._quota)]
        return [count // int(total) for count, total in zip(done, self.totals, strict=True)]

    def _order(self, stream: int, epoch: int) -> Order:
        key = (stream, epoch)
        if key not in self._orders:
            seed = fold(self.seed, stream)
            total = int(self.totals[stream])
            self._orders[key] = Order(total, seed, epoch, sizes=self.sizes[stream], **self._shape)
            if len(self._orders) > 2 * len(self.sizes):
                self._orders.popitem(last=False)
        return self._orders[key]


def _pattern(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(stream of each turn, that stream's earlier turns, turns per stream) of one cycle."""
    if len(weights) == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64)
    share = weights / weights.sum() * _PATTERN
    quota = np.maximum(np.floor(share), 1).astype(np.int64)
    for stream in np.argsort(quota - share, kind="stable")[: max(_PATTERN - int(quota.sum()), 0)]:
        quota[stream] += 1
    # The k-th of q turns of a stream wants to lie at (k + 1/2) / q of the cycle: sorted, the streams
    # interleave.
    streams = np.repeat(np.arange(len(quota)), quota)
    earlier = np.concatenate([np.arange(q) for q in quota])
    turns = np.argsort((earlier + 0.5) / quota[streams], kind="stable")
    return streams[turns], earlier[turns], quota
