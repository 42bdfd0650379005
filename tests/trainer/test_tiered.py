"""Checkpoints in the nodes' memory: the real package, its daemon answered by a server of ours."""

from __future__ import annotations

import json

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from tests.trainer import daemon as stand_in
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import Toy
from trainer import tiered
from trainer.errors import TrainerError
from trainer.publish import MARKER


@pytest.fixture
def daemon():
    with stand_in.running() as running:
        yield running


@pytest.fixture
def lines(capfd):
    def read() -> list[str]:
        return [entry for entry in capfd.readouterr().out.splitlines() if entry.startswith("[trainer]")]

    return read


def toy(folder, url, **config) -> Toy:
    return Toy(folder, every=3, tiered={"every": 1, "url": url}, **config)


def train(run: Toy, steps: range) -> list[float]:
    """Steps with the saves that are due after each; the loop's own order."""
    losses = []
    for step in steps:
        losses.append(run.step(step))
        memory = run.checkpoints.due_in_memory(step + 1)
        if memory or run.checkpoints.due(step + 1):
            run.checkpoints.save(step + 1, run.state(step + 1), memory=memory)
    run.checkpoints.close()
    return losses


def load(run: Toy, step: int) -> dict:
    state = run.state()
    run.checkpoints.load(step, state, run.checkpoints.memory)
    return json.loads(state["progress"])


def test_the_way_back_is_one_step_and_bitwise(tmp_path, daemon):
    whole = train(Toy(tmp_path / "whole", every=100), range(8))
    first = toy(tmp_path / "run", daemon.url)
    assert train(first, range(5)) == whole[:5]
    assert [path.parent.name for path in (tmp_path / "run").glob(f"*/{MARKER}")] == ["step-00000003"]
    assert not (tmp_path / "run" / "step-00000005").exists(), "what is in memory only is not in the folder"
    second = toy(tmp_path / "run", daemon.url)
    marker, skipped = second.checkpoints.latest()
    assert (marker.step, skipped) == (3, [])
    assert second.checkpoints.memory.newest() == 5
    assert load(second, 5) == {"step": 5}
    assert second.checkpoints.durable_step is None, "nothing of this is durable"
    assert train(second, range(5, 8)) == whole[5:]


def test_before_the_first_published_one_nothing_is_held_that_another_try_could_find(tmp_path, daemon):
    train(toy(tmp_path, daemon.url), range(2))
    assert daemon.spaces == {}
    assert toy(tmp_path, daemon.url).checkpoints.memory.newest() is None


def test_a_published_checkpoint_frees_what_came_before_it(tmp_path, daemon):
    train(toy(tmp_path, daemon.url), range(5))
    (space,) = daemon.spaces
    assert space.startswith("toy-1-3-")
    assert {step for _, step in daemon.spaces[space]} == {4, 5}


def test_a_run_that_is_set_back_finds_nothing_of_what_came_later(tmp_path, daemon):
    train(toy(tmp_path, daemon.url), range(8))
    (tmp_path / "step-00000006" / MARKER).unlink()
    run = toy(tmp_path, daemon.url)
    assert run.checkpoints.latest()[0].step == 3
    assert run.checkpoints.memory.newest() is None


@pytest.mark.parametrize("rank", [0, 1])  # its part; the metadata, which lie behind the last rank's
@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_one_that_is_not_whole_is_passed_over(tmp_path, daemon, damage, rank):
    train(toy(tmp_path, daemon.url), range(5))
    (space,) = daemon.spaces.values()
    content, meta = space.pop((rank, 5))
    if damage == "changed":
        space[rank, 5] = (content[:-1] + b"?", meta)
    run = toy(tmp_path, daemon.url)
    run.checkpoints.latest()
    assert run.checkpoints.memory.newest() == 4


def test_without_a_daemon_the_run_goes_on_and_publishes(tmp_path, lines):
    run = toy(tmp_path, "http://127.0.0.1:9", failures_allowed=0)
    assert run.checkpoints.memory.newest() is None
    assert train(run, range(6)) == train(Toy(tmp_path / "plain", every=100), range(6))
    said = lines()
    failed = [entry for entry in said if entry.startswith("[trainer] memory ")]
    assert [entry.split()[2] for entry in failed] == ["step=4", "step=5"]
    assert all("saved=False" in entry and "In-memory write failed" in entry for entry in failed)
    assert [entry.split()[2] for entry in said if entry.startswith("[trainer] checkpoint ")] == [
        "step=3",
        "step=6",
    ]


def _two_ranks(rank, folder, url, steps):
    mesh = init_device_mesh("cpu", (2,))
    run = toy(folder, url, mesh=mesh, rank=rank)
    run.checkpoints.latest()
    newest = run.checkpoints.memory.newest()
    if newest:
        load(run, newest)
    losses = train(run, range(newest or 0, steps))
    return newest, losses, run.weights()


def test_two_ranks_agree_and_go_on_where_they_were(tmp_path, daemon):
    whole = [result[2] for result in run_ranks(2, _two_ranks, str(tmp_path / "whole"), daemon.url, 7)]
    run_ranks(2, _two_ranks, str(tmp_path / "run"), daemon.url, 5)
    again = run_ranks(2, _two_ranks, str(tmp_path / "run"), daemon.url, 7)
    assert [result[0] for result in again] == [5, 5]
    for mine, theirs in zip(whole, (result[2] for result in again), strict=True):
        assert all(map(torch.equal, mine, theirs))
    alone = toy(tmp_path / "run", daemon.url)
    assert alone.checkpoints.latest()[0].step == 6
    assert alone.checkpoints.memory.newest() is None, "memory serves the same number of ranks; the folder any"


def test_without_the_package_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tiered, "find_spec", lambda name: None)
    with pytest.raises(TrainerError, match=r"checkpoint.tiered: given .*; fix: install it, or leave"):
        toy(tmp_path, "http://127.0.0.1:9")
