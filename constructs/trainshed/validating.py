"""A deployment file against its schema, and every mistake told by its path, with the nearest right word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from .deployment import Deployment, sections_in
from .planning.problems import PlanError, Problem
from .planning.suggest import did_you_mean


def validate(raw: Mapping[str, Any]) -> Deployment:
    """The file against its schema.

    Raises:
        PlanError: every error, each with the path in the file.
    """
    try:
        return Deployment.model_validate(raw)
    except ValidationError as error:
        found = cast("list[dict[str, Any]]", error.errors(include_url=False))
        raise PlanError(dict.fromkeys(_problem(e) for e in found if not _is_other_branch(e))) from None
    except RecursionError:
        given = "a section that holds itself"
        raise PlanError([Problem("the file", given, "plain sections", "drop the YAML anchor")]) from None


def _is_other_branch(error: dict[str, Any]) -> bool:
    """Whether a field of two forms complains about the form that was not meant."""
    loc, given = error["loc"], error.get("input")
    if loc[-2:] == ("type", "str"):
        return isinstance(given, list)
    return error["type"] == "tuple_type" and str(loc[-1]).startswith("tuple[")


def _problem(error: dict[str, Any]) -> Problem:
    loc = [str(part) for part in error["loc"]]
    if loc[-2:] == ["type", "str"] or loc[-1:] == ["[key]"]:
        loc.pop()
    loc = [part for part in loc if not part.startswith("tuple[")]
    path = ".".join(shown(part) for part in loc) or "the file"
    kind, given = cast("str", error["type"]), error.get("input")
    limits = cast("dict[str, Any]", error.get("ctx") or {})
    if kind in ("extra_forbidden", "invalid_key"):
        known = fields_at(loc[:-1])
        fix = did_you_mean(loc[-1], known) or "leave it out"
        return Problem(path, f"`{loc[-1]}`", f"one of {', '.join(known)}" if known else "no such key", fix)
    if kind == "missing":
        return Problem(path, "nothing", "a value", f"add `{loc[-1]}:`")
    allowed, fix = _allowed(kind, cast("str", error["msg"]), limits, given)
    return Problem(path, shown(given), allowed, fix)


def _allowed(kind: str, message: str, limits: dict[str, Any], given: object) -> tuple[str, str]:
    if kind == "literal_error":
        allowed = str(limits["expected"])
        return allowed, did_you_mean(shown(given), re.findall(r"'([^']+)'", allowed)) or "use one of these"
    if kind == "string_pattern_mismatch":
        return f"text of the form {limits['pattern']}", "write it in that form"
    if kind == "string_type":
        return "text", "write a word" if isinstance(given, dict | list | None) else "write it in quotes"
    if kind in ("too_short", "too_long"):
        least, most = limits.get("min_length"), limits.get("max_length")
        return (f"{least} or more" if kind == "too_short" else f"at most {most}"), "correct the list"
    known = {
        "int_type": ("a whole number", "write it without quotes, point or words"),
        "bool_type": ("true or false", "write true or false, without quotes"),
        "dict_type": ("a section", "indent its keys below it, one a line"),
        "model_type": ("a section", "indent its keys below it, one a line"),
        "tuple_type": ("a list", "write it in brackets: [a, b]"),
    }
    plain = re.sub("^(input|string) should (be |have )?", "", message[:1].lower() + message[1:])
    return known.get(kind, (plain, "correct the value"))


def shown(value: object) -> str:
    """A value as a message names it."""
    if isinstance(value, dict | list):
        return f"a {'section' if isinstance(value, dict) else 'list'}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**80:
        return "a number of more than 80 digits"
    text = "nothing" if value is None or value == "" else str(value)
    text = text if text.isprintable() and text.strip() else repr(text)
    return text if len(text) <= 80 else f"{text[:77]}..."


def fields_at(loc: list[str], model: type[BaseModel] = Deployment) -> list[str]:
    """The fields a section may have, by following a path through the schema."""
    here: list[type[BaseModel]] = [model]
    named = False
    for part in loc:
        following: list[type[BaseModel]] = []
        for section in here:
            if part in section.model_fields and not named:
                annotation = section.model_fields[part].annotation
                following += _models_in(annotation)
                mapped = _is_container(annotation)
                break
        else:
            following, mapped = here, False
        if not following:
            return []
        here, named = following, mapped
    return list(here[0].model_fields) if here and not named else []


def _models_in(annotation: object) -> list[type[BaseModel]]:
    return [model for model, _ in sections_in(annotation)]


def _is_container(annotation: object) -> bool:
    if getattr(annotation, "__origin__", None) in (dict, tuple):
        return True
    return any(_is_container(part) for part in _arguments(annotation))


def _arguments(annotation: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", getattr(annotation, "__args__", ()))
