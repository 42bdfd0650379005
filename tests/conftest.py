"""Synthesis for every test in one process, offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import offline
from tests.support import Assembly, Template, platform_assembly, template_of

assert offline.NODE, "set before aws_cdk is imported"

# The trainer has an environment and a run of its own.
collect_ignore = ["trainer"]


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory):
    """`assembly("quickstart", set="protect=false")`: an example as `app.py` makes it, once a session."""
    made: dict[tuple[object, ...], Assembly] = {}

    def get(example: str | Path, **context: str) -> Assembly:
        key = (example, *sorted(context.items()))
        if key not in made:
            made[key] = platform_assembly(example, context, tmp_path_factory.mktemp("cdk.out"))
        return made[key]

    return get


@pytest.fixture(scope="session")
def templates(assembly):
    """`templates("quickstart")`: an example's templates by stack name."""

    def get(example: str | Path, **context: str) -> dict[str, Template]:
        return assembly(example, **context).templates

    return get


@pytest.fixture(scope="session")
def stack_template(tmp_path_factory: pytest.TempPathFactory):
    """`stack_template(build)`: the template of one stack that `build(stack)` fills."""

    def get(build, **environment: str) -> Template:
        return template_of(build, tmp_path_factory.mktemp("cdk.out"), **environment)

    return get
