"""Measures what the platform claims, each figure against a named rival in the same run.

Writes `build/bench/platform.json` and prints a table; `--write FILE` also puts it between the file's
markers. `ratio` is ours divided by the rival's. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from pathlib import Path

from tests import offline
from tests.figures import Figure, dump, figure, missed, table, write_between
from trainshed.loading import load
from trainshed.planning.addressing import allocate
from trainshed.planning.cidr import RESERVED_PER_SUBNET, subnet_size
from trainshed.planning.instances import INSTANCE_TYPES, Orchestrator
from trainshed.planning.model import Claim

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build/bench/platform.json"
FLAGS = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]

EMPTY = "import aws_cdk as cdk\napp = cdk.App()\ncdk.Stack(app, 'Empty')\napp.synth()\n"
MODULES = ("ec2", "fsx", "iam", "kms", "lambda", "logs", "s3", "s3_deployment", "sagemaker")
SAME_MODULES = "".join(f"import aws_cdk.aws_{name}\n" for name in MODULES) + EMPTY
NOT_AN_OPERATORS = ("CDK_VALIDATION", "PYTHONDONTWRITEBYTECODE")
FOUR = "us-east-1,us-east-2,us-west-2,eu-west-1"
PLAN = "deployments/quickstart.yaml"

# Sixteen nodes that may become twenty-four, and everything that a node needs around it.
SLURM = """\
name: bench
regions: {us-east-2: {zones: [use2-az1]}}
network: {endpoints: [ecr.api, ecr.dkr, fsx, logs, monitoring, ssm, ssmmessages, sts]}
storage: {lustre: {main: {capacity_tib: 4.8, grow_to_tib: 7.2, throughput_per_tib: 250}}}
clusters:
  train:
    groups:
      controller: {role: controller, type: ml.m5.4xlarge, count: 1}
      login: {role: login, type: ml.m5.2xlarge, count: 1}
      p5: {type: ml.p5.48xlarge, count: 16, grow_to: 24, partition: p5}
"""
NODES, GROWN = 16, 24
# Nodes, controller, login, three Lustre servers and their metadata server, endpoints, NAT: nothing spare.
NEEDED = GROWN * 32 + 1 + 1 + (3 + 1) + 8 + 1
# aws/sagemaker-hyperpod-cluster-setup, the templates behind the console's quick setup: the VPC is a /16, and
# each zone gets a secondary /16 whole, as one subnet. One zone here.
CONSOLE = (IPv4Network("10.192.0.0/16"), IPv4Network("10.1.0.0/16"))
LAYOUTS = {
    "the console's quick setup (/16 subnet)": CONSOLE[1],
    "a /17 subnet in a /16 VPC": IPv4Network("10.0.0.0/17"),
    "a /24 subnet": IPv4Network("10.0.0.0/24"),
}


def wall(
    commands: Mapping[str, Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]], runs: int
) -> dict[str, float]:
    """Median wall seconds of each command, the commands taking turns; the first round warms the caches."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as out:
                arguments, more = command(Path(out))
                env = {**{k: v for k, v in os.environ.items() if k not in NOT_AN_OPERATORS}, **more}
                began = time.perf_counter()
                done = subprocess.run(
                    arguments, cwd=ROOT, env=env, capture_output=True, text=True, check=False
                )
                took = time.perf_counter() - began
            if done.returncode:
                raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
            if turn:
                seconds[name].append(took)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _synth(code: Sequence[str], **context: str) -> Callable[[Path], tuple[Sequence[str], dict[str, str]]]:
    def command(out: Path) -> tuple[Sequence[str], dict[str, str]]:
        given = {"CDK_OUTDIR": str(out), "CDK_CONTEXT_JSON": json.dumps({**FLAGS, **context})}
        return [sys.executable, *code], {**given, "CDK_VALIDATION": "false"}

    return command


def processes(runs: int) -> Iterator[Figure]:
    """Whole processes: synthesis in-app with validation off on both sides, and the command line."""
    cdk = [offline.NODE, str(ROOT / "node_modules/aws-cdk/bin/cdk"), "synth", "--quiet", "--output"]
    took = wall(
        {
            "empty": _synth(["-c", EMPTY]),
            "same modules": _synth(["-c", SAME_MODULES]),
            "one": _synth(["app.py"]),
            "four": _synth(["app.py"], regions=FOUR),
            "plan": lambda _: ([sys.executable, "-m", "trainshed", "plan", PLAN], {}),
            "python": lambda _: ([sys.executable, "-c", "pass"], {}),
            "cdk synth": lambda out: ([*cdk, str(out)], {}),
        },
        runs,
    )
    one, four, empty, plan = (round(took[name], 3) for name in ("one", "four", "empty", "plan"))
    yield figure("synth of one region, against an empty CDK app", one, empty, "s")
    name = "synth of four regions, against an empty CDK app"
    yield figure(name, four, empty, "s", "ratio ≤ 2.0", met=four <= 2 * empty)
    same = round(took["same modules"], 3)
    yield figure("synth of four regions, against an empty app that imports the same modules", four, same, "s")
    each = round((four - one) / 3, 3)
    yield figure("each further region", each, None, "s", "≤ 0.5", met=each <= 0.5)
    bare, synth = round(took["python"], 3), round(took["cdk synth"], 3)
    yield figure("`trainshed plan`, against `cdk synth`", plan, synth, "s", "≤ 0.5", met=plan <= 0.5)
    yield figure("`trainshed plan`, against `python -c pass`", plan, bare, "s")


