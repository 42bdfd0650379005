"""The launcher whose ranks are forks of a process that has imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.trainer.runs import ROOT, Run
from trainer import launch
from trainer.resilience import Exit
from trainer.synthesize import Scale, synthesize


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "mds"
    synthesize(str(folder), 32, 0, scale=Scale(cameras=1, side=32, lidar=32, radar=8), shard_bytes=1 << 17)
    return folder


def test_what_the_server_imports_can_be_forked():
    """No thread, which a fork would lack, and no question to CUDA, after which forks cannot use it."""
    code = f"""
import os, torch
def asked(*_): raise SystemExit("CUDA was asked")
torch._C._cuda_getDeviceCount = torch._C._cuda_init = torch.cuda._lazy_init = asked
import {", ".join(launch.MODULES)}
assert len(os.listdir("/proc/self/task")) == 1, "threads"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=os.environ | launch.ENVIRONMENT)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["recipe.yaml"], "no -m"),
        (["-m", "trainer.trian", "recipe.yaml"], "-m trainer.trian"),
        (["-m"], "no -m"),
    ],
)
def test_another_module_is_refused(arguments, given, capsys):
    assert launch.main(["--standalone", *arguments]) == Exit.RECIPE
    (told,) = capsys.readouterr().out.splitlines()
    allowed = "-m trainer.train, trainer.evaluate"
    assert told == (
        f'[trainer] error text="launch: given {given}; allowed {allowed}; fix: torchrun runs anything else"'
    )


def test_a_fault_is_one_line_and_its_code_the_launchers(data, tmp_path):
    with Run(tmp_path / "fault", data, "stepz=3") as run:
        assert run.end() == Exit.RECIPE, run.text()
    (told,) = run.lines("error")
    assert "stepz" in told
    assert "Traceback" not in run.text()


def test_a_restart_imports_nothing_and_a_rank_has_its_variables(data, tmp_path):
    """Ranks before and after a kill are children of one server, which is not the launcher."""
    variables = {"TRAINSHED_TEST": "there"}
    with Run(tmp_path / "kill", data, "steps=1000000", restarts=1, environment=variables) as run:
        run.wait_for(r"^\[trainer\] checkpoint step=3")
        before = run.ranks()
        servers = [psutil.Process(before[0]).parent()]
        assert servers[0].ppid() == run.process.pid
        assert servers[0].environ()["TRAINSHED_TEST"] == "there"
        os.kill(before[1], signal.SIGKILL)
        run.wait_for(r"^\[trainer\] started", count=2)
        after = run.ranks()
        assert sorted(after) == [0, 1]
        assert not set(after.values()) & set(before.values())
        assert [psutil.Process(pid).parent() for pid in after.values()] == servers * 2
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.end() == 128 + signal.SIGTERM
        assert "saved=True" in run.lines("stopped")[-1]
    gone, _ = psutil.wait_procs(servers, timeout=20)
    assert gone == servers, "the server ends with the launcher"
