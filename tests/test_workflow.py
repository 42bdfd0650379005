"""`trainshed-env`, `trainshed-run` and the jobs' scripts: what they refuse, what they submit, how they end.

git is real, Slurm's commands are recorded. Real Slurm, real trainer: tests/engines/test_slurm_train.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN, JOBS = ROOT / "lifecycle/bin", ROOT / "lifecycle/jobs"
GROUP = {
    "role": "worker", "instance_type": "ml.p5.48xlarge", "partition": "p5", "efa_interfaces": 32,
    "accelerators": 8, "scratch": "/opt/dlami/nvme", "vcpus": 192, "gres": "gpu:8",
    "environment": {"FI_PROVIDER": "efa", "NCCL_DEBUG": "WARN"},
}  # fmt: skip
FAKES = {
    "sinfo": '[[ $* == *" p5 "* ]] && printf "192\\n192\\n96\\n"',
    "sbatch": """\
echo "sbatch $*" >>"$CALLS"
[[ -z ${NO_SBATCH:-} ]] || { echo "$NO_SBATCH" >&2; exit 1; }
echo "$(wc -l <"$CALLS");fleet\"""",
    "scancel": 'echo "scancel $*" >>"$CALLS"',
    "scontrol": 'echo "scontrol $*" >>"$CALLS"',
    "srun": """\
[[ $1 == --help ]] && { echo "${SRUN_HELP:-}"; exit; }
echo "srun $*" >>"$CALLS"
while [[ $1 == --* ]]; do shift; done
worst=0
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 "$@"
  code=$?
  ((code <= worst)) || worst=$code
done
exit "$worst\"""",
}  # fmt: skip


@dataclass
class Site:
    """A shared file system, a repository with one commit, and a PATH on which Slurm is recorded."""

    home: Path
    sha: str
    env: dict[str, str]

    @property
    def user(self) -> Path:
        return self.home / "fsx/ann"

    @property
    def repo(self) -> Path:
        return self.home / "code"

    @property
    def calls(self) -> list[str]:
        path = Path(self.env["CALLS"])
        return path.read_text().splitlines() if path.exists() else []

    def tool(self, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, BIN / str(arguments[0]), *map(str, arguments[1:])],
            cwd=self.home, env={**self.env, **env}, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def submit(self, *more: object, **env: str) -> subprocess.CompletedProcess[str]:
        """trainshed-run with what every run needs; a repeated option's last value counts."""
        given = ("--sha", "HEAD", "--recipe", "small", "--nodes", 2, "--repo", self.repo, "--env", "torch")
        return self.tool("trainshed-run", *given, *more, **env)

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", self.repo, "-c", "user.name=ann", "-c", "user.email=ann@example.com", *arguments],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout


@pytest.fixture
def site(tmp_path) -> Site:
    settings = {
        "version": 2, "region": "us-east-2", "lustre": {"mount_path": str(tmp_path / "fsx")}, "home": None,
        "groups": {"head": {**GROUP, "role": "controller", "partition": None}, "p5": GROUP},
    }  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    for name, text in FAKES.items():
        fake(tmp_path / "fakes" / name, text)
    env = {
        "PATH": f"{tmp_path}/fakes:/usr/local/bin:/usr/bin:/bin", "LOGNAME": "ann", "HOME": str(tmp_path),
        "TRAINSHED_SETTINGS": str(tmp_path / "settings.json"), "CALLS": str(tmp_path / "calls"),
    }  # fmt: skip
    made = Site(tmp_path, "", env)
    recipes = made.repo / "trainer/recipes"
    recipes.mkdir(parents=True)
    (recipes / "small.yaml").write_text("name: small\n")
    (made.repo / "model.py").write_text("layers = 1\n")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "First")):
        made.git(*command)
    made.sha = made.git("rev-parse", "HEAD").strip()
    fake(made.user / "venvs/torch/bin/python", f'exec "{sys.executable}" "$@"')
    published = tmp_path / "fsx/datasets/trainshed/recipes"
    published.mkdir(parents=True)
    (published / "large.yaml").write_text("name: large\n")
    return made


