"""Two people at work on a test cluster: repositories, environments, data in a bucket, runs they submit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.slurm import TRAINER, USERS, Cluster
from tests.support import ROOT

SLOW_S = 300  # for what takes 20 s on a machine with nothing else to do
PORT = 5555

SYNTHESIZE = """
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


def settings(ranks: int) -> dict[str, object]:
    """settings.json of a cluster whose workers have this many fake GPUs each, a rank for each."""
    group = {
        "role": "worker", "instance_type": "ml.g5.12xlarge", "partition": "dev", "efa_interfaces": 0,
        "accelerators": ranks, "scratch": "/tmp", "vcpus": 8, "gres": f"gpu:{ranks}",
        "environment": {"NCCL_DEBUG": "WARN"},
    }  # fmt: skip
    return {
        "version": 2, "platform": "fleet", "cluster": "train", "region": "us-east-1", "orchestrator": "slurm",
        "lustre": {"dns_name": "fs", "mount_name": "abc", "mount_path": "/fsx", "efa": False}, "home": None,
        "buckets": {"datasets": "datasets", "checkpoints": "checkpoints", "lifecycle": "lifecycle"},
        "groups": {"workers": group, "head": {**group, "role": "controller", "partition": None}},
    }  # fmt: skip


@dataclass
class Submitted:
    """A run's folder, seen from this machine, and its jobs."""

    folder: Path
    train: str
    evaluate: str = ""

    @property
    def log(self) -> str:
        path = self.folder / "train.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def told(self) -> dict[int, set[tuple[str, ...]]]:
        """(loss, gradient norm) by step, of all starts."""
        found: dict[int, set[tuple[str, ...]]] = {}
        pattern = r"^\[trainer\] step=(\d+) loss=(\S+) grad_norm=(\S+)"
        for step, *values in re.findall(pattern, self.log, re.M):
            found.setdefault(int(step), set()).add(tuple(values))
        return found


@dataclass
class Research:
    """The cluster, how S3 is found, and the changes of the recipe that make it small."""

    cluster: Cluster
    s3: dict[str, str]
    changes: list[str]

    def submit(self, user: str, *more: str) -> Submitted:
        """`trainshed-run` as a user types it on the head node."""
        told = self.cluster.run(
            "trainshed-run", "--sha", "HEAD", "--recipe", "tiny-cpu", "--env", "trainer", "--repo",
            f"/fsx/{user}/code", *self.changes, *more, user=user, env=self.s3,
        ).stdout.split()  # fmt: skip
        return Submitted(self.cluster.fsx / told[0].removeprefix("/fsx/"), *told[1:])


@contextmanager
def research(folder: Path, *, workers: int, ranks: int, steps: int, every: int) -> Iterator[Research]:
    """A cluster with everything that runs of `steps` steps need; an epoch has 16."""
    with Cluster(folder, workers=workers, gpus=ranks, settings=settings(ranks)) as cluster:
        for user, number in USERS.items():
            _settle(cluster, user, number)
        s3 = {
            "AWS_ENDPOINT_URL": f"http://{cluster.gateway}:{PORT}", "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1",
        }  # fmt: skip
        values = (
            f"steps={steps}", f"checkpoint.every={every}", "checkpoint.keep=9", "global_batch=4",
            "micro_batch=1", "schedule.warmup=2", "schedule.kind=constant", "data.streams=[{url: s3://datasets/drive}]",
            "evaluation.url=s3://datasets/val", "evaluation.answer_tokens=4",
        )  # fmt: skip
        moto = (TRAINER.with_name("moto_server"), "-H", cluster.gateway, "-p", str(PORT))
        server = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *moto], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            environment = {**os.environ, **s3, "PYTHONPATH": str(ROOT)}
            subprocess.run([TRAINER, "-c", SYNTHESIZE], env=environment, check=True, cwd=ROOT)
            yield Research(cluster, s3, [part for value in values for part in ("--set", value)])
        finally:
            server.kill()
            server.wait()


def _settle(cluster: Cluster, user: str, number: int) -> None:
    """A user's repository with the trainer, and an environment that has what it needs."""
    home = cluster.fsx / user
    shutil.copytree(ROOT / "trainer", home / "code/trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "venvs").mkdir()
    (home / "venvs/trainer").symlink_to(TRAINER.parents[1])
    subprocess.run(["chown", "-R", f"{number}:{number}", home], check=True)
    identity = ("-c", f"user.name={user}", "-c", f"user.email={user}@example.com")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "First"]):
        cluster.run("git", "-C", f"/fsx/{user}/code", *identity, *command, user=user)