def addresses() -> Iterator[Figure]:
    """What layouts take from the address space, and how long they last."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.yaml"
        path.write_text(SLURM, encoding="utf-8")
        plan = load(path).plan.regions[0].addresses
    ours = round(plan.reserved_addresses / NEEDED, 2)
    name = f"addresses reserved for each that {GROWN} P5 nodes and their surroundings need, against"
    peers = {
        "the console's quick setup": sum(net.num_addresses for net in CONSOLE),
        "a /17 subnet in a /16 VPC": IPv4Network("10.0.0.0/16").num_addresses,
    }
    for peer, reserved in peers.items():
        rival = round(reserved / NEEDED, 2)
        target = "ours ≤ 2.0, rival ≥ 10"
        yield figure(f"{name} {peer}", ours, rival, "addresses", target, met=ours <= 2 and rival >= 10)
    for orchestrator in ("slurm", "eks"):
        yield from _until_full(orchestrator)


def _until_full(orchestrator: Orchestrator) -> Iterator[Figure]:
    each = INSTANCE_TYPES["ml.p5.48xlarge"].addresses_per_node(orchestrator, "efa")
    claim = Claim(
        name="p5", zone="use2-az1", purpose="nodes", needed=(NODES + 1) * each, reserved=(GROWN + 1) * each
    )
    planned = allocate([claim], pool=[IPv4Network("10.16.0.0/13")]).subnet("p5").cidr

    def nodes(subnet: IPv4Network) -> int:
        return (subnet.num_addresses - RESERVED_PER_SUBNET) // each

    name = f"P5 nodes until the subnet is full, {orchestrator} ({each} addresses each), "
    name += f"/{planned.prefixlen} against"
    for layout, subnet in LAYOUTS.items():
        ours = nodes(planned)
        yield figure(f"{name} {layout}", ours, nodes(subnet), "nodes", f"ours ≥ {GROWN}", met=ours >= GROWN)


def planner(runs: int) -> Iterator[Figure]:
    """Seating a thousand instance groups."""
    chance = random.Random(7)
    kinds = [kind for kind in INSTANCE_TYPES.values() if kind.is_accelerated]
    sizes = [
        chance.randint(1, 8) * chance.choice(kinds).addresses_per_node("slurm", "efa") for _ in range(1000)
    ]
    claims = [
        Claim(name=f"group/{i}", zone=f"use2-az{1 + i % 3}", purpose="nodes", needed=n, reserved=n)
        for i, n in enumerate(sizes)
    ]
    pool = IPv4Network("10.16.0.0/13")
    took: dict[str, list[float]] = {"ours": [], "rival": []}
    for _ in range(runs):
        for who, place in (
            ("ours", lambda: allocate(claims, pool=[pool], block_quota=50)),
            ("rival", lambda: first_fit(claims, pool)),
        ):
            began = time.perf_counter()
            place()
            took[who].append(time.perf_counter() - began)
    ours, rival = (round(statistics.median(took[who]), 3) for who in ("ours", "rival"))
    name = "subnets and VPC blocks for 1,000 groups, against first fit with ipaddress (subnets only)"
    yield figure(name, ours, rival, "s", "≤ 1", met=ours <= 1)


def first_fit(claims: Sequence[Claim], pool: IPv4Network) -> dict[str, IPv4Network]:
    """The plain way: the first free network that is large enough, in the order asked."""
    free, placed = [pool], {}
    for claim in claims:
        prefix = 33 - (subnet_size(claim.reserved) or 0).bit_length()
        index = next(i for i, net in enumerate(free) if net.prefixlen <= prefix)
        placed[claim.name] = chosen = next(free[index].subnets(new_prefix=prefix))
        free[index : index + 1] = sorted(free[index].address_exclude(chosen))
    return placed


def conditions(runs: int) -> str:
    """What the times were taken with."""
    cdk = importlib.metadata.version("aws-cdk-lib")
    return (
        f"Wall times are medians of {runs} runs in turns, after one that warms the caches: Python "
        f"{platform.python_version()}, aws-cdk-lib {cdk}, {os.cpu_count()} cores."
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each (default: 5)")
    parser.add_argument("--write", type=Path, help="Markdown file to put the table into")
    arguments = parser.parse_args()
    figures = [*processes(arguments.runs), *addresses(), *planner(arguments.runs)]
    dump(figures, OUT)
    shown = f"{table(figures)}\n\n{conditions(arguments.runs)}"
    print(shown)
    if arguments.write:
        write_between(arguments.write, "bench:platform", shown)
    print(f"\n{missed(figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
