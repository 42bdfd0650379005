"""Live recovery: replica groups, each a torchrun of its own, add their gradients up over torchft.

When a group dies the others drop the step they are in, and go on without it; started again, it takes weights,
optimizer and progress from a peer, without reading a checkpoint. All ranks of a group take every decision
alike. This is the only module that imports torchft, when the first `Live` joins.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ReduceOp

from trainer.errors import TrainerError
from trainer.groups import Alone, Group, LiveConfig, NoQuorumError, Parcel
from trainer.mesh import local_of

_BUCKET = 1 << 25  # elements of one sum: 128 MiB of float32 beside the gradients


class Live(Alone):
    """One rank of one group among others. `event` tells a line. Every method is collective in the group."""

    def __init__(
        self, config: LiveConfig, group: Group, *, device: torch.device, event: Callable[..., None]
    ) -> None:
        self._config, self._group, self._device, self._event = config, group, device, event
        self.groups = 0
        self._settled = False  # a quorum is there that no step has used
        self._again = True  # the loader must begin anew
        self._healed_from: int | None = None  # while settling: the group that sent its state
        self._healed = False  # by the newest quorum
        self._members: tuple[int, int] | None = None

    @property
    def failed(self) -> bool:
        """Whether a sum of this rank has failed since `start`."""
        return self._manager.errored() is not None

    def join(self, send: Callable[[], Parcel], receive: Callable[[Parcel], None]) -> bool:
        """Raises NoQuorumError, TrainerError without a lighthouse."""

        def heal(parcel: Parcel) -> None:
            receive(parcel)
            self._healed_from, self._healed = parcel["group"], True

        self._connect(lambda: {**send(), "group": self._group.number}, heal)
        self._settle()
        return self._healed_from is not None

    def resumed(self, step: int) -> None:
        """All who met at `join` have read the same checkpoint, and meet again."""
        self._manager.load_state_dict({"step": step, "batches_committed": 0})
        self._settled = False

    def start(self) -> bool:
        """Raises NoQuorumError."""
        if not self._settled:
            self._settle()
        self._settled = False
        again, self._again = self._again, False
        return again

    def sum(self, values: Tensor) -> Tensor:
        """See `Alone`."""
        moved = values.to(self._device)
        self._manager.allreduce(moved, reduce_op=ReduceOp.SUM).wait()
        return values.zero_() if self.failed else values.copy_(moved)

    def reduce(self, parameters: Iterable[nn.Parameter]) -> None:
        """In buckets, one after the other: memory for one beside the gradients."""
        for bucket in _buckets([local_of(p.grad) for p in parameters if p.grad is not None]):
            flat = torch._utils._flatten_dense_tensors(bucket)
            self._manager.allreduce(flat, reduce_op=ReduceOp.SUM).wait()
            torch._foreach_copy_(bucket, list(torch._utils._unflatten_dense_tensors(flat, bucket)))

    def agree(self, value: Tensor) -> Tensor:
        """The one of group 0."""
        return self.sum(value.clone() if self.index == 0 else torch.zeros_like(value))

    def commits(self) -> bool:
        """A group may count a step that another must drop: that one heals at the next `start`."""
        error = self._manager.errored()
        if error is not None:
            self._processes.abort()  # else peers that wait for this rank would wait for `collective_s`
        counts = self._manager.should_commit()
        if not counts:
            self._again = True
            cause = "other ranks' or too few groups" if error is None else error.original_exception
            self._event("uncommitted", step=self._manager.current_step() + 1, error=_short(cause))
        return counts

    def close(self) -> None:
        """Ends the servers; the process is about to end."""
        self._manager.shutdown(wait=False)

    def _connect(self, send: Callable[[], Parcel], heal: Callable[[Parcel], None]) -> None:
        torchft = _torchft()
        own = self._config
        seconds = timedelta(seconds=own.collective_s)
        kind = torchft.ProcessGroupNCCL if self._device.type == "cuda" else torchft.ProcessGroupGloo
        self._processes = kind(timeout=seconds)
        # Its own store: torchrun's may listen on the loopback only, or hold a dead attempt's address.
        host, rank = socket.gethostname(), dist.get_rank()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False) if rank == 0 else None
        place = [(host, self._store.port if self._store else 0)]
        dist.broadcast_object_list(place, src=0)
        try:
            self._manager = torchft.Manager(
                pg=self._processes,
                load_state_dict=heal,
                state_dict=send,
                min_replica_size=own.min_groups,
                use_async_quorum=False,
                init_sync=False,  # all groups draw the same first weights
                timeout=seconds,
                quorum_timeout=timedelta(seconds=own.quorum_s),
                connect_timeout=timedelta(seconds=own.connect_s),
                rank=rank,
                world_size=dist.get_world_size(),
                store_addr=place[0][0],
                store_port=place[0][1],
                lighthouse_addr=self._group.lighthouse,
                replica_id=str(self._group.number),
            )
        except (RuntimeError, TimeoutError) as failure:
            raise TrainerError(
                "TORCHFT_LIGHTHOUSE",
                self._group.lighthouse,
                "the address of a lighthouse that answers",
                f"start torchft_lighthouse there ({_short(failure)})",
            ) from None

    def _settle(self) -> None:
        """A quorum that works on all ranks of this group, healed where it was behind."""
        self._healed_from, deadline = None, time.monotonic() + self._config.quorum_s
        while not self._quorum(deadline):
            self.commits()  # False; makes the next quorum a new one
            time.sleep(0.5)
        self._settled = True
        self.index, self.groups = self._manager.participating_rank(), self._manager.num_participants()
        step = self._manager.current_step()
        if self._healed_from is not None:
            self._again = True
            self._event("healed", step=step, **{"from": self._healed_from})
        if (self.index, self.groups) != self._members:
            self._again, self._members = True, (self.index, self.groups)
            number = self._manager._quorum_id  # it has no public name
            self._event("live", quorum=number, groups=self.groups, index=self.index, step=step)

    def _quorum(self, deadline: float) -> bool:
        self._healed = False
        try:
            self._manager.start_quorum()
        except (RuntimeError, TimeoutError) as failure:
            raise NoQuorumError(_short(failure)) from None
        late = time.monotonic() > deadline
        state = torch.tensor([int(self.failed), int(self._healed), int(late)])
        dist.all_reduce(state)
        failures, healed, late = state.tolist()
        if 0 < healed < dist.get_world_size():
            raise RuntimeError(f"{healed} ranks healed, others did not: the group must start again")
        found, least = self._manager.num_participants(), self._config.min_groups
        good = failures == 0 and found >= least
        if late and not good:
            few = f"{found} groups, live.min_groups is {least}"
            raise NoQuorumError(few if found < least else "groups met, but could not reach each other")
        return good


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, at most `_BUCKET` elements unless one tensor alone has more."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(entry.numel() for entry in bucket) + tensor.numel() > _BUCKET
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _torchft() -> Any:  # noqa: ANN401 (optional dependency)
    os.environ.setdefault("RUST_LOG", "warn")  # it would write ten lines a step
    try:
        import torchft  # noqa: PLC0415 (optional)
    except ImportError as missing:
        raise TrainerError("live", missing, "torchft 0.2.0", "pip install torchft==0.2.0") from None
    return torchft


def _short(cause: object) -> str:
    return " ".join(str(cause).split())[:200]
