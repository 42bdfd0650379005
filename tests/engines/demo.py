"""`make demo`: the main job on real input, from a deployment file to a platform and back, with no AWS.

Plans, draws the address map, synthesises with every guard and the built-in validation engine,
deploys to the embedded CloudFormation emulator, shows what stands there, grows a group, trains from
its buckets, tears down and lists what stayed. Each step checks what it claims; the closing line counts them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

from trainshed.loading import load

from .demo_training import Training
from .emulator.client import ROOT, Emulator, missing

TABLES = ROOT / "constructs/trainshed/planning/instances.py"
OUT = ROOT / "build/demo"
STEPS = 80


class Steps:
    """Runs steps in order, stops at the first that fails, and keeps the count."""

    def __init__(self) -> None:
        self.passed = 0

    def __call__(self, title: str, step: Callable[[], object]) -> None:
        print(f"\n== {self.passed + 1}. {title}", flush=True)
        began = time.monotonic()
        step()
        self.passed += 1
        print(f"   ok, {time.monotonic() - began:.1f} s", flush=True)


def main(deployment: str) -> int:
    """Run the demonstration; 1 when a step fails."""
    reason = missing()
    if reason:
        print(f"demo: {reason}; run `make install`")
        return 1
    OUT.mkdir(parents=True, exist_ok=True)
    plan = load(ROOT / deployment).plan
    region = plan.regions[0]
    context = ("-c", f"deployment={deployment}")
    steps = Steps()
    try:
        steps("plan: addresses, groups, storage", lambda: _trainshed("plan", deployment))
        picture = OUT / "addresses.html"
        steps(f"draw the address map to {picture.relative_to(ROOT)}",
              lambda: _trainshed("plan", deployment, "--html", str(picture), quiet=True))  # fmt: skip
        with Emulator(region=region.region, tables=TABLES) as emulator:
            steps("synthesise: guards and validation", lambda: _synth(emulator, "as-written", *context))
            regions = [r.region for r in plan.regions]
            steps("bootstrap the emulator", lambda: emulator.bootstrap(*regions))
            steps("deploy every stack", lambda: _deploy(emulator, "as-written"))
            steps("what stands there", lambda: _show(emulator, plan.name))
            steps("cdk diff is clean", lambda: _diff(emulator, "as-written"))
            grown = _grow(region.clusters[0])
            steps(f"grow in place: {grown}", lambda: _grown(emulator, grown, *context))
            training = Training(emulator, f"{plan.name}-{region.region}-storage", OUT / "training")
            steps("synthesise driving data into the platform's dataset bucket", training.synthesise)
            steps(f"train {STEPS} steps on two processes", lambda: training.run("whole", STEPS))
            steps("again, one of them killed on the way: the same to the bit", lambda: _killed(training))
            steps("judge its checkpoint on held-out scenes", lambda: training.evaluate("killed"))
            steps("tear down; data stays", lambda: _destroy(emulator, plan.name, len(plan.regions), *context))
    except (AssertionError, subprocess.CalledProcessError, Exception) as error:
        print(f"\n   FAILED: {error}\ndemo: {steps.passed} passed, 1 failed")
        return 1
    print(f"\ndemo: {steps.passed} passed, 0 failed")
    return 0


def _trainshed(*arguments: str, quiet: bool = False) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainshed", *arguments], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if not quiet:
        print(done.stdout)


def _synth(emulator: Emulator, name: str, *arguments: str) -> None:
    emulator.cdk("synth", "--quiet", "--output", str(OUT / name), *arguments)


def _deploy(emulator: Emulator, name: str) -> None:
    emulator.push_images(OUT / name)
    emulator.cdk(
        "deploy", "--app", str(OUT / name), "--all", "--require-approval", "never", "--method", "direct"
    )


def _show(emulator: Emulator, platform: str) -> None:
    records = [r for r in emulator.inventory() if r["stack"].startswith(platform)]
    for stack in dict.fromkeys(r["stack"] for r in records):
        kinds = Counter(r["type"].removeprefix("AWS::") for r in records if r["stack"] == stack)
        most = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(4))
        print(f"   {stack}: {sum(kinds.values())} resources ({most}, …)")
    for cluster in (r for r in records if r["type"] == "AWS::SageMaker::Cluster"):
        for group in cluster["properties"]["InstanceGroups"]:
            print(f"   {group['InstanceGroupName']}: {group['InstanceCount']} x {group['InstanceType']}")
    s3 = emulator.client("s3")
    bucket = next(
        r["physical_id"]
        for r in records
        if r["type"] == "AWS::S3::Bucket" and r["physical_id"].startswith("sagemaker-")
    )
    names = [o["Key"] for o in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    settings = next(n for n in names if n.endswith("settings.json"))
    read = json.loads(s3.get_object(Bucket=bucket, Key=settings)["Body"].read())
    print(f"   s3://{bucket}: {', '.join(names)}")
    print(f"   nodes will mount {read['lustre']['dns_name']} at {read['lustre']['mount_path']}")
    systems = [r["physical_id"] for r in records if r["type"] == "AWS::FSx::FileSystem"]
    assert read["lustre"]["dns_name"].split(".")[0] in systems, "settings.json names another file system"


def _diff(emulator: Emulator, name: str) -> None:
    output = emulator.cdk("diff", "--app", str(OUT / name), "--all", "--fail").stdout
    print("   " + output.strip().splitlines()[-1])


def _grow(cluster: object) -> str:
    workers = [g for g in cluster.groups if g.role == "worker"]  # type: ignore[attr-defined]
    return f"{workers[0].path}.count={workers[0].grow_to}"


def _grown(emulator: Emulator, override: str, *context: str) -> None:
    before = _subnets(emulator)
    _synth(emulator, "grown", "--no-validation", *context, "-c", f"set={override}")
    _deploy(emulator, "grown")
    cluster = emulator.inventory("AWS::SageMaker::Cluster")[0]
    path, _, value = override.partition("=")
    group, count = path.split(".")[-2], int(value)
    found = {g["InstanceGroupName"]: int(g["InstanceCount"]) for g in cluster["properties"]["InstanceGroups"]}
    assert found[group] == count, f"{group} has {found[group]} nodes"
    assert _subnets(emulator) == before, "subnets changed"
    print(f"   {group} now has {count} nodes in the same subnets")


def _killed(training: Training) -> None:
    """`whole` has run: its checkpoints stay apart under its own name."""
    killed = training.run("killed", STEPS, kill_at=STEPS // 2 + STEPS // 8)
    assert killed == training.told["whole"]
    print(f"   {STEPS} losses and gradient norms equal those of the run that nobody killed")


def _subnets(emulator: Emulator) -> set[str]:
    return {r["physical_id"] for r in emulator.inventory("AWS::EC2::Subnet")}


def _destroy(emulator: Emulator, platform: str, regions: int, *context: str) -> None:
    _synth(emulator, "unprotected", "--no-validation", *context, "-c", "set=protect=false")
    _deploy(emulator, "unprotected")
    emulator.cdk("destroy", "--app", str(OUT / "unprotected"), "--all", "--force")
    left = [r for r in emulator.inventory() if r["stack"].startswith(platform)]
    kinds = Counter(r["type"] for r in left)
    for record in left:
        print(f"   kept {record['type']} {record['physical_id']}")
    for kind in ("AWS::FSx::FileSystem", "AWS::KMS::Key"):
        assert kinds[kind] >= 1, f"no {kind} was kept"
    assert kinds["AWS::S3::Bucket"] == 3 * regions, (
        "the dataset, checkpoint and access log buckets are kept, no other"
    )
    assert not kinds["AWS::SageMaker::Cluster"], "the cluster is still there"
    for kind in ("AWS::EC2::NatGateway", "AWS::EC2::EIP", "AWS::EC2::VPCEndpoint"):
        assert not kinds[kind], f"{kind} is still there, and costs"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
