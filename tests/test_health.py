"""Node health without Slurm: XIDs to actions, the order of events, checks that are off or hang, metrics."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.machine import need
from tests.support import ROOT

HEALTH = ROOT / "lifecycle/health"
MODULES = ("node", "policy", "kernel", "probes", "slurm_state", "slurm_numbers", "check", "metrics")
HERE = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
RANK = ("none", "drain", "reboot", "replace")
# "Detect node health issues with the EKS node monitoring agent", table of well-known XID codes.
EKS = {
    46: "Reboot", 48: "Reboot", 54: "Reboot", 62: "Reboot", 63: "Reboot", 64: "Replace", 74: "Replace",
    79: "Replace", 95: "Reboot", 109: "Reboot", 110: "Reboot", 119: "Replace", 120: "Replace", 136: "Reboot",
    140: "Reboot", 142: "Replace", 143: "Reboot", 151: "Replace", 155: "Reboot", 156: "Reboot", 158: "Reboot",
}  # fmt: skip
# Where NVIDIA's catalogue or AWS's own check says otherwise, and we follow them; the table says why.
OTHERWISE = {54: "Replace", 63: "None", 119: "Reboot", 120: "Reboot", 151: "Reboot"}
# NVIDIA's catalogue: IGNORE, or RESTART_APP, which asks nothing of the node.
HARMLESS = (13, 31, 43, 63, 92, 94, 121, 137, 157, 160, 161)
EXPECTED = {
    **{x: a.lower() for x, a in (EKS | OTHERWISE).items()},
    **dict.fromkeys(HARMLESS, "none"),
    168: "drain",
}


class Slurm:
    """What the check sees of scontrol: one node's state and reason."""

    def __init__(self, state: str = "IDLE", reason: str = "") -> None:
        self.state, self.reason, self.up = state, reason, True
        self.asked: list[str] = []

    def __call__(self, seconds: float, *command: str) -> tuple[int | None, str]:
        assert command[0] == "scontrol"
        if not self.up:
            return 1, ""
        if "show" in command:
            reason = f" Reason={self.reason} [root@2026-11-30T13:00:00]" if self.reason else ""
            return (
                0,
                f"NodeName=n1 CPUAlloc=0 State={self.state} ThreadsPerCore=1 Weight=1{reason} Comment=x\n",
            )
        words = dict(word.split("=", 1) for word in command[2:])
        self.state = {"fail": "IDLE+FAIL", "drain": "IDLE+DRAIN", "resume": "IDLE"}[words["state"]]
        self.reason = words.get("reason", "")
        self.asked.append(f"{words['state']} {self.reason}".strip())
        return 0, ""


