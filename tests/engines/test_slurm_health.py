"""Node health on real Slurm: the health check, prolog and epilog, run by slurmd on hosts of their own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.slurm import HEAD, Cluster

HEALTH = "/opt/trainshed/lifecycle/health"
CONF = f"""\
Prolog={HEALTH}/prolog*.sh
Epilog={HEALTH}/epilog*.sh
HealthCheckProgram={HEALTH}/check.py
HealthCheckInterval=2
HealthCheckNodeState=ANY,CYCLE
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=50
"""
FACTS = {"role": "worker", "scratch": "/scratch", "accelerators": 2, "gres": "gpu:2"}
SETTINGS = {"lustre": {"mount_path": "/fsx"}, "nodes": {"health": {"xids": {}}}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("health")
    folder.chmod(0o755)
    files = {"/opt/trainshed/node.json": json.dumps(FACTS)}
    with Cluster(folder, workers=3, gpus=2, conf=CONF, files=files, settings=SETTINGS) as made:
        yield made


def xid(cluster: Cluster, number: int, event: int, words: str) -> None:
    """A line of the driver's in a host's kernel log."""
    path = cluster.path(number, "/dev/kmsg")
    sequence = 1000 + len(path.read_text().splitlines())
    with path.open("a") as log:
        log.write(f"4,{sequence},81000,-;NVRM: Xid (PCI:0000:b3:00): {event}, {words}\n")


def submit(cluster: Cluster, *options: str, wrap: str = "sleep 300", user: str = "ann") -> str:
    done = cluster.run(
        "sbatch", "--parsable", "-o", f"/fsx/{user}/%j.out", *options, "--wrap", wrap, user=user
    )
    return done.stdout.strip()


def reason(cluster: Cluster, number: int) -> str:
    """A node's reason, letter by letter, as HyperPod compares it."""
    shown = cluster.run("scontrol", "show", "node", cluster.name(number)).stdout
    found = re.search(r"^   Reason=(.*) \[root@.*\]$", shown, re.MULTILINE)
    return found[1] if found else ""


def health(cluster: Cluster, number: int) -> dict[str, object]:
    return json.loads(cluster.path(number, "/run/trainshed/health.json").read_text())


def checked(cluster: Cluster, number: int, runs: int = 2) -> None:
    """Wait until slurmd has run the check again, which writes its state twice."""
    state = cluster.path(number, "/run/trainshed/health.json")
    for _ in range(2 * runs + 1):
        before = state.stat().st_mtime_ns if state.exists() else 0
        cluster.until(lambda before=before: state.exists() and state.stat().st_mtime_ns != before, "a check")


def resume(cluster: Cluster, number: int) -> None:
    """An operator takes a node back, as soon as it has registered."""
    command = ("scontrol", "update", f"nodename={cluster.name(number)}", "state=resume")
    cluster.until(lambda: cluster.run(*command, check=False).returncode == 0, "the node can be taken back")
    cluster.wait_idle(number)


def end(cluster: Cluster, *jobs: str) -> None:
    cluster.run("scancel", *jobs)
    for job in jobs:
        cluster.wait_job(job, "CANCELLED", "COMPLETED")


def test_slurmd_runs_the_check_before_it_registers(cluster):
    for number in cluster.workers:
        assert health(cluster, number)["checks"] == {"lustre": ""}
        assert cluster.node(number) == {"state": "idle", "reason": "none"}


def test_a_remapped_row_kills_nothing(cluster):
    job = submit(cluster, "-w", cluster.name(1), "--gres=gpu:1")
    cluster.wait_job(job, "RUNNING")
    xid(cluster, 1, 63, "pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.")
    cluster.until(lambda: health(cluster, 1)["counts"]["63 none"] == 1, "the event is counted")
    checked(cluster, 1)
    assert health(cluster, 1)["counts"]["63 none"] == 1
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert cluster.node(1) == {"state": "mixed", "reason": "none"}
    assert cluster.job(job)["Restarts"] == "0"
    end(cluster, job)


