"""The research workflow on a real Slurm: the real trainer, two hosts by two processes, data from an S3 server.

A host dies, the controller starts again, jobs are requeued; the result is that of a run without all that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engines.machine import need
from tests.engines.slurm import TRAINER, USERS, Cluster
from tests.support import ROOT

STEPS, EVERY = 12, 3
SLOW_S = 300  # for what takes 20 s on a machine with nothing else to do
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
CHECKPOINTS = list(range(EVERY, STEPS + 1, EVERY))
GROUP = {
    "role": "worker", "instance_type": "ml.g5.12xlarge", "partition": "dev", "efa_interfaces": 0,
    "accelerators": 2, "scratch": "/tmp", "vcpus": 8, "gres": "gpu:2", "environment": {"NCCL_DEBUG": "WARN"},
}  # fmt: skip
SETTINGS = {
    "version": 2, "platform": "fleet", "cluster": "train", "region": "us-east-1", "orchestrator": "slurm",
    "lustre": {"dns_name": "fs", "mount_name": "abc", "mount_path": "/fsx", "efa": False}, "home": None,
    "buckets": {"datasets": "datasets", "checkpoints": "checkpoints", "lifecycle": "lifecycle"},
    "groups": {"workers": GROUP, "head": {**GROUP, "role": "controller", "partition": None}},
}  # fmt: skip


@dataclass
class Site:
    """The cluster with data in a bucket and each user's repository and environment on the file system."""

    cluster: Cluster
    s3: dict[str, str]
    sets: list[str] = field(default_factory=list)

    def submit(self, user: str, *more: str) -> Submitted:
        """`trainshed-run` as a user types it on the head node."""
        told = self.cluster.run(
            "trainshed-run", "--sha", "HEAD", "--recipe", "tiny-cpu", "--env", "trainer", "--repo",
            f"/fsx/{user}/code", *self.sets, *more, user=user, env=self.s3,
        ).stdout.split()  # fmt: skip
        return Submitted(self.cluster.fsx / told[0].removeprefix("/fsx/"), *told[1:])


@dataclass
class Submitted:
    """A run's folder, seen from this machine, and its jobs."""

    folder: Path
    train: str
    evaluate: str = ""

    @property
    def log(self) -> str:
        path = self.folder / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def told(self) -> dict[int, set[tuple[str, str]]]:
        """(loss, gradient norm) by step, of all starts."""
        found: dict[int, set[tuple[str, str]]] = {}
        for step, *values in re.findall(
            r"^\[trainer\] step=(\d+) loss=(\S+) grad_norm=(\S+)", self.log, re.M
        ):
            found.setdefault(int(step), set()).add(tuple(values))
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    need(git="git")
    folder = tmp_path_factory.mktemp("slurm")
    with Cluster(folder, workers=4, gpus=2, settings=SETTINGS) as cluster, bucket(cluster) as site:
        for user, number in USERS.items():
            code = cluster.fsx / user / "code"
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "trainer", code / "trainer", ignore=ignore)
            venvs = cluster.fsx / user / "venvs"
            venvs.mkdir()
            (venvs / "trainer").symlink_to(TRAINER.parents[1])
            subprocess.run(["chown", "-R", f"{number}:{number}", cluster.fsx / user], check=True)
            for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "First"]):
                identity = ("-c", f"user.name={user}", "-c", f"user.email={user}@example.com")
                cluster.run("git", "-C", f"/fsx/{user}/code", *identity, *command, user=user)
        yield site


class bucket:
    """An S3 server on the bridge with a data set of one epoch of 16 steps, and one to be judged on."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __enter__(self) -> Site:
        host = self.cluster.gateway
        self.server = subprocess.Popen(
            [TRAINER.with_name("moto_server"), "-H", host, "-p", "5555"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        s3 = {
            "AWS_ENDPOINT_URL": f"http://{host}:5555", "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1",
        }  # fmt: skip
        script = """
import boto3, time
from trainer.synthesize import Scale, synthesize
scale = Scale(cameras=1, side=32, lidar=32, radar=8)
for wait in range(100):
    try:
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="datasets")
        break
    except Exception:
        time.sleep(0.1)