class Host:
    """A node's files in a folder, and its check in this process."""

    def __init__(self, modules: SimpleNamespace, root: Path) -> None:
        self.modules, self.root, self.slurm = modules, root, Slurm()
        self.log = root / "dev/kmsg"
        for name, text in {"dev/kmsg": "", "proc/sys/kernel/random/boot_id": "one\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.sequence = 100

    def write(self, path: str, value: object) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(value if isinstance(value, str) else json.dumps(value))

    def settings(self, **xids: str) -> None:
        self.write("opt/trainshed/settings.json", {"lustre": None, "nodes": {"health": {"xids": xids}}})

    def xid(self, *numbers: int, words: str = "pid=1, name=python3, Ch 00000008") -> None:
        with self.log.open("a") as file:
            for number in numbers:
                self.sequence += 1
                file.write(
                    f"4,{self.sequence},81{self.sequence},-;NVRM: Xid (PCI:0000:b3:00): {number}, {words}\n"
                )

    def check(self) -> dict[str, object]:
        run = self.modules.node.run
        self.modules.node.run = lambda s, *c: self.slurm(s, *c) if c[0] == "scontrol" else run(s, *c)
        try:
            self.modules.check.look()
        finally:
            self.modules.node.run = run
        return json.loads((self.root / "run/trainshed/health.json").read_text())

    def said(self) -> str:
        log = self.root / "var/log/trainshed/health.log"
        return log.read_text() if log.exists() else ""


def programs(root: Path) -> SimpleNamespace:
    """The health programs with `root` for `/`."""
    for name in MODULES:
        sys.modules.pop(name, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINSHED_ROOT", str(root))
        patch.setenv("PATH", os.environ["PATH"])  # which the programs lengthen
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.delenv("TRAINSHED_SETTINGS", raising=False)
        patch.syspath_prepend(str(HEALTH))
        found = SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)
    return found


@pytest.fixture
def host(tmp_path):
    return Host(programs(tmp_path), tmp_path)


def counted(state) -> dict[int, int]:
    found = Counter()
    for key, count in state["counts"].items():
        found[int(key.split()[0])] += count
    return +found


@pytest.mark.parametrize("xid", EXPECTED)
def test_actions_are_those_published(host, xid: int):
    host.xid(xid)
    assert counted(host.check()) == {xid: 1}
    wanted = {
        "replace": ["fail Action:Replace"],
        "reboot": ["fail Action:Reboot"],
        "none": [],
        "drain": [f"drain trainshed: xid {xid} reduced GPU memory capacity"],
    }
    assert host.slurm.asked == wanted[EXPECTED[xid]]


def test_every_entry_names_its_sources_and_each_dispute_its_reason():
    table = json.loads((HEALTH / "xids.json").read_text())
    for xid, entry in table["xids"].items():
        assert entry["action"] in RANK
        assert f"EKS {EKS.get(int(xid), 'event only')}" in entry["source"], xid
        assert "NVIDIA" in entry["source"], xid
        if entry["action"] != EKS.get(int(xid), "None").lower():
            assert entry.get("why"), xid
    for disputed in (54, 63, 64, 79, 119, 120, 151):
        assert table["xids"][str(disputed)]["why"]
    assert {str(x) for x in EKS} <= set(table["xids"])


@pytest.mark.parametrize(
    ("line", "xid"),
    [
        (
            "4,7,1,-;NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            79,
        ),
        ("4,7,1,-;NVRM: Xid (0000:01:00): 79, Ch 0000000b, engmask 00000120", 79),
        ("4,7,1,-,caller=T9;NVRM: Xid (PCI:0008:01:00): 79, GPU has fallen off the bus.", 79),
        ("NVRM: Xid (PCI:0000:10:1c): 79", 79),
        ("4,7,1,-;NVRM: Xid (PCI:0000:b4:00 GPU-I:05): 79, pid=9, name=python, Ch 00000008", 79),
        ("4,7,1,-;NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", None),
        ("4,7,1,-;NVRM: GPU at PCI:0000:b3:00: GPU-6ab79c", None),
        ("4,7,1,-;a.out[9]: NVRM: Xid (PCI:0000:b3:00): 79, I said so", None),
        ("6,7,1,-;NVRM: Xid (0): [77]: segfault at 79 ip 79", None),
    ],
)
def test_lines_of_the_kernel(host, line: str, xid: int | None):
    host.log.write_text(f"6,6,1,-;usb 1-1: new device\n{line}\n SUBSYSTEM=pci\n6,8,2,-;later\n")
    state = host.check()
    assert counted(state) == ({xid: 1} if xid else {})
    assert host.slurm.asked == (["fail Action:Replace"] if xid else [])
    assert counted(host.check()) == counted(state)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", ["fail Action:Reboot"]),
        ("from 0x0 (None) to 0x2 (OS Reboot)", ["fail Action:Reboot"]),
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", ["fail Action:Reboot"]),
        ("from 0x0 (None) to 0x4 (Drain and Reset)", ["drain trainshed: xid 154 recovery action changed"]),
        ("from 0x0 (None) to 0x3 (Drain P2P)", ["drain trainshed: xid 154 recovery action changed"]),
        ("from 0x2 (Node Reboot Required) to 0x0 (None)", []),
        ("without a number", []),
    ],
)
def test_xid_154_says_itself_what_is_needed(host, words: str, asked: list[str]):
    host.xid(154, words=f"GPU recovery action changed {words}")
    host.check()
    assert host.slurm.asked == asked


