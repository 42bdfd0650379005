"""What a checkpoint holds, and how it is read back: model, optimizer and random generators.

Keys: `model.FQN`, `optimizer.state.FQN.…`, `progress` (JSON: step, loader, recipe) and `rng.RANK`.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from trainer.errors import TrainerError
from trainer.folders import Folder, open_folder
from trainer.mesh import local_of
from trainer.publish import step_of

if TYPE_CHECKING:
    from trainer.tiered import Memory

_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass
class ModelState(Stateful):
    """A model's parameters and buffers under names without wrappers, whatever the mesh."""

    model: nn.Module

    def state_dict(self) -> dict[str, Any]:
        """FQN → tensor or DTensor."""
        return get_model_state_dict(self.model, options=_OPTIONS)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Strict: every name of the model."""
        set_model_state_dict(self.model, state_dict, options=_OPTIONS)


@dataclass
class OptimizerState(Stateful):
    """An optimizer's state by parameter name, so that it fits another mesh."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """`state.FQN.exp_avg` → value.

        Hyperparameters are the recipe's at every step. In a checkpoint they would be a dozen pickles for each
        parameter, a third of the time that a small model's takes to write and to read.
        """
        return {name: value for name, value in self._whole().items() if not _is_hyperparameter(name)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Moments; the hyperparameters stay."""
        own = {name: value for name, value in self._whole().items() if _is_hyperparameter(name)}
        set_optimizer_state_dict(self.model, self.optimizer, state_dict | own, options=_OPTIONS)

    def _whole(self) -> dict[str, Any]:
        return get_optimizer_state_dict(self.model, self.optimizer, options=_OPTIONS)


def _is_hyperparameter(name: str) -> bool:
    return name.startswith("param_groups.")


def rng_state() -> str:
    """State of Python's, NumPy's and torch's generators of this rank, as JSON."""
    numpy: Any = np.random.get_state(legacy=False)  # the global one is what libraries use
    keys = numpy["state"]
    numpy = {**numpy, "state": {"key": keys["key"].tolist(), "pos": keys["pos"]}}
    state = {
        "python": random.getstate(),
        "numpy": numpy,
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        state["cuda"] = _hex(torch.cuda.get_rng_state())
    return json.dumps(state)


def set_rng_state(text: str) -> None:
    """Undo of `rng_state`."""
    state = json.loads(text)
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = state["numpy"]
    numpy["state"]["key"] = np.array(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy)
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes_tensor(state["cuda"]))


@contextmanager
def untouched_rng() -> Iterator[None]:
    """A DataLoader draws from torch's generator when it starts workers: the model's draws must not shift."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def _hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _bytes_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def load(
    folder: Folder | Memory, name: str, state: dict[str, Any], *, group: dist.ProcessGroup | None = None
) -> None:
    """Load the keys of `state` in place from one checkpoint."""
    reader = folder.reader(name)
    present = {key.split(".", 1)[0] if not key.startswith("rng.") else key for key in _keys(reader)}
    for key in [key for key in state if key.startswith("rng.") and key not in present]:
        del state[key]
    try:
        with warnings.catch_warnings():
            # Each rank for itself is what is asked for where there is no group.
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            dcp.load(state, storage_reader=reader, process_group=group, no_dist=group is None)
    except (Exception, CheckpointException) as failure:
        url = f"{folder.url}/{name}"
        raise TrainerError("checkpoint", url, "one that fits the recipe's model", cause(failure)) from failure


def load_model(url: str, model: nn.Module) -> None:
    """Weights alone, from `FOLDER/step-00000020`, onto whatever mesh the model lies on."""
    root, _, name = url.rstrip("/").rpartition("/")
    if step_of(name) is None:
        raise TrainerError("checkpoint", url, "FOLDER/step-NNNNNNNN", "name one checkpoint of the folder")
    group = dist.new_group(backend="gloo") if dist.is_initialized() else None
    load(open_folder(root), name, {"model": ModelState(model)}, group=group)


def fit(template: dict[str, Any], shards: dict[str, Any]) -> dict[str, Any]:
    """`shards` of a peer (see `strip`) on this rank's mesh: what `template`'s owner may load."""

    def on_mesh(own: object, theirs: Any) -> object:  # noqa: ANN401
        if not isinstance(own, DTensor):
            return theirs
        local = theirs.to(own.device)
        return DTensor.from_local(
            local, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
        )

    return {name: on_mesh(own, shards[name]) for name, own in template.items()}


def strip(state: dict[str, Any]) -> dict[str, Any]:
    """This rank's own part of each tensor: its counterpart in another group holds the same."""
    return {name: local_of(value) for name, value in state.items()}


def _keys(reader: Any) -> list[str]:  # noqa: ANN401
    return list(reader.read_metadata().state_dict_metadata)


def cause(failure: BaseException) -> str:
    """One line: the rank and its error, without DCP's tracebacks."""
    if isinstance(failure, CheckpointException):
        rank, (inner, _) = next(iter(failure.failures.items()))
        return f"rank {rank}: {cause(inner)}"
    return f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
