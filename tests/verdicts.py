"""What a change of templates does to stacks that are deployed, and which of it must not happen.

CDK's own CLI says, offline, what CloudFormation would replace: in one diff of all of an app's stacks, so
that a replacement reaches the stacks that refer to it. Rules here add what HyperPod and FSx fix for life.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests import offline
from trainshed.guards import STATEFUL

CDK = Path(__file__).parent.parent / "node_modules/aws-cdk/bin/cdk"
Template = dict[str, Any]
Resource = dict[str, Any]

PROTECTED = STATEFUL | {"AWS::SageMaker::Cluster", "AWS::EC2::VPC"}
# A subnet that nobody uses any more may go, but never be exchanged for another.
NEVER_REPLACED = PROTECTED | {"AWS::EC2::Subnet"}
INSTEAD = {
    "AWS::EC2::Subnet": "lock what is deployed (`trainshed plan FILE --lock`), or give the tenant a new name",
    "AWS::EC2::VPC": "keep its primary block and add others; or build a second platform beside it",
    "AWS::FSx::DataRepositoryAssociation": "drop the association in one deployment, add it anew in the next",
    "AWS::FSx::FileSystem": "add a second file system beside it, copy, then drop this one",
    "AWS::KMS::Key": "keep the key: what it encrypted cannot be read without it",
    "AWS::S3::Bucket": "keep its construct id and name; add a second bucket and copy",
    "AWS::SageMaker::Cluster": "add a second cluster beside it, move the jobs, then drop this one",
}
_OTHERWISE = "keep it as it is and add a new one beside it"
_SECOND_GROUP = "add a second instance group beside it, move the jobs, then set this one's count to 0"
# `never` in docs/update-policies.md, though CDK's table of replacements does not know it.
_FIXED_IN_GROUP = (
    "CapacityRequirements",
    "InstanceRequirements",
    "InstanceType",
    "NetworkInterface",
    "OverrideVpcConfig",
    "SlurmConfig.NodeType",
)
_FIXED_IN_FILE_SYSTEM = (
    "FileSystemType",
    "LustreConfiguration.DeploymentType",
    "LustreConfiguration.EfaEnabled",
    "OpenZFSConfiguration.DeploymentType",
    "StorageType",
)
_ONLY_GROWS = (
    "LustreConfiguration.MetadataConfiguration.Iops",
    "LustreConfiguration.ThroughputCapacity",
    "StorageCapacity",
)
_DESTRUCTIVE = ("will be replaced", "may be replaced", "will be destroyed", "will be orphaned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One resource, or another part of a template, that differs. `instead` is None when it may pass."""

    stack: str
    resource: str
    kind: str
    impact: str
    details: tuple[str, ...] = ()
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """CDK's word on one resource, and the properties that are to blame."""

    impact: str
    properties: tuple[str, ...]


def compare(new: Mapping[str, Template], old: Mapping[str, Template]) -> list[Change]:
    """Every difference between an app's templates and what is deployed of it, by stack."""
    both = [stack for stack in new if stack in old]
    before, after = merge({s: old[s] for s in both}), merge({s: new[s] for s in both})
    said = {} if before == after else cdk_diff(before, after)
    found: list[Change] = []
    for stack in sorted({*new, *old}):
        if stack not in new:
            found += _stack_removed(stack, old[stack])
        elif stack not in old:
            found.append(Change(stack=stack, resource="(stack)", kind="", impact="added"))
        else:
            found += _resources(stack, old[stack], new[stack], said, after["Resources"])
            found += _other_parts(stack, old[stack], new[stack])
    return found


def merge(templates: Mapping[str, Template]) -> Template:
    """All stacks as one, references between them resolved: one diff then sees through all of them."""
    parameters: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    for stack, template in templates.items():
        parameters |= template.get("Parameters", {})
        for name, resource in template["Resources"].items():
            resources[f"{stack}/{name}"] = _absolute(resource, stack, templates)
    return {"Parameters": parameters, "Resources": resources}