def test_a_deployment_changes_the_table(host):
    host.settings(**{"63": "drain", "79": "none", "154": "none", "999": "reboot"})
    host.xid(63, 79)
    host.xid(154, words="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    host.check()
    assert host.slurm.asked == ["drain trainshed: xid 63 row remapping event"]
    host.xid(999)
    host.check()
    assert host.slurm.asked[1:] == ["fail Action:Reboot"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"63": "kill"}, "'63' is 'kill'"),
        ({"63": "Drain"}, "'63' is 'Drain'"),
        ({"63": None}, "'63' is None"),
        ({"ecc": "drain"}, "'ecc' is 'drain'"),
        ({"-1": "drain"}, "'-1' is 'drain'"),
        ({"079": "drain"}, "'079' is 'drain'"),
        (["63"], "['63'] is None"),
    ],
)
def test_changes_that_cannot_be_used_are_told_and_the_table_holds(host, given: object, said: str):
    host.write("opt/trainshed/settings.json", {"nodes": {"health": {"xids": given}}})
    with pytest.raises(ValueError, match="allowed is a number with none, drain, reboot, replace") as told:
        host.modules.policy.table(given)
    assert str(told.value).startswith(f"nodes.xids: {said}; allowed")
    assert str(told.value).endswith("change it and deploy again")
    host.xid(79)
    host.check()
    assert host.slurm.asked == ["fail Action:Replace"]
    assert f"nodes.xids: {said}" in host.said()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return programs(tmp_path_factory.mktemp("node"))


runs = st.lists(st.lists(st.sampled_from(sorted(EXPECTED)), max_size=5), min_size=1, max_size=5)


def cleared(shared) -> Host:
    """A host after a reboot."""
    host = Host(shared, shared.node.ROOT)
    (host.root / "run/trainshed/health.json").unlink(missing_ok=True)
    return host


@settings(max_examples=60, deadline=None)
@given(runs)
def test_the_strongest_action_wins_in_any_order(shared, batches: list[list[int]]):
    """While Slurm is away events gather; when it is back one action is asked for, the strongest."""
    host = cleared(shared)
    host.slurm.up = False
    for batch in batches:
        host.xid(*batch)
        host.check()
    host.slurm.up = True
    host.check()
    state = host.check()
    worst = max((RANK.index(EXPECTED[x]) for batch in batches for x in batch), default=0)
    name = "trainshed: xid 168 reduced GPU memory capacity"
    assert host.slurm.reason == ["", name, "Action:Reboot", "Action:Replace"][worst]
    assert len(host.slurm.asked) == (worst > 0)
    assert counted(state) == Counter(x for batch in batches for x in batch)
    assert state["wanted"] == ["none", ""]


@settings(max_examples=60, deadline=None)
@given(runs)
def test_a_weaker_event_never_changes_what_is_there(shared, batches: list[list[int]]):
    """Slurm answers throughout: a drain may become an action, an action nothing else."""
    host, now = cleared(shared), 0
    for batch in batches:
        host.xid(*batch)
        state = host.check()
        if now < RANK.index("reboot"):
            now = max([now, *(RANK.index(EXPECTED[x]) for x in batch)])
        assert host.slurm.reason.startswith(
            ["", "trainshed: xid 168", "Action:Reboot", "Action:Replace"][now]
        )
    assert len(host.slurm.asked) <= 2
    assert counted(state) == Counter(x for batch in batches for x in batch)