def fake(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("--sha", "feedbee"),
            r"--sha: given feedbee; allowed: a commit, such as [0-9a-f]{7} \(First\); commit",
        ),
        (("--repo", "/"), r"--repo: given /; allowed: a git repository; "),
        (("--recipe", "smal"), r"--recipe: given smal; allowed: large, small; choose one"),
        (
            ("--recipe", "no/such.yaml"),
            r"--recipe: given no/such.yaml; allowed: a readable file; .*No such file",
        ),
        (("--partition", "p4"), r"--partition: given p4; allowed: p5; choose one"),
        (("--nodes", 4), r"--nodes: given 4; allowed: 1 to 3 in partition p5; ask for fewer"),
        (("--nodes", 0), r"--nodes: given 0; allowed: 1 to 3 in partition p5; "),
        (("--env", "jax"), r"--env: given jax; allowed: torch; .*trainshed-env create NAME"),
        (("--env", ""), r"--env: given none, and none is active; allowed: torch; "),
        (("--container", "trainer:1"), r"--env: given torch beside --container; allowed: one of them; "),
        (("--set", "steps"), r"--set: given steps; allowed: KEY=VALUE; for instance"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line(site, given, said):
    done = site.submit(*given)
    assert done.returncode == 2
    assert re.fullmatch(rf"trainshed-run: {said}.*\n", done.stderr), done.stderr
    assert_nothing_is_left(site)


def test_elsewhere_than_on_the_cluster_it_says_so(site):
    done = site.submit(TRAINSHED_SETTINGS="/no/settings.json")
    assert done.returncode == 2
    assert re.fullmatch(r"trainshed-run: settings: given /no/settings.json; allowed: .*\n", done.stderr)
    assert_nothing_is_left(site)


def test_what_slurm_refuses_leaves_nothing(site):
    done = site.submit(NO_SBATCH="sbatch: error: Invalid qos specification")
    assert done.returncode == 2
    assert "Invalid qos specification" in done.stderr
    assert done.stdout == ""
    assert_nothing_is_left(site, calls=1)


def assert_nothing_is_left(site: Site, calls: int = 0) -> None:
    assert len(site.calls) == calls
    assert list((site.user / "runs").glob("*")) == []
    assert len(site.git("worktree", "list").splitlines()) == 1


def test_a_run_is_checked_out_recorded_and_submitted(site):
    done = site.submit("--set", "steps=7", "--set", "optimizer.lr=1e-4", "--time", "1-00:00:00")
    assert done.returncode == 0, done.stderr
    folder, job = done.stdout.split()
    (run,) = (site.user / "runs").iterdir()
    assert (folder, job) == (str(run), "1")
    assert re.fullmatch(rf"small-{site.sha[:8]}-\d{{8}}-\d{{6}}-\d+", run.name)
    assert (run / "src/model.py").read_text() == "layers = 1\n"
    record = {path.name: path.read_text() for path in (run / "record").iterdir()}
    assert record["sha"].strip() == site.sha
    assert record["recipe.yaml"] == (run / "recipe.yaml").read_text() == "name: small\n"
    assert record["jobs"] == "1"
    assert "pytest==" in record["freeze"]
    assert "--set steps=7" in record["command"]
    (call,) = site.calls
    assert call == (
        f"sbatch --parsable --job-name={run.name} --partition=p5 --nodes=2 --ntasks-per-node=8 "
        f"--cpus-per-task=12 --chdir={run}/src --output={run}/train.log --gres=gpu:8 --time=1-00:00:00 "
        f"{run}/record/train.sbatch {run}"
    ), "96 CPUs are the fewest of a node in the partition"
    for line in ("export FI_PROVIDER=efa", "export AWS_REGION=us-east-2", "container=()"):
        assert line in record["train.env"].splitlines()
    command = record["train.env"].splitlines()[-1]
    assert f"checkpoint.folder={site.home}/fsx/checkpoints/{run.name} " in command
    assert "data.cache.directory=/opt/dlami/nvme/cache " in command
    assert command.endswith("--set steps=7 --set optimizer.lr=1e-4)"), "what the user sets counts last"


def test_a_run_has_the_uncommitted_changes_when_asked(site):
    (site.repo / "model.py").write_bytes(b"layers = 2 # \xff\n")
    plain, dirty = (site.submit(*more).stdout.split()[0] for more in ((), ("--dirty",)))
    assert Path(plain, "src/model.py").read_text() == "layers = 1\n"
    assert Path(plain, "record/diff").read_text() == ""
    assert Path(dirty, "src/model.py").read_bytes() == b"layers = 2 # \xff\n"
    assert b"+layers = 2 # \xff\n" in Path(dirty, "record/diff").read_bytes()


def test_a_recipe_may_be_the_platforms_or_a_file(site):
    own = site.home / "My Own.yaml"
    own.write_text("name: own\n")
    for given, begins, text in (("large", "large-", "name: large\n"), (own, "my-own-", "name: own\n")):
        run = Path(site.submit("--recipe", given).stdout.split()[0])
        assert run.name.startswith(begins)
        assert (run / "recipe.yaml").read_text() == text


def test_the_evaluation_is_a_second_job_on_one_node_that_waits_for_the_first(site):
    done = site.submit("--evaluate")
    run, train, evaluate = done.stdout.split()
    assert (train, evaluate) == ("1", "2")
    assert re.search(rf"--nodes=1 .*--dependency=after:1 {run}/record/evaluate.sbatch {run}$", site.calls[1])
    assert "-m trainer.evaluate --checkpoint" in Path(run, "record/evaluate.env").read_text()


@pytest.mark.parametrize(
    ("image", "url"),
    [
        ("ubuntu:24.04", "docker://ubuntu:24.04"),
        ("docker://nvcr.io/nvidia/pytorch:26.10", "docker://nvcr.io#nvidia/pytorch:26.10"),
        ("localhost:5000/trainer", "docker://localhost:5000#trainer"),
        ("nvcr.io#nvidia/pytorch:26.10", "docker://nvcr.io#nvidia/pytorch:26.10"),
    ],
)
def test_an_image_is_named_as_enroot_reads_it(site, image, url):
    done = site.submit("--env", "", "--container", image, "--dry-run")
    mounts = f"--container-mounts={site.home}/fsx:{site.home}/fsx,/opt/dlami/nvme:/opt/dlami/nvme"
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("container="))
    assert line.replace("'", "") == f"container=(--container-image={url} {mounts})"
    assert "/opt/trainer/bin/python -m trainer.train" in done.stdout


