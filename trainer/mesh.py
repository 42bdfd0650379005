"""One device mesh for every layout: replicate (across nodes), shard (inside one), tensor (neighbours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from trainer.errors import TrainerError

Dim = PositiveInt | Literal[-1]


class ParallelConfig(BaseModel):
    """How the ranks are laid out: `replicate` copies of a model in `shard` parts, each of `tensor` slices.

    One of `replicate` and `shard` may be -1: whatever the number of ranks leaves. `mode` says which of them
    may exceed 1: `ddp` replicates, `fsdp` shards, `hsdp` does both, `none` is one process without a group.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["none", "ddp", "fsdp", "hsdp"] = "fsdp"
    replicate: Dim = Field(default=1)
    shard: Dim = Field(default=1)
    tensor: PositiveInt = 1
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    compile: bool = False
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _consistent(self) -> ParallelConfig:
        if self.replicate == self.shard == -1:
            raise ValueError("replicate and shard are both -1; only one can be whatever is left")
        if self.mode in ("ddp", "none") and self.shard != 1:
            raise ValueError(
                f"mode {self.mode} does not shard: shard must be 1, not {self.shard}; fsdp or hsdp do"
            )
        if self.mode in ("fsdp", "none") and self.replicate != 1:
            raise ValueError(f"mode {self.mode} does not replicate: replicate must be 1; ddp or hsdp do")
        if self.mode == "none" and (self.tensor > 1 or self.param_dtype != "float32"):
            raise ValueError("mode none is one process in float32; fsdp with shard 1 runs alone, too")
        if self.compile and self.activation_checkpointing == "selective":
            raise ValueError(
                "selective checkpointing cannot see inside a compiled block; use full, or compile: false"
            )
        return self


@dataclass(frozen=True)
class Mesh:
    """The ranks' layout; `device_mesh` is None for one process without a group.

    Tensor peers share `data_rank`: they must be given the same samples.
    """

    device_mesh: DeviceMesh | None
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def data_size(self) -> int:
        """Number of ranks, tensor peers counted once."""
        return self.replicate * self.shard

    @property
    def data_rank(self) -> int:
        """This rank's number among `data_size`."""
        if self.device_mesh is None:
            return 0
        replica, part, _ = self.device_mesh.get_coordinate()
        return replica * self.shard + part

    @property
    def tensor_rank(self) -> int:
        """This rank's number among its tensor peers."""
        return 0 if self.device_mesh is None else self.device_mesh.get_coordinate()[2]

    def sum_over_data(self, values: torch.Tensor) -> torch.Tensor:
        """`values` summed over data ranks, in place; equal on every rank afterwards."""
        if self.device_mesh is not None:
            for name in ("replicate", "shard"):
                if self.device_mesh[name].size() > 1:
                    dist.all_reduce(values, group=self.device_mesh.get_group(name))
        return values


def sizes(config: ParallelConfig, world: int) -> tuple[int, int, int]:
    """(replicate, shard, tensor) for `world` ranks, or an error that says which values would do."""
    given = {"replicate": config.replicate, "shard": config.shard, "tensor": config.tensor}
    known = config.tensor * max(config.replicate, 1) * max(config.shard, 1)
    open_dim = next((name for name, size in given.items() if size == -1), None)
    if open_dim is not None and world % known == 0:
        given[open_dim] = world // known
        known = world
    if known != world:
        raise TrainerError(
            "parallel",
            f"replicate {config.replicate}, shard {config.shard}, tensor {config.tensor}, for {world} ranks",
            f"replicate * shard * tensor = {world}",
            _proposal(config, world),
        )
    return given["replicate"], given["shard"], given["tensor"]


def _proposal(config: ParallelConfig, world: int) -> str:
    """Layouts in this mode that would fit, nearest to the one given first."""
    fits = [
        (replicate, world // tensor // replicate, tensor)
        for tensor in range(1, world + 1)
        if world % tensor == 0
        for replicate in range(1, world // tensor + 1)
        if world // tensor % replicate == 0
    ]
    if config.mode in ("ddp", "none"):
        fits = [fit for fit in fits if fit[1] == 1]
    if config.mode in ("fsdp", "none"):
        fits = [fit for fit in fits if fit[0] == 1]
    if config.mode == "none":
        return "start one process, or choose mode ddp, fsdp or hsdp"
    fits.sort(key=lambda fit: (fit[2] != config.tensor, fit[0] != config.replicate, fit[2], fit[0]))
    return "; ".join(f"replicate {r}, shard {s}, tensor {t}" for r, s, t in fits[:3])


def build_mesh(config: ParallelConfig, world: int, device: str = "cpu") -> Mesh:
    """The mesh of `world` ranks; needs an initialised process group unless the mode is none."""
    replicate, shard, tensor = sizes(config, world)
    if config.mode == "none":
        return Mesh(None)
    names = ("replicate", "shard", "tensor")
    return Mesh(
        init_device_mesh(device, (replicate, shard, tensor), mesh_dim_names=names), replicate, shard, tensor
    )


def local_of(value: Any) -> Any:  # noqa: ANN401
    """This rank's part of a tensor that lies on a mesh; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) else value
