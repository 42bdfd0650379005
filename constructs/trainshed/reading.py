"""YAML, read strictly: no key twice, no sets, no merge keys, and whatever is wrong becomes a problem."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import yaml

from .planning.problems import PlanError, Problem, either
from .planning.suggest import did_you_mean

# What PyYAML lets through of values that contradict their tag, such as `!!bool x`.
_NOT_YAML = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key written twice, of which YAML would silently keep the last."""


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:  # noqa: ANN401
    seen: dict[Any, Any] = {}
    if not isinstance(node, yaml.MappingNode):
        raise yaml.constructor.ConstructorError(None, None, "not a mapping", node.start_mark)
    for key_node, value_node in cast("list[tuple[Any, Any]]", node.value):
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise yaml.constructor.ConstructorError(
                None, None, "merge keys (`<<`) are not read: repeat the lines", key_node.start_mark
            )
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a plain word", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"`{key}` is written twice", key_node.start_mark
            )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


def _unordered(_loader: Any, node: Any) -> None:  # noqa: ANN401
    raise yaml.constructor.ConstructorError(None, None, "sets have no order: write a list", node.start_mark)


_StrictLoader.add_constructor("tag:yaml.org,2002:set", _unordered)  # type: ignore[no-untyped-call]
_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)  # type: ignore[no-untyped-call]


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        PlanError: it is missing, unreadable, not YAML, or not a mapping.
    """

    def refuse(given: str, fix: str) -> PlanError:
        return PlanError([Problem(str(path), given, f"a {what} in YAML", fix)])

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = sorted(p.name for p in path.parent.glob("*.yaml") if not p.name.endswith(".lock.yaml"))
        hint = did_you_mean(path.name, siblings) or (
            f"there is {either(siblings)}" if siblings else "check the path"
        )
        raise refuse("no such file", hint) from None
    except (OSError, ValueError) as error:
        raise refuse(str(error), "check the file") from None
    try:
        raw = yaml.load(text, _StrictLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise refuse(re.sub(r"\s+", " ", str(error)), "correct the YAML there") from None
    except _NOT_YAML as error:
        raise refuse(
            f"YAML that cannot be read: {error}", "write it plainly, without tags or deep nesting"
        ) from None
    if not isinstance(raw, dict):
        raise refuse(f"{type(raw).__name__}", "begin with `name:` and `regions:`")
    return cast("dict[str, Any]", raw)


def read_value(text: str, path: str) -> object:
    """One value in YAML, as the command line gives it; `path` is what a problem names.

    Raises:
        PlanError: it is not YAML.
    """
    try:
        return cast("object", yaml.load(text, _StrictLoader))  # noqa: S506
    except (yaml.YAMLError, *_NOT_YAML):
        raise PlanError([Problem(path, text or "nothing", "a YAML value", "quote it")]) from None