def test_a_dry_run_submits_nothing(site):
    done = site.submit("--dry-run")
    assert done.stdout.startswith("sbatch --parsable --job-name=small-")
    assert_nothing_is_left(site)


@dataclass
class Job:
    """A run's folder as the jobs' script finds it."""

    site: Site
    run: Path

    def start(self, *codes: int, kind: str = "train", ranks: str = "", **env: str) -> subprocess.Popen[str]:
        """supervise.sh with ranks that end with these codes."""
        what = f'{ranks}\ncodes=({" ".join(map(str, codes))}); exit "${{codes[$RANK]}}"'
        text = f"container=()\ncommand=(bash -c {word(what)})\n"
        (self.run / f"record/{kind}.env").write_text(text)
        slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NODELIST": "n1", **env}
        return subprocess.Popen(
            ["bash", self.run / f"record/{kind}.sbatch", self.run], env={**self.site.env, **slurm},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.run / "src",
        )  # fmt: skip

    def end(self, *codes: int, **more: str) -> tuple[int, str]:
        job = self.start(*codes, **more)
        told, _ = job.communicate(timeout=60)
        return job.returncode, told

    @property
    def requeued(self) -> int:
        return self.site.calls.count("scontrol requeue 77")


def word(text: str) -> str:
    """A word of bash."""
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.fixture
def job(site) -> Job:
    run = Path(site.submit().stdout.split()[0])
    Path(site.env["CALLS"]).unlink()
    return Job(site, run)


@pytest.mark.parametrize(
    ("codes", "code", "requeued", "said"),
    [
        ((0, 0), 0, 0, "train ended with 0: over"),
        ((2, 2), 2, 0, "the input does not fit"),
        ((70, 137), 70, 0, "FATAL, a person must look"),
        ((137, 70), 70, 0, "FATAL, a person must look"),
        ((2, 143), 2, 0, "the input does not fit"),
        ((1, 1), 0, 1, "ended with 1 (ranks: 1 ); the job is requeued"),
        ((71, 1), 0, 1, "ended with 71 (ranks: 1 71 ); the job is requeued"),
        ((75, 75), 0, 1, "the job is requeued"),
        ((76, 75), 0, 1, "the job is requeued"),
        ((0, 137), 0, 1, "the job is requeued"),
    ],
)
def test_how_ranks_end_decides_what_comes_next(job, codes, code, requeued, said):
    ended, told = job.end(*codes)
    assert (ended, job.requeued) == (code, requeued), told
    assert said in told


