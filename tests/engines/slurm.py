"""A Slurm cluster of real daemons on hosts made of namespaces: one controller, workers that can be killed.

A host is a process with its own network, host name, process ids and mounts, on a bridge, over a Debian tree;
all of it goes when the process does. Hosts share `/fsx` and see this checkout and the trainer's Python,
read-only, at their own paths.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.engines.machine import debian, need, one_at_a_time
from tests.support import ROOT

TRAINER = ROOT / ".venv/trainer/bin/python"
PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "procps", "python3", "git",
    "libffi8", "libssl3t64", "libbz2-1.0", "liblzma5", "libsqlite3-0", "ca-certificates",
)  # fmt: skip
USERS = {"ann": 2001, "ben": 2002}
HEAD = 100  # the controller's number, which is where people log in, too
WORKERS = 9  # numbers that have a name
PATH = "/opt/trainshed/lifecycle/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONF = """\
ClusterName=train
SlurmctldHost={head}({address})
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=cred_expire=10
SlurmctldParameters=enable_configless
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=2,batch_sched_delay=0,requeue_delay=1,permit_job_expansion
ReturnToService=1
SlurmdTimeout=10
KillWait=5
MpiDefault=none
GresTypes=gpu
SlurmdParameters=config_overrides
MaxNodeCount=16
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
NodeName={nodes} CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000 Gres=gpu:h100:{gpus} \
State=UNKNOWN
PartitionName=dev Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{more}
"""

# Process 1 of a host. The overlay and all mounts below it lie in its own mount namespace.
INIT = """\
set -e
hostname {name}
mount -t overlay overlay -o lowerdir={tree},upperdir={home}/upper,workdir={home}/work {root}
mount -t proc proc {root}/proc
mount -t tmpfs tmpfs {root}/run
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
mount -t tmpfs -o mode=755 tmpfs {root}/dev
for x in null zero urandom random tty full; do
  touch {root}/dev/$x
  mount --bind /dev/$x {root}/dev/$x
