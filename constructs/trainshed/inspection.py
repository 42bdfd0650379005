"""Reading what constructs were given: typed structs, dictionaries and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeGuard, TypeVar, cast

import aws_cdk as cdk
from constructs import IConstruct

_Kind = TypeVar("_Kind")


def field(value: object, name: str) -> Any:  # noqa: ANN401
    """A property of an L1 value, given as a typed struct or as a dictionary with camelCase keys."""
    if isinstance(value, dict):
        head, *rest = name.split("_")
        camel = head + "".join(word.title() for word in rest)
        found = cast("dict[str, Any]", value)
        return found.get(camel, found.get(name))
    return getattr(value, name, None)


def items(value: object) -> list[Any]:
    """A list property, empty when it is absent or only known at deployment."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def written(resource: cdk.CfnResource) -> Mapping[str, Any]:
    """What an L1 was given, tokens and all, in one round trip; typed properties take one for every field."""
    return resource._cfn_properties  # pyright: ignore[reportPrivateUsage]


def identity(construct: object) -> str:
    """What tells constructs apart: jsii makes another Python object each time it returns one."""
    return construct.__jsii_ref__.ref  # type: ignore[attr-defined]


def is_a(construct: object, kind: type[_Kind]) -> TypeGuard[_Kind]:
    """`isinstance` for classes with many below them: as jsii makes them, Python would ask each of those."""
    return kind in type(construct).__mro__


def target(value: object) -> IConstruct | None:
    """The construct that a token refers to; None for literals and imports."""
    if not isinstance(value, str) or "${" not in value:
        return None
    token = cdk.Tokenization.reverse_string(value).first_token
    return cast("IConstruct | None", getattr(token, "target", None))


@cache
def declared_type(kind: type[cdk.CfnResource]) -> str | None:
    """The CloudFormation type that a class stands for; the plain CfnResource stands for none."""
    return getattr(kind, "CFN_RESOURCE_TYPE_NAME", None)
