"""Values against the service's own API model, as botocore ships it.

CloudFormation's schema of FSx has next to no enums; the API behind it has. Members that the API does not know
are left to the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session


def check(
    service: str, operation: str, properties: Mapping[str, Any], refuse: Callable[[str], Exception]
) -> None:
    """Refuse enum values, patterns and ranges that the request's model rules out."""
    found = list(_walk(_input(service, operation), properties, ""))
    if found:
        raise refuse(f"{len(found)} validation error(s) detected: {'; '.join(found)}")


@cache
def _input(service: str, operation: str) -> Any:
    return botocore.session.get_session().get_service_model(service).operation_model(operation).input_shape


def _walk(shape: Any, value: Any, at: str) -> Iterator[str]:
    if shape.type_name == "structure" and isinstance(value, Mapping):
        for name in value.keys() & shape.members.keys():
            yield from _walk(shape.members[name], value[name], f"{at}/{name}")
    elif shape.type_name == "list" and isinstance(value, list):
        yield from _measure(shape, len(value), at)
        for item in value:
            yield from _walk(shape.member, item, at)
    elif shape.type_name == "string":
        yield from _text(shape, str(value), at)
    elif shape.type_name in ("integer", "long", "float", "double"):
        yield from _measure(shape, float(value), at)


def _text(shape: Any, value: str, at: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        yield f"Value '{value}' at '{at}' must satisfy enum value set: {shape.enum}"
    pattern = shape.metadata.get("pattern")
    if pattern and not _fits(pattern, value):
        yield f"Value '{value}' at '{at}' must satisfy regular expression pattern: {pattern}"
    yield from _measure(shape, len(value), at)


def _fits(pattern: str, value: str) -> bool:
    try:
        return bool(re.fullmatch(pattern, value))
    except re.error:
        return True  # a Java or Unicode class that Python's re does not have


def _measure(shape: Any, size: float, at: str) -> Iterator[str]:
    least, most = shape.metadata.get("min", size), shape.metadata.get("max", size)
    if not least <= size <= most:
        yield f"'{at}' must be between {least} and {most}, not {size:g}"
