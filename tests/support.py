"""Reading assemblies and templates as plain dictionaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import aws_cdk as cdk

import app

ROOT = Path(__file__).parent.parent
FLAGS: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
Template = dict[str, Any]
Resource = dict[str, Any]


@dataclass(frozen=True)
class Assembly:
    """A cloud assembly on disk."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))

    @cached_property
    def stacks(self) -> dict[str, dict[str, Any]]:
        """The manifest's entries by stack name."""
        found = self.manifest["artifacts"].items()
        return {n: a for n, a in found if a["type"] == "aws:cloudformation:stack"}

    @cached_property
    def templates(self) -> dict[str, Template]:
        return {name: json.loads(self.text(name)) for name in self.stacks}

    def text(self, stack: str) -> str:
        """A template as it lies on disk."""
        return (self.folder / self.stacks[stack]["properties"]["templateFile"]).read_text(encoding="utf-8")

    def asset(self, key: str) -> Path:
        """The file or folder behind an asset's object key."""
        return self.folder / f"asset.{key.removesuffix('.zip')}"


def platform_assembly(example: str | Path, context: Mapping[str, str], folder: Path) -> Assembly:
    """An example, or a deployment file by its path, through `app.build`."""
    path = example if isinstance(example, Path) else ROOT / "deployments" / f"{example}.yaml"
    cdk_app = cdk.App(context={**FLAGS, "deployment": str(path), **context}, outdir=str(folder))
    app.build(cdk_app)
    cdk_app.synth()
    return Assembly(folder)


def template_of(
    build: Callable[[cdk.Stack], object],
    folder: Path,
    *,
    region: str = "us-east-2",
    account: str | None = None,
) -> Template:
    """One stack, by itself in an app."""
    cdk_app = cdk.App(context=FLAGS, outdir=str(folder))
    stack = cdk.Stack(cdk_app, "Stack", env=cdk.Environment(region=region, account=account))
    build(stack)
    cdk_app.synth()
    return Assembly(folder).templates["Stack"]


def of_type(template: Template, kind: str) -> dict[str, Resource]:
    """Resources of a type by logical id."""
    return {name: r for name, r in template["Resources"].items() if r["Type"] == kind}


def only(template: Template, kind: str) -> tuple[str, Resource]:
    """The one resource of a type."""
    ((name, resource),) = of_type(template, kind).items()
    return name, resource


def listed(value: object) -> list[Any]:
    """IAM and CloudFormation write one thing without its list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def waits_for(resource: Resource) -> list[str]:
    """Logical ids in DependsOn."""
    return listed(resource.get("DependsOn"))


def statements_of(template: Template, role: str) -> list[dict[str, Any]]:
    """What a role's policies say together, wherever they are written."""
    resources = template["Resources"]
    properties = resources[role]["Properties"]
    documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
    for name, resource in resources.items():
        if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            given = {"Ref": role} in resource["Properties"].get("Roles", [])
            taken = {"Ref": name} in properties.get("ManagedPolicyArns", [])
            documents += [resource["Properties"]["PolicyDocument"]] if given or taken else []
    return [statement for document in documents for statement in listed(document["Statement"])]


def allowed(statements: list[dict[str, Any]], action: str) -> list[dict[str, Any]]:
    """The statements that allow an action."""
    return [
        s
        for s in statements
        if s["Effect"] == "Allow" and any(fnmatchcase(action, pattern) for pattern in listed(s["Action"]))
    ]


def resources_for(statements: list[dict[str, Any]], action: str) -> list[Any]:
    """What an action is allowed on."""
    return [r for s in allowed(statements, action) for r in listed(s["Resource"])]


def actions_of(statements: list[dict[str, Any]]) -> set[str]:
    """Every action that is allowed."""
    return {a for s in statements if s["Effect"] == "Allow" for a in listed(s["Action"])}


def walk(value: object) -> Iterator[tuple[str, Any]]:
    """Every key of nested dictionaries with its value."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield key, inside
            yield from walk(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from walk(inside)


def shown(value: object) -> str:
    """A value of a template in one line, to look for words in."""
    return json.dumps(value, sort_keys=True)


def stack_outputs(value: object) -> set[tuple[str, str]]:
    """Weak references in a value: (stack, output)."""
    return {(v["StackName"], v["OutputName"]) for k, v in walk([value]) if k == "Fn::GetStackOutput"}


KEPT = ("RetainExceptOnCreate", "Retain")
"""Deletion and replacement policy of what holds data: kept, but not when its own first creation fails."""


def policies(resource: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """A resource's deletion and replacement policies."""
    return resource.get("DeletionPolicy"), resource.get("UpdateReplacePolicy")
