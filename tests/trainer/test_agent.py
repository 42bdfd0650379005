"""HyperPod's real elastic agent, two nodes of one rank each, driven by a stand-in for the operator."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
from pathlib import Path

import pytest
import yaml
from hyperpod_elastic_agent import run as agent
from hyperpod_elastic_agent.config import ShutdownConfig
from hyperpod_elastic_agent.elastic_agent.hyperpod_elastic_agent import HyperPodElasticAgent
from hyperpod_elastic_agent.elastic_agent.plr_hyperpod_elastic_agent import PLRHyperPodElasticAgent
from hyperpod_elastic_agent.logagent.log_agent import LogEvaluator

from tests.trainer.operator import ROOT, Operator, Pod
from tests.trainer.runs import RECIPE, SMALL
from trainer import launch_hyperpod
from trainer.data import main as data_main
from trainer.errors import TrainerError
from trainer.tracking import fatal, line

RULES = yaml.safe_load((ROOT / "trainer" / "hyperpod-rules.yaml").read_text())
HANG_S = 6
STEP = re.compile(r"^\[trainer\] step=(\d+) ", re.MULTILINE)
ALIVE = re.compile(r"^\[trainer\] alive step=(\d+)$", re.MULTILINE)
RESUMED = re.compile(r"^\[trainer\] resumed step=(\d+) ", re.MULTILINE)
STOPPED = re.compile(r"^\[trainer\] stopped step=(\d+) signal=(\w+) saved=(\w+)", re.MULTILINE)


def rules() -> list[dict]:
    """The shipped rules with limits that a test can wait for."""
    hang = {"expectedStartCutOffInSeconds": 90, "expectedRecurringFrequencyInSeconds": HANG_S}
    return [rule | hang if rule["name"] == "Hang" else rule for rule in RULES]


class Job:
    """Two pods, and a recipe that can change between starts."""

    def __init__(self, folder: Path, data: Path):
        self.folder, self.recipe = folder, folder / "recipe.yaml"
        own = [f"data.streams=[{{url: {data}}}]", f"data.cache.directory={folder}/cache"]
        own += [f"checkpoint.folder={folder}/checkpoints", f"tracking.jsonl={folder}/metrics.jsonl"]
        flags = [part for setting in (*SMALL, *own) for part in ("--set", setting)]
        command = ["-m", "trainer.train", str(self.recipe), *flags]
        self.write()
        self.pods = [Pod(folder, number, 2, command) for number in range(2)]
        self.operator = Operator(self.pods, rules())

    def write(self, name: str = "goes-well", **changed: object) -> None:
        recipe = yaml.safe_load(RECIPE.read_text()) | {"steps": 400, "name": name}
        recipe["optimizer"] = recipe["optimizer"] | changed
        self.recipe.write_text(yaml.safe_dump(recipe))

    def start(self) -> None:
        """Start, and wait until both nodes have told of two steps."""
        seen = [
            len(pattern.findall(pod.text())) for pattern, pod in zip((STEP, ALIVE), self.pods, strict=True)
        ]
        self.operator.start()
        self.operator.told(STEP, pod=0, count=seen[0] + 2)
        self.operator.told(ALIVE, pod=1, count=seen[1] + 2)

    def published(self, step: str) -> bool:
        return (self.folder / "checkpoints" / f"step-{int(step):08d}" / "_PUBLISHED.json").exists()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    if not os.access("/opt", os.W_OK):
        pytest.skip("the agent writes to /opt/ml/input/config")
    folder = tmp_path_factory.mktemp("hyperpod")
    assert data_main(["synthesize", "--out", str(folder / "data"), "--samples", "64"]) == 0
    job = Job(folder, folder / "data")
    try:
        yield job
    finally:
        for pod in job.pods:
            pod.close()


def test_a_graceful_stop_saves_and_the_next_start_goes_on_from_there(job):
    job.start()
    job.operator.stop(graceful=True)
    ((step, received, saved),) = STOPPED.findall(job.pods[0].text())
    assert (received, saved) == ("SIGUSR1", "True")
    assert job.published(step)
    job.start()
    assert RESUMED.findall(job.pods[0].text()) == [step]
    assert STEP.findall(job.pods[0].text()).count(str(int(step) + 1)) == 1, "goes on, repeats nothing"


def test_a_killed_rank_is_a_crash(job):
    (worker,) = job.pods[1].workers()
    worker.send_signal(signal.SIGKILL)
    assert job.operator.fault(1)[0] == "WorkerCrash"
    job.operator.stop(graceful=False, timeout=1)


def test_a_rank_that_stands_still_is_a_hang_on_every_node(job):
    job.start()
    assert len(RESUMED.findall(job.pods[0].text())) == 2, "the crash lost nothing that was saved"
    (worker,) = job.pods[1].workers()
    worker.suspend()
    assert job.operator.fault(0, timeout=HANG_S + 30)[0] == "LogHang_Hang"
    assert job.operator.fault(1, timeout=30)[0] == "LogHang_Hang"
    job.operator.stop(graceful=False, timeout=1)


def test_a_number_that_is_not_finite_is_the_fault_that_the_operator_sees(job):
    job.write("diverges", lr=1e30)  # under a name of its own: nobody is to go on from what it saves
    job.operator.start()
    reason, message = job.operator.fault(0)
    assert reason == "LogFault_NotFinite"
    assert "[trainer] FATAL reason=nan step=" in message
    job.operator.stop(graceful=False, timeout=1)
    job.write()


def test_a_pod_that_is_taken_down_saves_first(job):
    job.start()
    for pod in job.pods:
        pod.process.terminate()
    for pod in job.pods:
        pod.process.wait(60)
    step, received, saved = STOPPED.findall(job.pods[0].text())[-1]
    assert (received, saved) == ("SIGTERM", "True")
    assert job.published(step)


# ------------------------------------------------------------------------------------- rules


def verdicts(name: str, lines: list[str]) -> list[str]:
    """What the agent's own evaluator says of a shipped rule after each line."""
    evaluator = LogEvaluator(next(rule for rule in RULES if rule["name"] == name))
    return [evaluator.evaluate(entry)[0].value for entry in lines]


