"""Findings of the validation plugins that are accepted, recorded one by one where they arise.

cdk-nag names a wildcard in the finding's id, as the template spells it. So the ids of policies are
computed from the policies, and a wildcard that nobody has judged stays a finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_iam as iam
from constructs import IConstruct, IValidation, Node

from .inspection import field, items

_WILDCARD = "AwsSolutions-IAM5"
_POLICIES = (iam.ManagedPolicy, iam.Policy)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding that stays, and why.

    Args:
        paths: of the constructs it arises in, below their stack, with blanks between; absent ones are
            passed over.
        rule: its id, `PLUGIN::RULE`, or for cdk-nag the rule alone; in wildcard findings `…` stands for
            anything.
        reason: may say {name} for the first part of the path.
    """

    paths: str
    rule: str
    reason: str

    def ids(self, findings: Iterable[str]) -> list[str]:
        """What to acknowledge, of the wildcard findings in a policy."""
        if not self.rule.startswith(_WILDCARD):
            return [self.rule if "::" in self.rule else f"{self.rule.partition('-')[0]}::{self.rule}"]
        pattern = ".*".join(map(re.escape, self.rule.split("…")))
        return [f"AwsSolutions::{id_}" for id_ in findings if re.fullmatch(pattern, id_)]


@jsii.implements(IValidation)
class Acknowledgements:
    """Add with `scope.node.add_validation(Acknowledgements(…))`.

    CDK validates a scope after it has replaced the references between stacks: only then does a policy
    read as it will in its template.
    """

    def __init__(self, accepted: Mapping[cdk.Stack, Iterable[Accepted]]) -> None:
        self._accepted = accepted

    def validate(self) -> list[str]:
        """Record what is accepted; there is nothing to complain of."""
        for stack, rows in self._accepted.items():
            by_path: dict[str, list[Accepted]] = {}
            for row in rows:
                for path in row.paths.split():
                    by_path.setdefault(path, []).append(row)
            nodes: dict[str, Node] = {"": stack.node}
            found = {path: node for path in by_path if (node := _find(nodes, path))}
            policies = {path: node.document for path, node in found.items() if isinstance(node, _POLICIES)}
            documents = stack.resolve(policies)
            for path, node in found.items():
                _acknowledge(node, by_path[path], path.partition("/")[0], documents.get(path))
        return []


def _find(nodes: dict[str, Node], path: str) -> IConstruct | None:
    """The construct at a path; `nodes` keeps what was passed on the way."""
    above, _, name = path.rpartition("/")
    if above not in nodes:
        passed = _find(nodes, above)
        if not passed:
            return None
        nodes[above] = passed.node
    return nodes[above].try_find_child(name)


def _acknowledge(node: IConstruct, rows: Iterable[Accepted], name: str, document: object) -> None:
    found = [f"{_WILDCARD}[{each}]" for each in wildcards(document)]
    ids = {id_: row.reason.format(name=name) for row in rows for id_ in row.ids(found)}
    cdk.Validations.of(node).acknowledge(*(cdk.Acknowledgment(id=i, reason=r) for i, r in ids.items()))


def wildcards(document: object) -> Iterator[str]:
    """`Action::…` and `Resource::…`: the wildcards that a resolved policy document allows."""
    for statement in items(field(document, "Statement")):
        if field(statement, "Effect") == "Allow":
            for key in ("Action", "Resource"):
                value = field(statement, key)
                for each in map(_flat, items(value) or [value]):
                    if "*" in each:
                        yield f"{key}::{each}"


def _flat(value: Any) -> str:  # noqa: ANN401
    """A value as cdk-nag writes it, for which see its lib/utils/flatten-cfn-reference."""
    match value:
        case str():
            return value.replace("${", "<").replace("}", ">")
        case {"Fn::Join": [delimiter, [*parts]]}:
            return _flat(delimiter).join(map(_flat, parts))
        case {"Fn::GetAtt": [resource, attribute]}:
            return f"<{_flat(resource)}.{_flat(attribute)}>"
        case {"Ref": name}:
            return f"<{_flat(name)}>"
        case {"Fn::Sub": inside} | {"Fn::ImportValue": inside}:
            return _flat(inside)
        case _:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
