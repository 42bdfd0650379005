"""How a batch gets from a loader's worker to its rank: all tensors in one piece of shared memory.

torch sends each tensor for itself: a file, a mapping, and a connection to a thread of the worker, up to 3 ms
of the step's time on a busy machine. A batch has fifteen.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 64  # bytes: for any dtype, and a cache line

Place = tuple[str, torch.dtype, tuple[int, ...], int]


class Piece:
    """Tensors by name, which pickle as one buffer; who unpickles it has a dict of views of that."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __reduce__(self) -> tuple[Any, ...]:
        """One copy of all."""
        places: list[Place] = []
        end = 0
        for name, tensor in self._tensors.items():
            places.append((name, tensor.dtype, tuple(tensor.shape), end))
            end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        buffer = torch.empty(end, dtype=torch.uint8)
        for view, tensor in zip(_views(buffer, places).values(), self._tensors.values(), strict=True):
            view.copy_(tensor)
        return _views, (buffer, places)


def _views(buffer: Tensor, places: list[Place]) -> dict[str, Tensor]:
    return {
        name: buffer[at : at + prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for name, dtype, shape, at in places
    }