def test_a_job_stopped_from_outside_waits_for_its_ranks_and_is_not_requeued(job):
    """scancel and scontrol requeue send SIGTERM to all; a requeue by the job itself would undo the first."""
    waits = "trap 'touch saved; exit 75' TERM; touch up$RANK; while :; do sleep 0.1; done"
    started = job.start(75, 75, ranks=waits)
    until((job.run / "src/up0").exists)
    for process in (started.pid, *rank_pids(job)):
        os.kill(process, signal.SIGTERM)
    until((job.run / "src/up1").exists)
    for process in rank_pids(job):
        os.kill(process, signal.SIGTERM)
    told, _ = started.communicate(timeout=30)
    assert (started.returncode, job.requeued) == (75, 0), told
    assert "train ended with 75: stopped from outside" in told
    assert (job.run / "src/saved").exists()


def rank_pids(job: Job) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-f", f"^bash {job.run}/record/task.sh|^bash -c trap.*codes"],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    mine = [int(pid) for pid in found]
    return [pid for pid in mine if Path(f"/proc/{pid}/cwd").readlink() == job.run / "src"]


def until(there) -> None:
    deadline = time.monotonic() + 20
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_that_starts_without_end_and_gets_nowhere_stops(job):
    """Five starts from one checkpoint; a checkpoint in between counts anew."""
    log = job.run / "train.log"
    for start in range(3):
        assert job.end(1, 1, SLURM_RESTART_COUNT=str(start))[0] == 0
    log.write_text("[trainer] step=9 loss=1\n[trainer] checkpoint step=50 bytes=1\n")
    for start in range(3, 8):
        assert job.end(1, 1, SLURM_RESTART_COUNT=str(start))[0] == 0
    assert job.requeued == 8
    code, told = job.end(1, 1, SLURM_RESTART_COUNT="8")
    assert (code, job.requeued) == (1, 8)
    assert "no progress beyond step 50 in 5 starts; it is not requeued" in told
    assert len([call for call in job.site.calls if call.startswith("srun")]) == 8


def test_each_start_records_what_was_edited(job):
    job.end(0, 0)
    (job.run / "src/model.py").write_text("layers = 3\n")
    (job.run / "recipe.yaml").write_text("name: small\nsteps: 9\n")
    job.end(0, 0, SLURM_RESTART_COUNT="1")
    record = job.run / "record"
    assert (record / "train-0.diff").read_text() == ""
    assert "+layers = 3\n" in (record / "train-1.diff").read_text()
    assert "steps: 9" in (record / "train-1.yaml").read_text()


def test_ranks_find_each_other_by_the_steps_nodes(job):
    """Auto-resume exchanges nodes: the job's own list would name one that is gone."""
    for nodes, first in (
        ("ip-10-0-0-[3-5,9]", "ip-10-0-0-3"), ("ip-10-0-0-7,ip-10-0-1-[1-2]", "ip-10-0-0-7"), ("n1", "n1"),
        ("ip-10-0-[004-016]", "ip-10-0-004"),
    ):  # fmt: skip
        shown = 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT"'
        _, told = job.end(0, 0, ranks=shown, SLURM_STEP_NODELIST=nodes)
        assert f"0/2 0/2 {first} 20077\n" in told
        assert f"1/2 1/2 {first} 20077\n" in told