synthesize("s3://datasets/drive", 64, 0, scale=scale, shard_bytes=1 << 17)
synthesize("s3://datasets/val", 4, 1, scale=scale, shard_bytes=1 << 17)
"""
        try:
            environment = {**os.environ, **s3, "PYTHONPATH": str(ROOT)}
            subprocess.run([TRAINER, "-c", script], env=environment, check=True, cwd=ROOT)
        except BaseException:
            self.__exit__()
            raise
        values = (
            f"steps={STEPS}", "global_batch=4", "micro_batch=1", f"checkpoint.every={EVERY}",
            "checkpoint.keep=9", "schedule.warmup=2", "schedule.kind=constant", "data.streams=[{url: s3://datasets/drive}]",
            "evaluation.url=s3://datasets/val", "evaluation.answer_tokens=4",
        )  # fmt: skip
        return Site(self.cluster, s3, [part for value in values for part in ("--set", value)])

    def __exit__(self, *_: object) -> None:
        self.server.kill()
        self.server.wait()


@pytest.fixture(scope="module")
def whole(site) -> Submitted:
    """A run that nothing happens to."""
    run = site.submit("ben", "--nodes", "2")
    ended = site.cluster.wait_job(run.train, *ENDS, timeout=SLOW_S)
    assert ended["JobState"] == "COMPLETED", run.log
    assert sorted(run.told()) == list(range(1, STEPS + 1)), run.log
    return run


@pytest.fixture(scope="module")
def struck(site, whole) -> Submitted:
    """The same by another user, with an evaluation: a host is killed within the epoch; then the evaluation is
    requeued and the controller killed, while both go on.
    """
    cluster = site.cluster
    run = site.submit("ann", "--nodes", "2", "--evaluate")
    cluster.until(
        lambda: f"[trainer] checkpoint step={EVERY} " in run.log, "a checkpoint", SLOW_S, lambda: run.log
    )
    cluster.kill(2)
    cluster.until(lambda: cluster.job(run.train).get("Restarts") == "1", "the job is requeued", SLOW_S)
    cluster.wait_job(run.train, "RUNNING", timeout=SLOW_S)
    cluster.run("scontrol", "requeue", run.evaluate)
    cluster.restart_controller()
    for job in (run.train, run.evaluate):
        cluster.wait_job(job, *ENDS, timeout=SLOW_S)
    return run


def test_a_killed_host_changes_nothing_in_the_result(site, whole, struck):
    facts = site.cluster.job(struck.train)
    assert facts["JobState"] == "COMPLETED", struck.log
    assert re.search(r"^\[trainer\] resumed step=[369] .* ranks=4", struck.log, re.M), struck.log
    assert struck.told() == whole.told(), "every step, repeated or not, to the last digit"
    assert different_weights(site, struck, whole) == "[]"


def test_a_controller_that_dies_during_a_job_loses_nothing(site, struck):
    """One start before the host died and one after: the controller's death made none."""
    assert site.cluster.job(struck.train)["Restarts"] == "1"
    starts = re.findall(r"trainshed: train, start (\d) .* on (\S+)", struck.log)
    one, two = (site.cluster.name(number).rpartition("-")[2] for number in (1, 2))
    prefix = site.cluster.name(1)[: -len(one)]
    assert starts[0] == ("0", f"{prefix}[{one}-{two}]")
    assert [start for start, _ in starts] == ["0", "1"]
    assert two not in re.findall(r"\d+", starts[1][1].removeprefix(prefix))


def test_each_checkpoint_is_scored_once_although_the_evaluation_was_requeued(site, struck):
    facts = site.cluster.job(struck.evaluate)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1")
    assert facts["Dependency"] == "(null)"
    place = site.cluster.fsx / "checkpoints" / struck.folder.name / "evaluations"
    found = sorted(path.name for path in place.iterdir() if path.suffix != ".png")
    assert found == [f"step-{step:08d}.json" for step in CHECKPOINTS]
    told = re.findall(
        r"^\[trainer\] evaluation step=(\d+)", (struck.folder / "evaluate.txt").read_text(), re.M
    )
    assert [int(step) for step in told] == CHECKPOINTS


def test_two_users_with_the_same_data_have_a_cache_each(site, whole, struck):
    """On the host that both ran on; a second user fails where the first owns the folder."""
    for user, run in (("ben", whole), ("ann", struck)):
        place = site.cluster.path(1, f"/tmp/{user}/{user}/{run.folder.name}")
        shards = [path for path in place.iterdir() if not path.name.startswith(".")]
        assert {path.stat().st_uid for path in [place, *shards]} == {USERS[user]}
        assert len(shards) >= 2


def test_the_record_says_what_ran(site, struck):
    record = struck.folder / "record"
    sha = site.cluster.run("git", "-C", "/fsx/ann/code", "rev-parse", "HEAD", user="ann").stdout
    assert (record / "sha").read_text() == sha
    assert "\ntorch==" in (record / "freeze").read_text()
    assert "name: tiny-cpu\n" in (record / "recipe.yaml").read_text()
    assert (record / "jobs").read_text().split() == [struck.train, struck.evaluate]
    assert "--evaluate" in (record / "command").read_text()
    for start in "01":
        assert (record / f"train-{start}.diff").read_text() == ""


def test_input_that_does_not_fit_ends_the_job_for_good(site):
    """Exit 2 of the trainer; a commit whose source was edited on the fly is recorded with its difference."""
    run = site.submit("ann", "--nodes", "1", "--set", "micro_batch=3")
    ended = site.cluster.wait_job(run.train, *ENDS, timeout=SLOW_S)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0"), run.log
    assert "[trainer] error text=" in run.log
    assert "train ended with 2: the input does not fit" in run.log


def different_weights(site: Site, *runs: Submitted) -> str:
    """Names of the last checkpoints' tensors that are not equal bit by bit, as a list in Python."""
    script = """
import sys, pathlib, torch
from tests.trainer.runs import tensors
ours, theirs = (tensors(pathlib.Path(place), int(sys.argv[1])) for place in sys.argv[2:])
assert ours.keys() == theirs.keys() and len(ours) > 50, len(ours)
print([name for name in ours if not torch.equal(ours[name], theirs[name])])
"""
    places = []
    for run in runs:
        places.append(site.cluster.folder / "weights" / run.folder.name)
        places[-1].mkdir(parents=True)
        (places[-1] / "checkpoints").symlink_to(site.cluster.fsx / "checkpoints" / run.folder.name)
    done = subprocess.run(
        [TRAINER, "-c", script, str(STEPS), *places], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout.strip() or done.stderr[-3000:]