def _absolute(value: Any, stack: str, templates: Mapping[str, Template]) -> Any:
    known = templates[stack]["Resources"]

    def name(given: str) -> str:
        return f"{stack}/{given}" if given in known else given

    match value:
        case {"Ref": str(given)}:
            return {"Ref": name(given)}
        case {"Fn::GetAtt": [str(given), *attribute]}:
            return {"Fn::GetAtt": [name(given), *attribute]}
        case {"Fn::GetStackOutput": {"StackName": str(other), "OutputName": str(output)}}:
            found = templates.get(other, {}).get("Outputs", {}).get(output)
            return value if found is None else _absolute(found["Value"], other, templates)
        case {"Type": str(), "DependsOn": [*needed]}:
            rest = {key: inside for key, inside in value.items() if key != "DependsOn"}
            return {**_absolute(rest, stack, templates), "DependsOn": [name(str(n)) for n in needed]}
        case dict():
            return {key: _absolute(inside, stack, templates) for key, inside in value.items()}
        case list():
            return [_absolute(item, stack, templates) for item in value]
        case _:
            return value


def cdk_diff(before: Template, after: Template) -> dict[str, Said]:
    """What `cdk diff` calls destructive, by logical id.

    Raises:
        RuntimeError: the CLI failed, or says it in words that are not understood.
    """
    stack: dict[str, Any] = {
        "type": "aws:cloudformation:stack",
        "environment": "aws://unknown-account/unknown-region",
        "properties": {"templateFile": "after.json"},
    }
    manifest = {"version": "36.0.0", "artifacts": {"All": stack}}
    with tempfile.TemporaryDirectory() as home:
        for name, content in (("before", before), ("after", after), ("manifest", manifest)):
            (Path(home) / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        command = [
            offline.NODE, str(CDK), "diff", "All", "--app", home, "--template", f"{home}/before.json",
            "--fail-on", "destructive", "--no-color", "--no-notices", "--no-version-reporting",
        ]  # fmt: skip
        bare = {"HOME": home, "PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true"}
        done = subprocess.run(command, cwd=home, env=bare, capture_output=True, text=True, check=False)
    words = rf"^  All: .*?(\S+) ({'|'.join(_DESTRUCTIVE)})\b"
    listed = re.findall(words, done.stderr, re.MULTILINE)
    count = re.search(r"Found (\d+) destructive change", done.stderr)
    if done.returncode not in (0, 1) or len(listed) != (int(count[1]) if count else done.returncode):
        raise RuntimeError(f"`cdk diff` is not understood:\n{done.stdout}\n{done.stderr}")
    return {name: Said(impact, tuple(_to_blame(done.stderr, name))) for name, impact in listed}


def _to_blame(text: str, name: str) -> list[str]:
    block = re.search(rf"^\[~\] .* {re.escape(name)} .*\n((?: .*\n)*)", text, re.MULTILINE)
    why = r"^ [├└]─ \[.\] (\S+) \((?:requires replacement|may cause replacement)\)"
    return re.findall(why, block[1], re.MULTILINE) if block else []


def _resources(
    stack: str, before: Template, after: Template, said: Mapping[str, Said], merged: Mapping[str, Resource]
) -> Iterator[Change]:
    was, will = before["Resources"], after["Resources"]
    new_tenants = {_tenant(will[name]) for name in will if name not in was}

    def change(impact: str, details: tuple[str, ...], *, refused: bool) -> Change:
        instead = INSTEAD.get(kind, _OTHERWISE) if refused else None
        return Change(stack=stack, resource=name, kind=kind, impact=impact, details=details, instead=instead)

    for name in dict.fromkeys((*was, *will)):
        old, new, cdk = was.get(name), will.get(name), said.get(f"{stack}/{name}")
        kind = (old or new)["Type"]
        if old is None:
            yield change("added", (), refused=False)
        elif new is None and _tenant(old) and _tenant(old) in new_tenants:
            where = f"{old['Properties'].get('CidrBlock')} is given up for another subnet of the same tenant"
            yield change("would move", (where,), refused=True)
        elif new is None:
            impact = cdk.impact if cdk else "will be removed"
            yield change(impact, _what_stays(old), refused=kind in PROTECTED)
        elif cdk:
            details = tuple(_why(old, new, cdk, merged[f"{stack}/{name}"], said))
            yield change(cdk.impact, details, refused=kind in NEVER_REPLACED)
        elif old != new and (refusals := list(_refused(kind, _properties(old), _properties(new)))):
            for detail, instead in refusals:
                refused = change("would be refused by AWS", (detail,), refused=True)
                yield replace(refused, instead=instead)
        elif old != new:
            yield change("updated", tuple(_differences(old, new)), refused=False)


def _properties(resource: Resource) -> dict[str, Any]:
    return resource.get("Properties", {})


def _differences(old: Resource, new: Resource) -> list[str]:
    rest = {key: value for key, value in old.items() if key != "Properties"}
    still = {key: value for key, value in new.items() if key != "Properties"}
    return leaves(_properties(old), _properties(new)) + leaves(rest, still)


def _tenant(resource: Resource) -> str | None:
    """Whom a subnet is for: its logical id holds its CIDR, so a moved one comes under another id."""
    tags = _properties(resource).get("Tags", []) if resource["Type"] == "AWS::EC2::Subnet" else []
    return next((tag["Value"] for tag in tags if tag["Key"] == "Name"), None)


def _what_stays(resource: Resource) -> tuple[str, ...]:
    kept = resource.get("DeletionPolicy") in ("Retain", "RetainExceptOnCreate")
    return ("it stays in AWS with its data and its bill, known to no stack",) if kept else ()


def _why(
    old: Resource, new: Resource, cdk: Said, merged: Resource, said: Mapping[str, Said]
) -> Iterator[str]:
    for name in cdk.properties:
        yield from leaves(_properties(old).get(name), _properties(new).get(name), name)
        for other in dict.fromkeys(_referred(_properties(merged).get(name))):
            if other in said:
                yield f"{name} refers to {other}, which {said[other].impact}"


def _referred(value: object) -> Iterator[str]:
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case dict():
            for inside in value.values():
                yield from _referred(inside)
        case list():
            for inside in value:
                yield from _referred(inside)
        case _:
            pass


def _refused(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if kind == "AWS::FSx::FileSystem":
        for path in _FIXED_IN_FILE_SYSTEM:
            for leaf in leaves(_at(old, path), _at(new, path), path):
                yield f"{leaf}, and it is fixed for life", INSTEAD[kind]
        for path in _ONLY_GROWS:
            was, will = _at(old, path), _at(new, path)
            if isinstance(was, int) and isinstance(will, int) and will < was:
                yield f"{path} {was} → {will}, and FSx only grows", INSTEAD[kind]
    elif kind == "AWS::SageMaker::Cluster":
        groups = {group["InstanceGroupName"]: group for group in new.get("InstanceGroups", [])}
        for was in old.get("InstanceGroups", []):
            name = was["InstanceGroupName"]
            if name not in groups and _at(was, "SlurmConfig.NodeType") == "Controller":
                yield f"controller group {name} removed", INSTEAD[kind]
            for path in _FIXED_IN_GROUP if name in groups else ():
                for leaf in leaves(_at(was, path), _at(groups[name], path), path):
                    yield f"group {name}: {leaf}", _SECOND_GROUP


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _stack_removed(stack: str, template: Template) -> Iterator[Change]:
    kept = {name: r for name, r in template["Resources"].items() if r["Type"] in PROTECTED}
    for name, resource in kept.items():
        details = ("its whole stack leaves the app", *_what_stays(resource))
        kind, instead = resource["Type"], INSTEAD.get(resource["Type"], _OTHERWISE)
        yield Change(
            stack=stack, resource=name, kind=kind, impact="left behind", details=details, instead=instead
        )
    if not kept:
        yield Change(stack=stack, resource="(stack)", kind="", impact="removed")


def _other_parts(stack: str, old: Template, new: Template) -> Iterator[Change]:
    for part in sorted({*old, *new} - {"Resources"}):
        found = tuple(leaves(old.get(part, {}), new.get(part, {})))
        if found:
            yield Change(stack=stack, resource=f"({part})", kind="", impact="updated", details=found)


def leaves(old: Any, new: Any, path: str = "") -> list[str]:
    """What differs between two values, each as `path old → new`."""
    if old == new:
        return []
    if _is_plain(old, dict) and _is_plain(new, dict):
        keys = dict.fromkeys((*old, *new))
        return [leaf for k in keys for leaf in leaves(old.get(k), new.get(k), f"{path}.{k}".lstrip("."))]
    if _is_plain(old, list) and _is_plain(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [leaf for i, (a, b) in pairs for leaf in leaves(a, b, f"{path}.{i}".lstrip("."))]
    return [f"{path} {_shown(old)} → {_shown(new)}"]


def _is_plain(value: object, kind: type) -> bool:
    intrinsic = isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith(("Fn::", "Ref"))
    return isinstance(value, kind) and not intrinsic


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case {"Fn::GetStackOutput": {"StackName": stack, "OutputName": output}}:
            return f"{stack}.{output}"
        case str():
            text = value
        case _:
            text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= 120 else f"{text[:117]}..."
