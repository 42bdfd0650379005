"""Live recovery with torchft itself: a lighthouse and two groups, one of which dies, leaves, comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import yaml

from tests.trainer.ranks import forked
from tests.trainer.runs import RECIPE, Run, steps_of
from trainer.config import ConfigError, recipe_of
from trainer.errors import TrainerError
from trainer.groups import Alone, Group, LiveConfig, check_batch, own_group
from trainer.live import Live, _buckets, _torchft
from trainer.resilience import Exit
from trainer.synthesize import Scale, synthesize

STEPS = 40
STEP = r"^\[trainer\] step="
HEARTBEAT_S = 1.0  # without one for so long a group is dead to the lighthouse
STALL_S = 15.0  # of the survivors at most, on two cores that four processes share


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "mds"
    synthesize(str(folder), 64, 0, scale=Scale(cameras=1, side=32, lidar=32, radar=8), shard_bytes=1 << 17)
    return folder


@pytest.fixture(scope="module")
def lighthouse():
    """Starts lighthouses that the environment can name."""
    coordination = pytest.importorskip("torchft.coordination")
    servers = []

    def start(groups: int) -> str:
        server = coordination.LighthouseServer(
            bind="[::]:0",
            min_replicas=groups,
            join_timeout_ms=30_000,
            heartbeat_timeout_ms=int(HEARTBEAT_S * 1000),
        )
        servers.append(server)
        return server.address()

    yield start
    for server in servers:
        server.shutdown()


class Job:
    """Two groups over one lighthouse and one folder of checkpoints."""

    def __init__(self, folder, data, address: str, *settings: str):
        self.folder, self.data, self.address, self.settings = folder, data, address, settings
        self.runs: list[Run] = []

    def start(self, number: int, *, gate: str | None = None, ranks: int = 0) -> Run:
        environment = {"TORCHFT_LIGHTHOUSE": self.address, "NUM_REPLICA_GROUPS": "2"}
        environment |= {"REPLICA_GROUP_ID": str(number), **({"GATE": gate} if gate else {})}
        settings = (f"checkpoint.folder={self.folder}/checkpoints", "live.quorum_s=60", *self.settings)
        self.runs.append(
            Run(
                self.folder / str(number),
                self.data,
                *settings,
                ranks=ranks,
                module="tests.trainer.group",
                environment=environment,
            )
        )
        return self.runs[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for run in self.runs:
            run.__exit__()

    def samples(self) -> dict[int, list[str]]:
        """Of each step that counted, over all groups and ranks, as their logs have them."""
        counted: dict[int, list[str]] = {}
        for file in sorted(self.folder.glob("*/samples-*")):
            for line in file.read_text().splitlines():
                step, *names = line.split()
                counted.setdefault(int(step), []).extend(names)
        return {step: sorted(names) for step, names in counted.items()}


def end_of(run: Run) -> dict:
    return torch.load(run.folder / "end.pt")


def assert_same_weights(first: Run, second: Run) -> None:
    ours, theirs = end_of(first), end_of(second)
    assert ours["step"] == theirs["step"]
    assert ours["weights"].keys() == theirs["weights"].keys()
    assert [name for name, w in ours["weights"].items() if not torch.equal(w, theirs["weights"][name])] == []


def assert_same_course(told: dict, whole: dict) -> float:
    """Loss and norm of every step as in the run of one process; the largest relative difference of a loss."""
    worst = 0.0
    for step, values in told.items():
        (loss_whole, norm_whole) = next(iter(whole[step]))
        for loss, norm in values:
            assert float(loss) == pytest.approx(float(loss_whole), rel=1e-4), step
            assert float(norm) == pytest.approx(float(norm_whole), rel=1e-3), step
            worst = max(worst, abs(float(loss) / float(loss_whole) - 1))
    return worst


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """One process with the whole global batch, without the option."""
    job = Job(tmp_path_factory.mktemp("whole"), data, "")
    settings = (f"steps={STEPS}", "checkpoint.every=1000")
    with Run(job.folder / "alone", data, *settings, ranks=0, module="tests.trainer.group") as run:
        assert run.end() == 0, run.text()
    return run, job.samples()


def test_without_the_option_torchft_is_not_imported(whole):
    run, _ = whole
    assert not end_of(run)["torchft"]
    assert not run.lines("live")


def test_two_groups_train_as_one_process_with_the_same_global_batch(whole, data, tmp_path, lighthouse):
    steps = 8
    with Job(tmp_path, data, lighthouse(2), f"steps={steps}", "live.min_groups=2") as job:
        runs = [job.start(number) for number in range(2)]
        assert [run.end() for run in runs] == [0, 0], runs[0].text() + runs[1].text()
    alone, samples = whole
    for run in runs:
        told = steps_of(run)
        assert sorted(told) == list(range(1, steps + 1))
        print("largest difference of a loss:", assert_same_course(told, steps_of(alone)))
    assert job.samples() == {step: samples[step] for step in range(1, steps + 1)}
    assert sorted(len(run.lines("checkpoint ")) for run in runs) == [0, 3], "one group publishes"
    assert_same_weights(*runs)


def test_a_killed_group_costs_a_step_and_comes_back_from_a_peer(whole, data, tmp_path, lighthouse):
    gate = str(tmp_path / "gate")
    with Job(tmp_path, data, lighthouse(1), f"steps={STEPS}") as job:
        first, second, standby = job.start(0), job.start(1), job.start(0, gate=gate)
        for run in (first, second):
            run.wait_for(r"^\[trainer\] live .*groups=2")
        told = len(first.lines("step="))
        first.wait_for(STEP, count=told + 4)
        first.process.kill()
        killed = time.monotonic()
        told = len(second.lines("step="))
        stall = second.wait_for(STEP, count=told + 2) - killed  # the next may have been on its way
        second.wait_for(r"^\[trainer\] live .*groups=1")
        second.wait_for(STEP, count=len(second.lines("step=")) + 3)
        (tmp_path / "gate").touch()
        assert [standby.end(), second.end()] == [0, 0], standby.text() + second.text()
    print(f"kill -9 to the survivor's second step after it: {stall:.2f} s")
    assert stall < STALL_S
    (healed,) = standby.lines("healed")
    assert re.search(r"step=\d+ from=1$", healed)
    assert not standby.lines("resumed"), "no checkpoint was read"
    assert_same_weights(standby, second)
    alone, samples = whole
    print(
        "largest difference of a loss:", assert_same_course(steps_of(first, second, standby), steps_of(alone))
    )
    assert len(second.lines("uncommitted")) <= 1
    counted = job.samples()
    assert sorted(counted) == list(range(1, STEPS + 1))
    assert {step: sorted(set(names)) for step, names in counted.items()} == samples
    twice = [step for step, names in counted.items() if names != samples[step]]
    assert len(twice) <= 1, "only the step in which the dead one was may stand in its log, too"