def test_a_lost_gpu_has_its_node_replaced_and_the_job_moves_on(cluster):
    job = submit(cluster, "--requeue", "--gres=gpu:2")
    was = cluster.wait_job(job, "RUNNING")["NodeList"]
    lost = next(n for n in cluster.workers if cluster.name(n) == was)
    xid(cluster, lost, 79, "GPU has fallen off the bus.")
    xid(cluster, lost, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    cluster.until(lambda: reason(cluster, lost) == "Action:Replace", "the node asks for its replacement")
    assert cluster.node(lost)["state"] in ("fail", "failing")  # no new job; this one may end
    log = cluster.path(lost, "/var/log/trainshed/health.log").read_text()
    assert "XID 79 GPU has fallen off the bus: replace" in log
    cluster.run("scontrol", "requeue", job)
    cluster.until(lambda: cluster.job(job)["Restarts"] == "1", "the job is requeued")
    assert cluster.wait_job(job, "RUNNING")["NodeList"] != was
    # Neither a weaker event later nor the check itself changes anything.
    xid(cluster, lost, 46, "pid=1, Ch 00000008")
    cluster.until(lambda: health(cluster, lost)["counts"]["46 reboot"] == 1, "the later event is counted")
    checked(cluster, lost)
    assert reason(cluster, lost) == "Action:Replace"
    assert cluster.node(lost)["state"] == "fail"
    end(cluster, job)
    # HyperPod's replacement: a fresh host of the same name, taken back by Slurm.
    cluster.kill(lost)
    cluster.add(lost)
    resume(cluster, lost)
    checked(cluster, lost)
    assert cluster.node(lost)["state"] == "idle"


def test_an_event_waits_for_a_controller_that_is_away(cluster):
    cluster.run("scontrol", "shutdown", "slurmctld")
    cluster.until(
        lambda: cluster.run("scontrol", "ping", check=False).returncode != 0, "the controller is gone"
    )
    xid(cluster, 2, 95, "pid=7, Uncontained ECC error")
    began = time.monotonic()
    assert cluster.run(f"{HEALTH}/check.py", on=2).returncode == 0
    assert time.monotonic() - began < 50
    assert health(cluster, 2)["wanted"] == ["reboot", "xid 95 uncontained memory error"]
    cluster.run("bash", "-c", "slurmctld </dev/null >/dev/null 2>&1")
    cluster.until(lambda: health(cluster, 2)["wanted"] == ["none", ""], "the event is not lost")
    assert (cluster.node(2)["state"], reason(cluster, 2)) == ("fail", "Action:Reboot")
    assert health(cluster, 2)["counts"]["95 reboot"] == 1
    resume(cluster, 2)
    checked(cluster, 2)
    assert cluster.node(2)["state"] == "idle"


def test_a_login_node_takes_no_job(cluster):
    cluster.path(3, "/opt/trainshed/node.json").write_text(json.dumps({**FACTS, "role": "login"}))
    wanted = "trainshed: login node, takes no jobs"
    told = {"state": "drained", "reason": wanted}
    cluster.until(lambda: cluster.node(3) == told, "the login node is drained")
    # Somebody's resume opens it until the next check at most.
    cluster.run("scontrol", "update", f"nodename={cluster.name(3)}", "state=resume")
    cluster.until(lambda: cluster.node(3) == told, "the login node is drained again")
    job = submit(cluster, "-w", cluster.name(3))
    checked(cluster, 3)
    assert cluster.job(job)["JobState"] == "PENDING"
    end(cluster, job)
    cluster.path(3, "/opt/trainshed/node.json").write_text(json.dumps(FACTS))
    cluster.wait_idle(3)  # the check lets its own drain go


def test_prolog_starts_a_job_with_everything_off(cluster):
    """No observability, no scratch, no nvidia-smi, read-only /var/lib: no job may fail."""
    cluster.run("mount", "--bind", "/var/lib", "/var/lib", on=1)
    cluster.run("mount", "-o", "remount,ro,bind", "/var/lib", on=1)
    cluster.run("rm", "/opt/trainshed/node.json", on=1)
    try:
        assert cluster.run("touch", "/var/lib/x", on=1, check=False).returncode != 0
        job = submit(cluster, "-w", cluster.name(1), "--gres=gpu:2", wrap="echo ran")
        assert cluster.wait_job(job, "COMPLETED", "FAILED")["ExitCode"] == "0:0"
        assert Path(cluster.fsx / f"ann/{job}.out").read_text() == "ran\n"
        cluster.wait_idle(1)
    finally:
        cluster.run("umount", "/var/lib", on=1)
        cluster.path(1, "/opt/trainshed/node.json").write_text(json.dumps(FACTS))


def test_prolog_makes_the_users_cache_and_maps_gpus_to_jobs(cluster):
    cluster.run("mkdir", "-p", "/scratch", "/var/lib/trainshed/metrics", on=1)
    cluster.run("mount", "-t", "tmpfs", "tmpfs", "/scratch", on=1)
    cluster.run("mkdir", "-m", "1777", "/scratch/cache", on=1)
    # Somebody's link in another's name must not hand out what it points to.
    cluster.run("ln", "-s", "/opt/trainshed", "/scratch/cache/ben", on=1)
    owner = cluster.run("stat", "-c", "%u %a", "/opt/trainshed", on=1).stdout
    jobs = [
        submit(cluster, "-w", cluster.name(1), "--gres=gpu:1", user=user, wrap="sleep 300")
        for user in ("ann", "ben")
    ]
    for job in jobs:
        cluster.wait_job(job, "RUNNING")
    folder = cluster.path(1, "/run/trainshed/gpu-jobs")
    cluster.until(lambda: folder.is_dir() and len(list(folder.iterdir())) == 2, "both GPUs are mapped")
    mapped = {path.name: path.read_text().strip() for path in folder.iterdir()}
    assert set(mapped) == {"0", "1"}
    assert sorted(mapped.values()) == sorted(jobs)
    assert cluster.run("stat", "-c", "%U %a", "/scratch/cache/ann", on=1).stdout == "ann 700\n"
    assert cluster.run("stat", "-c", "%u %a", "/opt/trainshed", on=1).stdout == owner
    end(cluster, jobs[0])
    cluster.until(lambda: [p.read_text().strip() for p in folder.iterdir()] == [jobs[1]], "one GPU is left")
    end(cluster, jobs[1])
    cluster.until(lambda: not list(folder.iterdir()), "no GPU is left")
    checked(cluster, 1)
    assert health(cluster, 1)["checks"] == {"lustre": "", "scratch": ""}
    cluster.run("umount", "/scratch", on=1)


LEAVES = (
    "touch /dev/shm/{name}; mkdir -p /dev/shm/{name}.d/x; "
    "setsid -f bash -c 'exec -a stray.{name} sleep 3600' >/dev/null 2>&1; {then}"
)


def left(cluster: Cluster) -> set[str]:
    files = set(cluster.run("ls", "/dev/shm", on=2).stdout.split())
    processes = cluster.run("pgrep", "-af", "^stray", on=2, check=False).stdout
    return {f for f in files if not f.endswith(".d")} | {
        f"+{w}" for w in re.findall(r"stray\.(\S+)", processes)
    }


def test_epilog_clears_up_after_a_users_last_job_on_the_node(cluster):
    here = ("-w", cluster.name(2), "-n1")
    other = submit(cluster, *here, user="ben", wrap=LEAVES.format(name="ben", then="sleep 300"))
    longer = submit(cluster, *here, wrap=LEAVES.format(name="long", then="sleep 300"))
    for job in (other, longer):
        cluster.wait_job(job, "RUNNING")
    cluster.until(lambda: left(cluster) == {"ben", "+ben", "long", "+long"}, "both jobs have written")
    short = submit(cluster, *here, wrap=LEAVES.format(name="short", then="true"))
    cluster.wait_job(short, "COMPLETED")
    cluster.until(lambda: cluster.job(short)["EndTime"] and not cluster.run(
        "squeue", "-h", "-j", short, check=False).stdout, "the epilog is over")  # fmt: skip
    time.sleep(1)
    # Another job of hers runs here, and what is hers may be that job's.
    assert {"ben", "+ben", "long", "+long"} <= left(cluster)
    end(cluster, longer)
    cluster.until(lambda: left(cluster) == {"ben", "+ben"}, "what she left is gone, what is his stays")
    end(cluster, other)
    cluster.until(lambda: left(cluster) == set(), "nothing is left")


def test_the_controllers_numbers_are_slurms(cluster):
    cluster.path(HEAD, "/opt/trainshed/node.json").write_text(json.dumps({"role": "controller"}))
    cluster.run("mkdir", "-p", "/var/lib/trainshed/metrics")
    cluster.wait_idle(1, 2, 3)
    job = submit(cluster, "-N2", "-n2", "--gres=gpu:1", "--mem=100")
    waits = submit(cluster, "-N3", "--exclusive")
    cluster.wait_job(job, "RUNNING")
    cluster.run(f"{HEALTH}/metrics.py")
    text = cluster.path(HEAD, "/var/lib/trainshed/metrics/slurm.prom").read_text()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name: values.get(name) for name in (
        "slurm_node_count", 'slurm_node_state_count{state="mixed"}', 'slurm_node_state_count{state="idle"}',
        'slurm_job_state_count{state="running"}', 'slurm_partition_node_count{partition="dev"}',
        'slurm_partition_alloc_gpus{partition="dev"}', 'slurm_partition_free_gpus{partition="dev"}',
        'slurm_partition_alloc_cpus{partition="dev"}', 'slurm_partition_free_cpus{partition="dev"}',
        'slurm_partition_alloc_memory{partition="dev"}', 'slurm_partition_free_memory{partition="dev"}',
    )} == {
        "slurm_node_count": "3", 'slurm_node_state_count{state="mixed"}': "2",
        'slurm_node_state_count{state="idle"}': "1", 'slurm_job_state_count{state="running"}': "1",
        'slurm_partition_node_count{partition="dev"}': "3",
        'slurm_partition_alloc_gpus{partition="dev"}': "2",
        'slurm_partition_free_gpus{partition="dev"}': "4",
        'slurm_partition_alloc_cpus{partition="dev"}': "2",
        'slurm_partition_free_cpus{partition="dev"}': "22",
        'slurm_partition_alloc_memory{partition="dev"}': "200",
        'slurm_partition_free_memory{partition="dev"}': "11800",
    }  # fmt: skip
    assert int(values["slurm_job_count"]) >= 2
    assert int(values['slurm_job_state_count{state="pending"}']) == 1
    end(cluster, job, waits)
