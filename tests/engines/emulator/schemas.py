"""A resource's properties against its CloudFormation schema, and which changes replace it.

Types, required properties, enums and patterns come from cloudformation-validate. It reports neither read-only
properties nor all create-only ones, so `schemas.json` lists both; a test compares it with cfn-lint's schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudformation_validate import SchemaValidator, Severity, TemplateContent

from .kinds import Change, Properties

_FACTS: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("schemas.json").read_text())
_ENUM_RULE = "W3030"
"""A warning in the library, because enums lag behind services; CloudFormation itself refuses."""

# What the update of a type does although its schema does not say so. Source: CloudFormation Template
# Reference, "Update requires: Replacement" of AWS::FSx::FileSystem LustreConfiguration.
_ALSO_CREATE_ONLY = {
    "AWS::FSx::FileSystem": [
        "LustreConfiguration/CopyTagsToBackups",
        "LustreConfiguration/DeploymentType",
        "OpenZFSConfiguration/DeploymentType",
    ]
}

_validator = SchemaValidator()


class InvalidProperties(Exception):
    """Worded as CloudFormation words a failed schema validation."""

    def __init__(self, change: Change, complaints: list[str]) -> None:
        details = "; ".join(complaints)
        super().__init__(
            f"Properties validation failed for resource {change.logical_id} with message: [{details}]"
        )


def validate(change: Change) -> None:
    """Raise `InvalidProperties` unless the schema accepts them."""
    template = {"Resources": {"R": {"Type": change.type, "Properties": change.properties}}}
    found = _validator.validate(TemplateContent(json.dumps(template, default=str)), change.region)
    complaints = [
        f"#/{d.property_path.removeprefix('Properties').strip('.').replace('.', '/')}: {d.message}"
        for d in found
        if d.severity in (Severity.FATAL, Severity.ERROR) or d.rule_id == _ENUM_RULE
    ]
    complaints += [
        f"#/{name}: Encountered readOnly property [/properties/{name}]"
        for name in _FACTS.get(change.type, {}).get("readOnly", [])
        if name in change.properties
    ]
    if complaints:
        raise InvalidProperties(change, complaints)


def create_only(kind: str) -> list[str]:
    """Paths whose change makes CloudFormation create anew: `VpcConfig`, `Orchestrator/Eks`."""
    return _FACTS.get(kind, {}).get("createOnly", []) + _ALSO_CREATE_ONLY.get(kind, [])


def known_types() -> list[str]:
    """The types `schemas.json` describes."""
    return list(_FACTS)


def replaces(kind: str, old: Properties, new: Properties) -> bool:
    """Whether an update from `old` to `new` creates a new physical resource."""
    return any(_at(old, path) != _at(new, path) for path in create_only(kind))


def _at(properties: Properties, path: str) -> Any:
    value: Any = properties
    for step in path.split("/"):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