def test_a_rank_that_ends_first_lets_rank_0_say_why(job):
    """All ranks see a fault of the input; srun kills the others when one has ended."""
    exits = job.run / "exits"
    exits.mkdir()
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1"}
    ranks = [
        subprocess.Popen(
            ["bash", JOBS / "task.sh", exits, "bash", "-c", f"sleep {1 - rank}; exit 2"],
            env={**job.site.env, **slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
                 "TRAINSHED_NODELIST": ""},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    until((exits / "1").exists)
    assert ranks[1].poll() is None
    assert [rank.wait(20) for rank in ranks] == [2, 2]
    assert (exits / "0").read_text() == "2\n"


def test_auto_resume_is_used_where_srun_offers_it(job):
    job.end(0, 0)
    job.end(0, 0, SRUN_HELP="      --auto-resume=n   HyperPod: replace faulty nodes")
    without, with_it = (call for call in job.site.calls if call.startswith("srun"))
    assert "--auto-resume" not in without
    assert "--auto-resume=1 bash " in with_it
    for call in (without, with_it):
        assert "--kill-on-bad-exit=1 --distribution=block" in call


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_jobs_may_be_requeued_and_keep_their_log(kind):
    directives = re.findall(r"^#SBATCH (\S+)$", (JOBS / f"{kind}.sbatch").read_text(), re.M)
    assert {"--requeue", "--open-mode=append", "--exclusive"} <= set(directives)
    assert ("--signal=USR1@600" in directives) == (kind == "train")


@pytest.mark.skipif(not (shutil.which("shellcheck") and shutil.which("shfmt")), reason="no shellcheck, shfmt")
def test_scripts_of_jobs_are_clean():
    for command in (["shellcheck"], ["shfmt", "-i", "2", "-d"]):
        done = subprocess.run(
            [*command, *sorted(JOBS.iterdir())], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


UV = """\
echo "uv $*" >>"$CALLS"
if [[ $1 == venv ]]; then
  mkdir -p "${*: -1}/bin" && : >"${*: -1}/bin/python"
else
  [[ -z ${SLOW:-} ]] || { touch "$SLOW"; sleep 30; }
  exit "${UV_FAILS:-0}"
fi"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("create", "Torch"), r"NAME: given Torch; allowed: a to z, .*; choose another"),
        (("create", "../x"), r"NAME: given \.\./x; allowed: a to z, "),
        (("create", "torch"), r"NAME: given torch; allowed: a new name; trainshed-env remove torch, or "),
        (("create", "x", "--python", "3.1"), r"--python: given 3\.1; allowed: .*python3.*; choose one"),
        (("create", "x", "--requirements", "no.txt"), r"--requirements: given no\.txt; allowed: a file; "),
        (("remove", "x"), r"NAME: given x; allowed: none yet; choose one"),
    ],
)
def test_an_environment_that_cannot_be_is_refused_in_one_line(site, given, said):
    before = sorted((site.user / "venvs").iterdir())
    done = site.tool("trainshed-env", *given)
    assert done.returncode == 2
    assert re.fullmatch(rf"trainshed-env: {said}.*\n", done.stderr), done.stderr
    assert sorted((site.user / "venvs").iterdir()) == before


def test_an_environment_is_made_without_uv_and_works(site):
    done = site.tool("trainshed-env", "create", "new", "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    python = site.user / "venvs/new/bin/python"
    shown = subprocess.check_output([python, "-c", "import sys; print(sys.prefix)"], text=True)
    assert shown.strip() == str(site.user / "venvs/new")
    assert site.tool("trainshed-env", "list").stdout == "new\n"
    assert site.tool("trainshed-env", "remove", "new").returncode == 0
    assert not python.exists()
    assert sorted(path.name for path in (site.user / "venvs").iterdir()) == ["torch"]


def test_an_environment_is_made_with_uv_where_it_is(site):
    fake(site.home / "fakes/uv", UV)
    (site.home / "wanted.txt").write_text("numpy\n")
    done = site.tool("trainshed-env", "create", "new", "--python", "python3", "--requirements", "wanted.txt")
    assert done.returncode == 0, done.stderr
    own = site.user / "venvs/.new"
    assert re.fullmatch(rf"uv venv --quiet --python \S+/python3 {own}", site.calls[0])
    assert site.calls[1] == f"uv pip install --python {own}/bin/python -r wanted.txt"
    assert (site.user / "venvs/new").resolve() == own


@pytest.mark.parametrize("how", ["fails", "signal"])
def test_no_half_made_environment_is_left(site, how):
    fake(site.home / "fakes/uv", UV)
    (site.home / "wanted.txt").write_text("numpy\n")
    given = ("create", "new", "--requirements", "wanted.txt")
    if how == "fails":
        done = site.tool("trainshed-env", *given, UV_FAILS="3")
        assert done.returncode == 1
        assert done.stderr.endswith("uv ended with 3; nothing is left\n")
    else:
        slow = site.home / "slow"
        process = subprocess.Popen(
            [sys.executable, BIN / "trainshed-env", *given],
            cwd=site.home,
            env={**site.env, "SLOW": str(slow)},
        )
        until(slow.exists)
        process.send_signal(signal.SIGHUP)  # the user's connection broke
        assert process.wait(40) != 0
    assert sorted(path.name for path in (site.user / "venvs").iterdir()) == ["torch"]


def test_the_collector_looks_where_runs_put_their_metrics():
    port = re.search(r"^METRICS_PORT = (\d+)$", (ROOT / "lifecycle/bin/trainshed-run").read_text(), re.M)
    assert port
    assert f"127.0.0.1:{port[1]}'" in (ROOT / "lifecycle/steps/collector.sh").read_text()