def test_what_is_stronger_than_a_running_action_waits(host):
    host.slurm = Slurm("IDLE+FAIL", "Action:Reboot")
    host.xid(79)
    assert host.check()["wanted"][0] == "replace"
    assert host.slurm.asked == []
    host.slurm = Slurm()  # an operator took the action back, and nothing was rebooted
    host.check()
    assert host.slurm.asked == ["fail Action:Replace"]


@pytest.mark.parametrize(
    "stale", ["Action:Replace", "trainshed: /fsx is not mounted", "kim looks at the fan"]
)
def test_the_reason_of_a_node_that_is_back_counts_for_nothing(host, stale: str):
    """Slurm keeps it after `state=resume`."""
    host.slurm = Slurm("IDLE", stale)
    host.check()
    assert host.slurm.asked == []
    host.xid(46)
    host.check()
    assert host.slurm.asked == ["fail Action:Reboot"]


@pytest.mark.parametrize("state", ["[]", "{", '{"boot": "one\\n"}', ""])
def test_a_state_that_is_broken_or_of_another_version_is_begun_anew(host, state: str):
    host.write("run/trainshed/health.json", state)
    host.xid(79)
    assert counted(host.check()) == {79: 1}
    assert host.slurm.asked == ["fail Action:Replace"]


def test_an_action_is_asked_for_until_it_is_seen(host):
    """A controller that has just started says yes and forgets it when the node registers."""
    host.xid(79)
    assert host.check()["wanted"][0] == "replace"
    host.slurm.state = "IDLE"  # the reason stays
    host.check()
    assert host.check()["wanted"] == ["none", ""]
    assert host.slurm.asked == ["fail Action:Replace"] * 2
    host.slurm.state = "IDLE"
    host.check()
    assert len(host.slurm.asked) == 2  # seen once, it is an operator's to take back


def test_a_reboot_begins_anew(host):
    host.xid(46)
    host.check()
    host.check()
    host.slurm = Slurm()
    host.check()
    assert host.slurm.asked == []
    host.write("proc/sys/kernel/random/boot_id", "two\n")
    host.log.write_text("")
    host.sequence = 0
    host.xid(46)
    assert counted(host.check()) == {46: 1}
    assert host.slurm.asked == ["fail Action:Reboot"]


def test_a_failing_check_leaves_alone_what_an_operator_took_out(host):
    host.write("opt/trainshed/node.json", {"role": "login"})
    for state in ("IDLE+DRAIN", "MIXED+FAIL"):
        host.slurm = Slurm(state, "kim looks at the fan")
        host.check()
        assert host.slurm.asked == []


def test_an_operators_drain_keeps_its_reason_but_stops_no_action(host):
    host.slurm = Slurm("IDLE+DRAIN", "kim looks at the fan")
    host.xid(168)
    host.check()
    assert host.slurm.asked == []
    host.xid(79)
    host.check()
    assert host.slurm.asked == ["fail Action:Replace"]


def test_a_login_node_stays_drained(host):
    host.write("opt/trainshed/node.json", {"role": "login", "scratch": None, "accelerators": 0})
    for _ in range(2):
        host.check()
    assert host.slurm.asked == ["drain trainshed: login node, takes no jobs"]
    host.slurm.state, host.slurm.reason = "IDLE", ""
    host.check()
    assert host.slurm.asked == ["drain trainshed: login node, takes no jobs"] * 2


def tool(host: Host, monkeypatch, name: str, text: str) -> None:
    """A program before the system's."""
    place = host.root / "tools" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    monkeypatch.setenv("PATH", str(place.parent), prepend=":")


def test_a_check_drains_and_lets_go_again(host, monkeypatch):
    host.write("opt/trainshed/settings.json", {"lustre": {"mount_path": str(host.root)}})
    tool(host, monkeypatch, "mountpoint", "exit 32")
    host.check()
    host.check()
    assert host.slurm.asked == [f"drain trainshed: {host.root} is not mounted"]
    tool(host, monkeypatch, "mountpoint", "exit 0")
    assert host.check()["checks"] == {"lustre": ""}
    assert host.slurm.asked[1:] == ["resume"]
    # An XID's drain is not the check's to end.
    host.xid(168)
    host.check()
    host.check()
    assert host.slurm.asked[2:] == ["drain trainshed: xid 168 reduced GPU memory capacity"]


