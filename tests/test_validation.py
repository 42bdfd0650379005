"""The judges of the whole app: CDK's own engine, two packs of cdk-nag, and cfn-lint in every region.

What they find must have been accepted, one by one and for a reason, and what is accepted must still be
found somewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
import yaml
from aws_cdk import aws_s3 as s3
from cdk_nag import AwsSolutionsChecks, NIST80053R5Checks
from cfnlint.config import ConfigMixIn
from cfnlint.core import get_rules
from cfnlint.match import Match
from cfnlint.runner import run_template_by_data

import app
from stacks import acknowledgements
from stacks.acknowledgements import IAM5, NIST
from tests.support import FLAGS, ROOT, Assembly, Template, of_type
from trainshed.planning.instances import INSTANCE_TYPES
from trainshed.planning.regions import REGIONS, TRAINING_PLAN_ONLY

EXAMPLES = sorted(p.stem for p in (ROOT / "deployments").glob("*.yaml") if not p.stem.endswith(".lock"))
PACKS = (AwsSolutionsChecks, NIST80053R5Checks)
# What an operator is told and may go on with.
TOLD = {"Annotation::trainshed:plan", "Annotation::trainshed:unlocked"}
IGNORED_BY_CFN_LINT = {
    "W3005",  # CDK writes DependsOn beside references that would do; its own engine leaves the rule out too
}
SERVERS = {role: {"role": role, "type": "ml.m5.4xlarge", "count": 1} for role in ("controller", "login")}


@dataclass(frozen=True)
class Verdict:
    """What the plugins found: (rule, construct path) → reason, which is None for what nobody accepted."""

    findings: dict[tuple[str, str], str | None]
    assembly: Assembly

    @property
    def open(self) -> set[tuple[str, str]]:
        return {found for found, reason in self.findings.items() if reason is None and found[0] not in TOLD}

    @property
    def accepted(self) -> dict[tuple[str, str], str]:
        return {found: reason for found, reason in self.findings.items() if reason is not None}


@cache
def engine() -> cdk.CloudFormationValidatePlugin:
    # CDK adds its engine by itself, but not where the environment turns it off, as for the other tests.
    return cdk.CloudFormationValidatePlugin()


def judged(
    path: Path,
    folder: Path,
    packs: Sequence[type] = PACKS,
    spoil: Callable[[cdk.App], object] = lambda _: None,
) -> Verdict:
    # Assets are not looked at, and one of them has 22 MB.
    context = {**FLAGS, "deployment": str(path), "aws:cdk:disable-asset-staging": True}
    cdk_app = cdk.App(context=context, outdir=str(folder))
    app.build(cdk_app)
    spoil(cdk_app)
    cdk.Validations.of(cdk_app).add_plugins(engine(), *(pack(cdk_app) for pack in packs))
    with suppress(RuntimeError):  # findings fail the synthesis too, once the report is written
        cdk_app.synth()
    report = json.loads((folder / "validation-report.json").read_text(encoding="utf-8"))
    findings: dict[tuple[str, str], str | None] = {}
    for plugin in report["pluginReports"]:
        assert "error" not in plugin.get("metadata", {}), plugin["metadata"]
        for found in (*plugin.get("suppressedViolations", ()), *plugin["violations"]):
            for construct in found["violatingConstructs"]:
                findings[found["ruleName"], construct["constructPath"]] = found.get("reason")
    return Verdict(findings, Assembly(folder))


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Verdict]:
    return cache(
        lambda example: judged(ROOT / f"deployments/{example}.yaml", tmp_path_factory.mktemp("cdk.out"))
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_nothing_is_found_that_nobody_accepted(verdict, example: str) -> None:
    assert not verdict(example).open
    assert verdict(example).accepted, "nothing was found at all: did the packs run?"


@pytest.mark.parametrize("example", EXAMPLES)
def test_findings_are_about_stacks(verdict, example: str) -> None:
    """CDK asks for the stack of each annotation: without one it leaves an error.txt in cdk.out."""
    assert all(path for _, path in verdict(example).findings)


@pytest.mark.parametrize("example", EXAMPLES)
def test_reasons_name_what_they_are_about(verdict, example: str) -> None:
    recorded = list(acceptances(verdict(example).assembly))
    assert {rule for _, rule, _ in recorded} >= {rule for rule, _ in verdict(example).accepted}
    for path, rule, reason in recorded:
        names = [word for word in re.findall(r"[A-Z][A-Za-z]{2,}", reason) if word in path]
        assert names, f"{rule} at {path}: {reason}"
        assert len(reason) >= 20


def acceptances(assembly: Assembly) -> Iterator[tuple[str, str, str]]:
    """Every acceptance in an assembly: construct path, rule, reason."""
    for stack in assembly.stacks.values():
        metadata = json.loads((assembly.folder / stack["additionalMetadataFile"]).read_text(encoding="utf-8"))
        for path, entries in metadata.items():
            for entry in entries:
                if entry["type"] == cdk.Validations.ACKNOWLEDGED_RULES_METADATA_KEY:
                    for rule, reason in entry["data"].items():
                        yield path, rule.partition("::")[2], reason


def test_every_row_is_needed(verdict) -> None:
    accepted = {reason for example in EXAMPLES for reason in verdict(example).accepted.values()}
    for rows in acknowledgements.TABLE.values():
        for row in rows:
            for path in row.paths.split():
                reason = row.reason.format(name=path.partition("/")[0])
                assert reason in accepted, f"{row.rule} is found in no example at {path}"


def test_what_is_not_accepted_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dropped = {"AwsSolutions-L1", f"{NIST}-LambdaDLQ", f"{IAM5}[Resource::*]"}
    table = {
        stack: tuple(row for row in rows if row.rule not in dropped)
        for stack, rows in acknowledgements.TABLE.items()
    }
    monkeypatch.setattr(acknowledgements, "TABLE", table)

    def spoil(cdk_app: cdk.App) -> None:
        storage = cdk_app.node.find_child("quickstart-us-east-2-storage")
        s3.CfnBucket(storage, "Open", access_control="PublicRead")
        elsewhere = cdk.Stack(cdk_app, "Elsewhere", env=cdk.Environment(region="us-east-2"))
        cdk.CfnResource(elsewhere, "Vpc", type="AWS::EC2::VPC", properties={"CidrBlocks": "10.0.0.0/16"})

    path = ROOT / "deployments/quickstart.yaml"
    found = judged(path, tmp_path_factory.mktemp("cdk.out"), spoil=spoil).open
    assert {rule for rule, path in found if "-train/" in path} == dropped
    opened = {rule for rule, path in found if path.endswith("/Open")}
    assert {"AwsSolutions-S1", "AwsSolutions-S10", f"{NIST}-S3DefaultEncryptionKMS"} <= opened
    assert [rule for rule, path in found if path == "Elsewhere/Vpc"], "CDK's engine is not among the judges"


@pytest.fixture(scope="module")
def replanned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], Verdict]:
    """`replanned(region, groups)`: what CDK's engine says of the quickstart elsewhere, with other groups."""

    def get(region: str, groups: dict[str, Any]) -> Verdict:
        plan = yaml.safe_load((ROOT / "deployments/quickstart.yaml").read_text(encoding="utf-8"))
        plan["regions"] = {region: {"zones": [REGIONS[region].zones[0]]}}
        plan["clusters"]["train"]["groups"] = groups
        if REGIONS[region].openzfs_single_az_2:
            plan["storage"]["home"] = {}
        path = tmp_path_factory.mktemp("deployments") / "replanned.yaml"
        path.write_text(yaml.safe_dump(plan), encoding="utf-8")
        return judged(path, tmp_path_factory.mktemp("cdk.out"), packs=())

    return get