done
mkdir -m 1777 {root}/dev/shm
ln -s /proc/self/fd {root}/dev/fd
for ((g = 0; g < {gpus}; g++)); do mknod {root}/dev/nvidia$g c 1 3; done
: >{root}/dev/kmsg
mkdir -p {root}/fsx
mount --bind {fsx} {root}/fsx
{binds}
exec chroot {root} bash -c 'trap : CHLD; while :; do sleep 3600 & wait; done'
"""


class Cluster:
    """`with Cluster(folder) as cluster:` starts a controller and workers; at the end nothing is left.

    `conf`: more lines of slurm.conf. `files`: more files of every host, by path; executable with a `#!`.
    `settings`: what is found at /opt/trainshed/settings.json.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 3,
        gpus: int = 8,
        conf: str = "",
        files: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        need(ip="iproute2", nsenter="util-linux", setpriv="util-linux")
        self.tree = debian("trixie", *PACKAGES)
        self.binds = {ROOT, *trainer_paths()}
        self.folder, self.gpus, self.conf = folder, gpus, conf
        self.files = dict(files or {})
        if settings is not None:
            self.files["/opt/trainshed/settings.json"] = json.dumps(settings)
        self.fsx = folder / "fsx"
        self.workers = list(range(1, workers + 1))
        self.bridge, self.subnet = "", ipaddress.IPv4Network("10.66.0.0/24")
        self.init: dict[int, int] = {}  # process 1 of each host, by the host's number
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._made = 0

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every host and remove the bridge; logs stay in `folder`."""
        for number in list(self.init):
            self.kill(number)
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self.bridge:
            _ip("link", "del", self.bridge)
            self.bridge = ""

    def address(self, number: int) -> str:
        """A host's IPv4 address."""
        return str(self.subnet[number])

    @property
    def gateway(self) -> str:
        """This machine's own address, as hosts see it."""
        return self.address(254)

    def name(self, number: int) -> str:
        """A host's name, after HyperPod's pattern."""
        return "ip-" + self.address(number).replace(".", "-")

    def add(self, number: int) -> None:
        """Start a worker with a fresh root; one that the controller does not know yet is made known."""
        if number not in self.workers:
            self.workers.append(number)
            self.write_conf()
            self.run("scontrol", "reconfigure")
        self._host(number)
        self.run("mkdir", "-p", "/var/spool/slurmd", "/var/log/slurm", on=number)
        self._daemon(number, f"slurmd --conf-server {self.address(HEAD)}:6817")

    def kill(self, number: int) -> None:
        """`kill -9` of a host's process 1: everything on it is gone at once, as when the power is."""
        os.kill(self.init.pop(number), signal.SIGKILL)
        self._processes.pop(number).wait()

    def restart_controller(self, *, how: str = "KILL") -> None:
        """End slurmctld by a signal and start a new one, which goes on from the state that was saved."""
        self.run("pkill", f"-{how}", "slurmctld")
        self.until(lambda: bool(self.run("pgrep", "slurmctld", check=False).returncode), "slurmctld ends")
        self._daemon(HEAD, "slurmctld")
        self.until(
            lambda: self.run("scontrol", "ping", check=False).returncode == 0, "the controller answers"
        )

    def run(
        self,
        *command: object,
        on: int = HEAD,
        user: str = "root",
        env: Mapping[str, object] | None = None,
        cwd: str = "/",
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """A command on a host, with that user's environment and nothing of ours."""
        home = "/root" if user == "root" else f"/fsx/{user}"
        variables = {
            "PATH": PATH,
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "LANG": "C.UTF-8",
            **(env or {}),
        }
        inside = [
            "env", "-i", f"--chdir={cwd}", *(f"{key}={value}" for key, value in variables.items()),
            *map(str, command),
        ]  # fmt: skip
        if user != "root":
            inside = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *inside]
        done = subprocess.run(
            ["nsenter", f"--target={self.init[on]}", "-u", "-m", "-p", "-i", "-n", "-r", "-w", *inside],
            capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode:
            said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
            raise AssertionError(f"{self.name(on)}: {shlex.join(inside)}: {done.returncode}\n{said}")
        return done

    def path(self, number: int, path: str) -> Path:
        """A file of a living host, as this machine sees it."""
        return Path(f"/proc/{self.init[number]}/root{path}")

    def job(self, job: str) -> dict[str, str]:
        """`scontrol show job` as a mapping; empty when Slurm does not know it (any more)."""
        done = self.run("scontrol", "show", "job", job, check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", done.stdout)) if done.returncode == 0 else {}

    def node(self, number: int) -> dict[str, str]:
        """State (`idle`, `fail*`) and reason of a worker."""
        told = self.run("sinfo", "-h", "-n", self.name(number), "-o", "%T|%E").stdout.strip().splitlines()
        state, _, reason = told[0].partition("|") if told else ("", "", "")
        return {"state": state, "reason": reason}

    def wait_job(self, job: str, *states: str, timeout: float = 120) -> dict[str, str]:
        """Wait until a job is in one of the states; its facts."""
        found: dict[str, str] = {}

        def there() -> bool:
            found.update(self.job(job))
            return found.get("JobState") in states

        self.until(there, f"job {job} is {' or '.join(states)}", timeout, lambda: str(found))
        return found

    def wait_idle(self, *numbers: int, timeout: float = 60) -> None:
        """Wait until workers take jobs."""
        names = ",".join(map(self.name, numbers))

        def states() -> list[str]:
            return self.run("sinfo", "-h", "-N", "-n", names, "-o", "%T").stdout.split()

        self.until(
            lambda: states() == ["idle"] * len(numbers), f"{names} are idle", timeout, lambda: str(states())
        )

    def until(
        self, there: Callable[[], bool], what: str, timeout: float = 60, told: Callable[[], str] = str
    ) -> float:
        """Time at which something is so; what Slurm says where it is never."""
        deadline = time.monotonic() + timeout
        while not there():
            if time.monotonic() > deadline:
                queue = (
                    self.run("squeue", "-l", check=False).stdout
                    + self.run("sinfo", "-lN", check=False).stdout
                )
                raise AssertionError(f"not in {timeout:g} s: {what}\n{told()}\n{queue}")
            time.sleep(0.1)
        return time.monotonic()

    def write(self, name: str, text: str) -> None:
        """A file of Slurm's configuration, which workers have from the controller."""
        self.path(HEAD, f"/etc/slurm/{name}").write_text(text)

    def write_conf(self) -> None:
        """Slurm's configuration as it should be now; the controller reads it at a start or `reconfigure`."""
        names = ",".join(self.name(number) for number in sorted(self.workers))
        conf = CONF.format(
            head=self.name(HEAD), address=self.address(HEAD), nodes=names, gpus=self.gpus, more=self.conf
        )
        self.write("slurm.conf", conf)
        self.write("gres.conf", f"Name=gpu Type=h100 File=/dev/nvidia[0-{self.gpus - 1}]\n")
        self.write("cgroup.conf", "CgroupPlugin=disabled\n")
        self.write("plugstack.conf", "")

    def _start(self) -> None:
        for name in ("", "datasets", "checkpoints", *USERS):
            (self.fsx / name).mkdir(parents=True, exist_ok=True)
        (self.fsx / "checkpoints").chmod(0o1777)
        for name, number in USERS.items():
            os.chown(self.fsx / name, number, number)
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        self._connect()
        self._host(HEAD)
        self.write_conf()
        self.run("bash", "-c", "mkdir -p /var/spool/slurmctld /var/log/slurm; chown slurm /var/*/slurm*")
        self._daemon(HEAD, "slurmctld -i")
        for number in self.workers:
            self.add(number)
        self.wait_idle(*self.workers)

    def _connect(self) -> None:
        """A bridge in a subnet that no other test process has."""
        with one_at_a_time("bridge"):
            for pid in re.findall(r"^\d+: tshed(\d+):", _ip("-o", "link").stdout, re.MULTILINE):
                if not Path(f"/proc/{pid}").exists():  # its process was killed before it could tidy up
                    _ip("link", "del", f"tshed{pid}")
            taken = _ip("-o", "-4", "addr").stdout
            third = next(n for n in range(1, 250) if f" 10.66.{n}." not in taken)
            self.subnet = ipaddress.IPv4Network(f"10.66.{third}.0/24")
            bridge = f"tshed{os.getpid()}"
            _ip("link", "add", bridge, "type", "bridge")
            self.bridge = bridge
            _ip("addr", "add", f"{self.gateway}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")

    def _host(self, number: int) -> None:
        self._made += 1
        home = self.folder / "hosts" / f"{self._made:02d}-{self.name(number)}"
        root, upper = home / "root", home / "upper"
        for place in (root, home / "work", upper):
            place.mkdir(parents=True)
        home.chmod(0o755)
        self._write_files(upper, number)
        binds = [f"mkdir -p {root}{p}; mount --bind -o ro {p} {root}{p}" for p in sorted(self.binds)]
        binds.append(f"mount --bind -o ro {ROOT}/lifecycle {root}/opt/trainshed/lifecycle")
        script = INIT.format(
            name=self.name(number), tree=self.tree, home=home, root=root, fsx=self.fsx, gpus=self.gpus,
            binds="\n".join(binds),
        )  # fmt: skip
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--uts", "--mount", "--pid", "--ipc",
                 "--fork", "--kill-child", "bash", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._processes[number] = process
        deadline = time.monotonic() + 20
        while not _is_up(pid := _child(process)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{home.name} does not start: {(home / 'log').read_text()}")
            time.sleep(0.02)
        self.init[number] = pid
        self._wire(number)
        self.run("bash", "-c", "install -d -o munge -g munge /run/munge; setpriv --reuid munge --regid munge "
                 "--clear-groups munged </dev/null >/dev/null 2>&1", on=number)  # fmt: skip

    def _wire(self, number: int) -> None:
        """Give a host its interface; it goes with the host."""
        pid, outside = str(self.init[number]), f"{self.bridge.removeprefix('tshed')}-{number}"
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _ip("link", "set", outside, "master", self.bridge, "up")
        inside = f"ip addr add {self.address(number)}/24 dev eth0; ip link set eth0 up; ip link set lo up"
        self.run("bash", "-c", inside, on=number)

    def _write_files(self, upper: Path, number: int) -> None:
        """What a host has beside the Debian tree."""
        users = {name: (self.tree / "etc" / name).read_text() for name in ("passwd", "group")}
        for name, own in USERS.items():
            users["passwd"] += f"{name}:x:{own}:{own}::/fsx/{name}:/bin/bash\n"
            users["group"] += f"{name}:x:{own}:\n"
        names = "".join(f"{self.address(n)} {self.name(n)}\n" for n in (*range(1, WORKERS + 1), HEAD))
        files = {
            "/etc/passwd": users["passwd"],
            "/etc/group": users["group"],
            "/etc/hostname": f"{self.name(number)}\n",
            "/etc/hosts": f"127.0.0.1 localhost\n{names}",
            **self.files,
        }
        (upper / "opt/trainshed/lifecycle").mkdir(parents=True)
        for path, text in files.items():
            target = upper / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if text.startswith("#!") else 0o644)
        for path in self.binds:  # the way to them must be open to ordinary users
            (upper / str(path).lstrip("/")).mkdir(parents=True, exist_ok=True)
        key = upper / "etc/munge/munge.key"
        key.parent.mkdir(parents=True, exist_ok=True)
        owner = (self.tree / "etc/munge").stat()
        os.chown(key.parent, owner.st_uid, owner.st_gid)
        key.parent.chmod(0o700)
        shutil.copy(self.folder / "munge.key", key)
        os.chown(key, owner.st_uid, owner.st_gid)
        key.chmod(0o400)

    def _daemon(self, number: int, command: str) -> None:
        self.run("bash", "-c", f"{command} </dev/null >/dev/null 2>&1", on=number)


def trainer_paths() -> set[Path]:
    """Where the trainer's environment and its base Python really lie."""
    if not TRAINER.exists():
        pytest.skip(f"no {TRAINER.relative_to(ROOT)}: make install-trainer")
    base = TRAINER.resolve().parents[1]
    if base == Path("/usr"):
        pytest.skip("the trainer's Python is the system's, which hosts of another Debian cannot run")
    with suppress(ValueError):
        TRAINER.parents[1].resolve().relative_to(ROOT)
        return {base}
    return {base, TRAINER.parents[1].resolve()}


def _child(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(OSError):
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(found[0]) if found else None
    return None


def _is_up(pid: int | None) -> TypeGuard[int]:
    """Whether a host's process 1 has made its mounts and changed its root."""
    with suppress(OSError):
        return pid is not None and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"bash\0-c\0trap")
    return False


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