def test_a_file_system_that_hangs_is_a_fault_and_hangs_nothing(host, monkeypatch):
    host.write("opt/trainshed/settings.json", {"lustre": {"mount_path": str(host.root)}})
    monkeypatch.setitem(
        host.modules.probes.PROBES, "lustre", (0.5, *host.modules.probes.PROBES["lustre"][1:])
    )
    tool(host, monkeypatch, "stat", "sleep 60")
    began = time.monotonic()
    assert host.check()["checks"] == {"lustre": "lustre does not answer"}
    assert time.monotonic() - began < 5
    assert host.slurm.asked == ["drain trainshed: lustre does not answer"]


def test_a_probe_that_hangs_stays_the_only_one(host, monkeypatch):
    host.write("opt/trainshed/settings.json", {"lustre": {"mount_path": str(host.root)}})
    host.write("run/trainshed/lustre.lock", "")
    tool(host, monkeypatch, "stat", f"echo >>{host.root}/tried")
    with subprocess.Popen(["flock", host.root / "run/trainshed/lustre.lock", "sleep", "60"]) as stuck:
        time.sleep(0.3)
        began = time.monotonic()
        assert host.check()["checks"] == {"lustre": "lustre does not answer"}
        assert time.monotonic() - began < 5, "it is not waited for either"
        subprocess.run(["pkill", "-P", str(stuck.pid)], check=True)
    assert not (host.root / "tried").exists()


def test_scratch_that_is_off_is_silent_and_broken_is_told(host, monkeypatch):
    host.write("opt/trainshed/node.json", {"scratch": str(host.root / "none")})
    assert host.check()["checks"] == {}
    assert host.slurm.asked == []
    tool(host, monkeypatch, "mountpoint", "exit 0")
    assert host.check()["checks"] == {"scratch": f"{host.root}/none cannot be written"}
    (host.root / "none").mkdir()
    assert host.check()["checks"] == {"scratch": ""}


def test_accelerators_are_counted_where_there_is_a_tool(host, monkeypatch):
    host.write("opt/trainshed/node.json", {"accelerators": 2, "scratch": None})
    assert host.check()["checks"] == {}
    tool(
        host, monkeypatch, "nvidia-smi", "echo 'GPU 0: H100 (UUID: GPU-1)'; echo 'GPU 1: H100 (UUID: GPU-2)'"
    )
    assert host.check()["checks"] == {"accelerators": ""}
    lost = "echo 'GPU 0: H100 (UUID: GPU-1)'; echo 'Unable to determine the device handle for GPU1'; exit 255"
    tool(host, monkeypatch, "nvidia-smi", lost)
    assert host.check()["checks"] == {"accelerators": "fewer than 2 accelerators answer"}
    assert host.slurm.asked == ["drain trainshed: fewer than 2 accelerators answer"]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda root: None,
        lambda root: (root / "run").write_text("a file"),
        lambda root: (root / "var").write_text("a file"),
        lambda root: (root / "dev").mkdir() or (root / "dev/kmsg").mkdir(),
        lambda root: (
            (root / "run/trainshed").mkdir(parents=True)
            or (root / "run/trainshed/health.json").write_text("[]")
        ),
    ],
)
def test_the_program_ends_with_0_whatever_is_broken(tmp_path, break_it):
    random = tmp_path / "proc/sys/kernel/random"
    random.mkdir(parents=True)
    (random / "boot_id").write_text("one\n")
    break_it(tmp_path)
    for program in ("check.py", "metrics.py", "prolog.sh", "epilog.sh"):
        done = subprocess.run(
            [HEALTH / program], env={**HERE, "TRAINSHED_ROOT": str(tmp_path)}, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), program


