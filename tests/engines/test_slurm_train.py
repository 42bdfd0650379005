"""The research workflow on a real Slurm: real trainer, two hosts by two processes, data from an S3 server.

A host dies, the controller starts again, jobs are requeued; the result is that of a run without all that.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.engines.research import SLOW_S, Research, Submitted, research
from tests.engines.slurm import TRAINER, USERS
from tests.support import ROOT

STEPS, EVERY = 12, 3
EDIT = "# tried something\n"
CHECKPOINTS = list(range(EVERY, STEPS + 1, EVERY))
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Research]:
    with research(tmp_path_factory.mktemp("slurm"), workers=4, ranks=2, steps=STEPS, every=EVERY) as site:
        yield site


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
    """The same by another user, with an evaluation: a host is killed within the epoch; then the evaluation,
    which has scored a checkpoint, is requeued and the controller killed, while both go on. A file of the run
    is edited before it starts again.
    """
    cluster = site.cluster
    run = site.submit("ann", "--nodes", "2", "--evaluate")
    cluster.until(
        lambda: f"[trainer] checkpoint step={EVERY} " in run.log, "a checkpoint", SLOW_S, lambda: run.log
    )
    with (run.folder / "src/trainer/__init__.py").open("a") as file:
        file.write(EDIT)
    cluster.kill(2)
    scores = run.folder / "evaluate.log"
    cluster.until(
        lambda: f"evaluation step={EVERY} " in scores.read_text(), "a score", SLOW_S, scores.read_text
    )
    cluster.until(lambda: cluster.job(run.train).get("Restarts") == "1", "the job is requeued", SLOW_S)
    cluster.run("scontrol", "requeue", run.evaluate)
    cluster.until(lambda: "[trainer] resumed" in run.log, "the run goes on", SLOW_S, lambda: run.log)
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
    starts = re.findall(r"trainshed: train, start (\d), job \d+ on (\S+)", struck.log)
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
        r"^\[trainer\] evaluation step=(\d+)", (struck.folder / "evaluate.log").read_text(), re.M
    )
    assert [int(step) for step in told] == CHECKPOINTS


def test_two_users_with_the_same_data_have_a_cache_each(site, whole, struck):
    """On the host that both ran on; a second user fails where the first owns the folder."""
    for user, run in (("ben", whole), ("ann", struck)):
        place = site.cluster.path(1, f"/tmp/cache/{user}/{run.folder.name}")
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
    assert (record / "train-0.diff").read_text() == ""
    assert f"\n+{EDIT}" in (record / "train-1.diff").read_text()


def test_input_that_does_not_fit_ends_the_job_for_good(site):
    """Exit 2, and rank 0 has the time to say why, although another may end before it."""
    run = site.submit("ann", "--nodes", "1", "--set", "micro_batch=3")
    ended = site.cluster.wait_job(run.train, *ENDS, timeout=SLOW_S)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0"), run.log
    assert "[trainer] error text=" in run.log
    assert "train ended with 2: the input does not fit" in run.log


def test_the_signal_before_the_time_limit_reaches_every_rank_and_the_run_goes_on(site):
    """Slurm sends it to the steps, as `scancel --signal` does; the job outlives it and is requeued."""
    ranks = """((${SLURM_RESTART_COUNT:-0})) && exit
trap 'echo "rank $RANK saves"; exit 75' USR1
echo "rank $RANK runs"
while :; do sleep 0.1; done"""
    run = instead(site, ranks, nodes=2)
    site.cluster.until(lambda: run.log.count(" runs\n") == 4, "all ranks run", SLOW_S, lambda: run.log)
    site.cluster.run("scancel", "--signal=USR1", run.train, user="ben")
    ended = site.cluster.wait_job(run.train, "COMPLETED", "FAILED", timeout=SLOW_S)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), run.log
    assert sorted(re.findall(r"rank (\d) saves", run.log)) == ["0", "1", "2", "3"]
    assert "(ranks: 75 ); the job is requeued" in run.log


def test_ranks_follow_the_networks_tree(site):
    """Two hosts share a switch that Slurm's order by name would part."""
    cluster = site.cluster
    if 2 not in cluster.init:
        cluster.add(2)
    one, two, three, four = (cluster.name(number) for number in (1, 2, 3, 4))
    tree = f"SwitchName=leaf1 Nodes={two},{four}\nSwitchName=leaf2 Nodes={one},{three}\n"
    cluster.write("topology.conf", f"{tree}SwitchName=spine Switches=leaf[1-2]\n")
    cluster.conf = "TopologyPlugin=topology/tree"
    cluster.write_conf()
    cluster.restart_controller(how="TERM")  # killed, it would forget what it has just been told
    cluster.run("scontrol", "reconfigure")
    cluster.wait_idle(1, 2, 3, 4)
    shown = 'echo "rank $RANK.$LOCAL_RANK of $WORLD_SIZE on $(hostname), first is $MASTER_ADDR"'
    run = instead(site, shown, nodes=4)
    cluster.wait_job(run.train, "COMPLETED", timeout=SLOW_S)
    hosts = (two, four, one, three)
    assert sorted(re.findall(r"^rank .*", run.log, re.M)) == [
        f"rank {rank}.{rank % 2} of 8 on {hosts[rank // 2]}, first is {two}" for rank in range(8)
    ]


def instead(site: Research, script: str, *, nodes: int) -> Submitted:
    """A run whose ranks do something else than train."""
    site.cluster.run("scontrol", "update", "partition=dev", "state=down")
    run = site.submit("ben", "--nodes", str(nodes))
    text = f"container=()\ncommand=(bash -c {shlex.quote(script)})\n"
    (run.folder / "record/train.env").write_text(text)
    site.cluster.run("scontrol", "update", "partition=dev", "state=up")
    return run


def different_weights(site: Research, *runs: Submitted) -> str:
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