def step_line(seconds: float, kind: str | None = None) -> str:
    return line(kind, step=3, loss=2.0, grad_norm=math.nan, lr=1e-3, wait=0.1, step_s=seconds, loss_text=1.0)


@pytest.mark.parametrize("kind", [None, "rl"])
def test_steps_are_slow_after_five_beyond_the_limit_and_one_below_forgives(kind):
    times = [601.5] * 4 + [599.9] + [600.5] * 6
    expected = ["HEALTHY"] * 9 + ["SLOW"] * 2
    assert verdicts("Slow", [step_line(seconds, kind) for seconds in times]) == expected


def test_each_kind_of_step_is_a_sign_of_life():
    pattern = next(rule["logPattern"] for rule in RULES if rule["name"] == "Hang")
    alive = [step_line(1), step_line(1, "rl"), line("alive", step=3), line("skip", step=3), line("started")]
    assert [bool(re.match(pattern, said)) for said in alive] == [True, True, True, False, False]


@pytest.mark.parametrize("rule", [rule["name"] for rule in RULES])
def test_what_a_healthy_run_says_is_no_fault(rule):
    said = [
        line("preflight", node="a", torch="2.14"),
        line("skipped", checkpoint="step-00000003", reason='torn, see "FATAL"'),
        step_line(0.5),
        line("checkpoint", step=20, url="s3://b/x"),
        "a library says [trainer] FATAL reason=nan in the middle of a line",
        line("stopped", step=21, signal="SIGUSR1", saved=True),
    ]
    assert not set(verdicts(rule, said)) & {"FAULTED", "SLOW", "HANGING"}


def test_each_reason_has_its_fault(capsys):
    for reason, faulted in {"nan": "NotFinite", "nan_3_in_a_row": "NotFinite", "hang": "Fatal"}.items():
        fatal(reason, "x", step=1)
        said = capsys.readouterr().out
        hit = [rule["name"] for rule in RULES if "FAULTED" in verdicts(rule["name"], [said])]
        assert hit[0] == faulted


# ---------------------------------------------------------------------------------- launcher


@pytest.mark.parametrize(
    ("arguments", "environment", "number"),
    [
        (["--nnodes", "4", "-m", "trainer.train", "x.yaml"], {}, "4"),
        (["--nnodes=2:2", "-m", "trainer.train"], {}, "2"),
        (["-m", "trainer.train", "x.yaml"], {}, "1"),
        (["-m", "trainer.train", "x.yaml"], {"PET_NNODES": "16"}, "16"),
    ],
)
def test_the_number_of_nodes_comes_from_where_torchrun_takes_it(arguments, environment, number, monkeypatch):
    monkeypatch.delenv("PET_NNODES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launch_hyperpod.nodes(arguments) == number


def test_options_given_win_over_the_defaults():
    parser = argparse.ArgumentParser()
    for option in ("--log-dir", "--tee", "script"):
        parser.add_argument(option)
    agent.add_additional_hyperpod_args(parser)
    plain = parser.parse_args(launch_hyperpod.defaults(["train.py"]))
    assert (plain.shutdown_signal, plain.shutdown_timeout, plain.tee) == ("SIGTERM", 300, "3")
    given = parser.parse_args(launch_hyperpod.defaults(["--shutdown-timeout=9", "--log-dir=/x", "train.py"]))
    assert (given.shutdown_timeout, given.log_dir) == (9, "/x")


def timeout() -> int:
    """Seconds that an agent configured with 200 gives its ranks, once torch's base class has had its say."""
    instance = object.__new__(PLRHyperPodElasticAgent)
    instance._shutdown_config = ShutdownConfig(200, "SIGTERM")
    instance._shutdown_timeout = 30
    return instance._shutdown_timeout


def test_an_agent_made_for_this_torch_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(agent, "get_args_parser", argparse.ArgumentParser)
    launch_hyperpod.mend()
    assert agent.get_args_parser is argparse.ArgumentParser
    assert timeout() == 30


def test_an_agent_that_clashes_is_mended(monkeypatch):
    torchrun = agent.get_args_parser
    monkeypatch.setattr(agent, "get_args_parser", torchrun)  # both are taken back at the end
    monkeypatch.setattr(HyperPodElasticAgent, "_shutdown_timeout", 0, raising=False)
    with pytest.raises(argparse.ArgumentError):
        agent.add_additional_hyperpod_args(torchrun())
    launch_hyperpod.mend()
    parser = agent.get_args_parser()
    agent.add_additional_hyperpod_args(parser)
    assert parser.parse_args(launch_hyperpod.defaults(["train.py"])).shutdown_timeout == 300
    assert timeout() == 200


def test_without_the_agent_one_line_says_what_to_do(monkeypatch):
    monkeypatch.setattr(launch_hyperpod, "find_spec", lambda name: None)
    with pytest.raises(TrainerError, match=r"without hyperpod-elastic-agent; .*pip install"):
        launch_hyperpod.main([])