def test_the_program_ends_in_time_even_when_python_itself_hangs(host, monkeypatch):
    """The alarm, shortened: nothing in the program may catch it."""
    source = (HEALTH / "check.py").read_text()
    assert source.count("signal.alarm(50)") == 1
    place = host.root / "program"
    place.mkdir()
    for path in HEALTH.glob("*.*"):
        (place / path.name).write_text(path.read_text().replace("signal.alarm(50)", "signal.alarm(1)"))
    subprocess.run(["mkfifo", host.root / "proc/sys/kernel/random/fifo"], check=True)
    (host.root / "proc/sys/kernel/random/boot_id").unlink()
    (host.root / "proc/sys/kernel/random/fifo").rename(host.root / "proc/sys/kernel/random/boot_id")
    done = subprocess.run(
        [sys.executable, place / "check.py"], env={"TRAINSHED_ROOT": str(host.root)}, check=False, timeout=20
    )
    assert done.returncode == 0


def test_the_real_log_can_be_read(host):
    """The kernel hands out records one by one and says when there are no more."""
    if not Path("/dev/kmsg").is_char_device():
        pytest.skip("this machine has no /dev/kmsg")
    host.log.unlink()
    host.log.symlink_to("/dev/kmsg")
    try:
        host.log.open("rb").close()
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error}")
    text = host.modules.kernel.log()
    assert re.match(r"\d+,\d+,\d+,", text)
    assert text.endswith("\n")


def written(host: Host) -> dict[str, str]:
    place = host.root / "var/lib/trainshed/metrics"
    place.mkdir(parents=True, exist_ok=True)
    env = {**HERE, "TRAINSHED_ROOT": str(host.root), "PATH": f"{host.root}/tools:{os.defpath}"}
    subprocess.run([HEALTH / "metrics.py"], env=env, check=True, timeout=60)
    return {path.name: path.read_text() for path in place.iterdir()}


def adapter(host: Host, name: str, driver: str, **counters: int) -> None:
    device = host.root / "sys/class/infiniband" / name
    (device / "device").mkdir(parents=True)
    (host.root / "sys/bus/drivers" / driver).mkdir(parents=True, exist_ok=True)
    (device / "device/driver").symlink_to(host.root / "sys/bus/drivers" / driver)
    (device / "ports/1/hw_counters").mkdir(parents=True)
    for counter, value in counters.items():
        (device / "ports/1/hw_counters" / counter).write_text(f"{value}\n")


def test_metrics_of_a_worker(host):
    assert written(host) == {}
    adapter(host, "rdmap0s6", "efa", tx_bytes=12, rdma_read_wr_err=0, lifespan=12)
    adapter(host, "ibp3s0", "mlx5_core", tx_bytes=99)
    host.write("opt/trainshed/node.json", {"role": "worker", "scratch": str(host.root)})
    host.xid(79, 79)
    host.check()
    assert "trainshed_xid_action_waiting 1" in written(host)["health.prom"].splitlines()
    host.check()
    files = written(host)
    assert set(files) == {"efa.prom", "health.prom"}
    efa = [line for line in files["efa.prom"].splitlines() if not line.startswith("#")]
    assert efa == [
        'node_amazonefa_info{device="rdmap0s6"} 1',
        'node_amazonefa_lifespan{device="rdmap0s6",port="1"} 12',
        'node_amazonefa_rdma_read_wr_err{device="rdmap0s6",port="1"} 0',
        'node_amazonefa_tx_bytes{device="rdmap0s6",port="1"} 12',
    ]
    health = files["health.prom"].splitlines()
    assert 'trainshed_xid_total{xid="79",action="replace"} 2' in health
    # Without a value before the first event, increase() would not see that one.
    assert 'trainshed_xid_total{xid="64",action="replace"} 0' in health
    assert 'trainshed_xid_total{xid="154",action="reboot"} 0' in health
    assert "trainshed_xid_action_waiting 0" in health
    lint(files)