@pytest.fixture(scope="module")
def in_region(replanned) -> Callable[[str], Verdict]:
    """A group of each P and Trn type that a region lists."""

    def get(region: str) -> Verdict:
        types = [n for n, kind in INSTANCE_TYPES.items() if kind.family.startswith(("p", "trn"))]
        return replanned(region, SERVERS | dict(worker(n) for n in types if REGIONS[region].offers(n)))

    return cache(get)


def worker(instance_type: str, **more: Any) -> tuple[str, dict[str, Any]]:
    name = instance_type.removeprefix("ml.").replace(".", "-")
    return name, {"type": instance_type, "count": 1, "partition": name, **more}


@pytest.fixture(scope="module")
def lint() -> Callable[[Template, str], list[Match]]:
    rules = get_rules([], [], [])

    def get(template: Template, region: str) -> list[Match]:
        # Without the empty list it would read pytest's own command line.
        found = run_template_by_data(template, ConfigMixIn([], regions=[region]), rules)
        return [match for match in found if match.rule.id not in IGNORED_BY_CFN_LINT]

    return get


@pytest.mark.parametrize("example", EXAMPLES)
def test_cfn_lint_finds_nothing_in_the_examples(verdict, lint, example: str) -> None:
    assembly = verdict(example).assembly
    for name, stack in assembly.stacks.items():
        assert not lint(assembly.templates[name], stack["environment"].rpartition("/")[2]), name


@pytest.mark.parametrize("region", REGIONS)
def test_nothing_is_found_in_any_region(in_region, lint, region: str) -> None:
    assert not in_region(region).open
    templates = in_region(region).assembly.templates
    assert len(templates) == 3
    for name, template in templates.items():
        assert not lint(template, region), name


def test_cfn_lint_knows_which_types_a_region_lacks(in_region, lint) -> None:
    template = in_region("us-east-2").assembly.templates["quickstart-us-east-2-train"]
    assert {match.rule.id for match in lint(template, "ap-southeast-4")} == {"E3644"}


def test_cfn_lint_objects_to_nothing_in_training_plans_but_their_types(replanned, lint) -> None:
    """The price lists behind E3644 hold no type that is sold in training plans alone."""
    region = "us-east-1"
    arn = f"arn:aws:sagemaker:{region}:123456789012:training-plan/ours"
    plan = {"arn": arn, "zone": REGIONS[region].zones[0]}
    types = [name for name, sold in TRAINING_PLAN_ONLY.items() if region in sold]
    verdict = replanned(region, SERVERS | dict(worker(name, training_plan=plan) for name in types))
    assert not verdict.open
    template = verdict.assembly.templates[f"quickstart-{region}-train"]
    ((_, cluster),) = of_type(template, "AWS::SageMaker::Cluster").items()
    found = lint(template, region)
    assert {match.rule.id for match in found} == {"E3644"}
    refused = {cluster["Properties"]["InstanceGroups"][match.path[4]]["InstanceType"] for match in found}
    assert refused == set(types)