def test_a_feature_that_goes_takes_its_file_along(host):
    adapter(host, "rdmap0s6", "efa", tx_bytes=12)
    assert set(written(host)) == {"efa.prom"}
    (host.root / "sys/class/infiniband/rdmap0s6/ports/1/hw_counters/tx_bytes").write_text("N/A\n")
    assert written(host) == {}


def test_metrics_of_a_controller(host, monkeypatch):
    host.write("opt/trainshed/node.json", {"role": "controller"})
    assert written(host) == {}
    rows = [
        "n1 dev mixed 4/4/0/8 4000 1000 gpu:h100:8(S:0-1) gpu:h100:2(IDX:0-1)",
        "n2 dev fail* 0/0/8/8 4000 0 gpu:8 gpu:0",
        "n2 big fail* 0/0/8/8 4000 0 gpu:8 gpu:0",
        "n3 big idle~ 0/8/0/8 4000 0 (null) (null)",
    ]
    tool(host, monkeypatch, "sinfo", "cat <<E\n" + "\n".join(rows) + "\nE")
    tool(host, monkeypatch, "squeue", "printf 'RUNNING|dev\\nPENDING|dev,big\\nPENDING|big\\n'")
    files = written(host)
    values = {line for line in files["slurm.prom"].splitlines() if not line.startswith("#")}
    assert values == {
        "slurm_node_count 3", "slurm_job_count 3",
        'slurm_node_state_count{state="mixed"} 1', 'slurm_node_state_count{state="fail"} 1',
        'slurm_node_state_count{state="idle"} 1',
        'slurm_job_state_count{state="running"} 1', 'slurm_job_state_count{state="pending"} 2',
        'slurm_partition_node_count{partition="dev"} 2', 'slurm_partition_node_count{partition="big"} 2',
        'slurm_partition_job_count{partition="dev"} 2', 'slurm_partition_job_count{partition="big"} 2',
        'slurm_partition_alloc_cpus{partition="dev"} 4', 'slurm_partition_free_cpus{partition="dev"} 4',
        'slurm_partition_alloc_cpus{partition="big"} 0', 'slurm_partition_free_cpus{partition="big"} 8',
        'slurm_partition_alloc_memory{partition="dev"} 1000',
        'slurm_partition_alloc_memory{partition="big"} 0',
        'slurm_partition_free_memory{partition="dev"} 7000',
        'slurm_partition_free_memory{partition="big"} 8000',
        'slurm_partition_alloc_gpus{partition="dev"} 2', 'slurm_partition_free_gpus{partition="dev"} 14',
        'slurm_partition_alloc_gpus{partition="big"} 0', 'slurm_partition_free_gpus{partition="big"} 8',
    }  # fmt: skip
    lint(files)
    tool(host, monkeypatch, "squeue", "exit 1")
    assert written(host) == {}


def lint(files: dict[str, str]) -> None:
    need(promtool="prometheus")
    text = "".join(files.values())
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_shell_programs_are_clean():
    need(shellcheck="shellcheck")
    done = subprocess.run(
        ["shellcheck", *sorted(HEALTH.glob("*.sh"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_page_of_xids_is_the_table():
    """docs/xids.md shows each entry as it is in xids.json."""
    page = (ROOT / "docs/xids.md").read_text()
    table = json.loads((HEALTH / "xids.json").read_text())
    wanted = []
    for xid, entry in table["xids"].items():
        cells = (xid, entry["name"], entry["action"], entry["source"], entry.get("why", ""))
        wanted.append(f"| {' | '.join(cells)} |")
    assert [line for line in page.splitlines() if re.match(r"\| \d", line)] == wanted
    assert all(url in page for url in table["sources"].values())
    for code, action in table["xids"]["154"]["recovery"].items():
        assert f"`{code}` {action}" in page
