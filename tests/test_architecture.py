"""The rules of the house, checked by its own tools: arrows, sizes, types, style."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import constructs
import pytest

from tests.support import ROOT

LIBRARY = ROOT / "constructs" / "trainshed"
FUNCTIONS = [path for folder in ("evaluator", "provider") for path in (LIBRARY / folder).glob("*.py")]
TOOLS = Path(sys.executable).parent
SOURCES = (
    "app.py", "constructs", "stacks", "lifecycle", "trainer", "observability", "deployments", "docs", "tests",
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", ".ci",
)  # fmt: skip
TEXTS = (".py", ".sh", ".md", ".toml", ".yaml", ".yml", ".json", ".css", ".in")
# Tables, which grow with what AWS sells and what validators find; and the values that pass between modules.
EXCEPTIONS = {
    "constructs/trainshed/planning/instances.py": 450,
    "constructs/trainshed/planning/regions.py": 300,
    "constructs/trainshed/planning/model.py": 285,
    "stacks/acknowledgements.py": 160,
    # What steps share, and the contract, are no steps.
    "lifecycle/lib.sh": 80,
    "lifecycle/on_init_complete.sh": 70,
    "lifecycle/render.py": 70,
    "lifecycle/settings.py": 150,
}


def files(*suffixes: str) -> Iterator[Path]:
    """Our own files of some kinds."""
    for name in SOURCES:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            plain = path.suffix in suffixes or path.name in ("Makefile", "run")
            if plain and path.is_file() and "__pycache__" not in path.parts:
                yield path


def imports(path: Path) -> set[str]:
    """The top-level packages that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0
    }
    return {name.partition(".")[0] for name in found}


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOLS / tool, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module", autouse=True)
def types():
    """Pyright reads all of aws_cdk, which takes it most of a minute: it begins before the other tests."""
    with subprocess.Popen(
        [TOOLS / "pyright"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        yield process
        process.kill()


def test_the_folder_constructs_never_shadows_the_package():
    """A regular package of that name would hide PyPI's, and no CDK app would start here."""
    assert not (ROOT / "constructs" / "__init__.py").exists()
    assert Path(str(constructs.__file__)).is_relative_to(sysconfig.get_paths()["purelib"])
    assert [p for p in (ROOT / "tests").rglob("constructs") if p.is_dir()] == []


def test_lint():
    done = run("ruff", "check", "--output-format", "concise")
    assert done.returncode == 0, done.stdout


def test_format():
    done = run("ruff", "format", "--check", "--output-format", "concise")
    assert done.returncode == 0, done.stdout


def test_arrows():
    done = run("lint-imports")
    assert done.returncode == 0, done.stdout


def contracts() -> dict[str, dict[str, object]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {c["name"]: c for c in config["tool"]["importlinter"]["contracts"]}


def test_every_module_with_constructs_is_kept_from_the_deployment_file():
    """A construct that is added must be added to the contract, or nobody watches it."""
    named = set(contracts()["constructs and stacks know no deployment file"]["source_modules"])
    makers = {f"trainshed.{p.stem}" for p in LIBRARY.glob("*.py") if imports(p) & {"aws_cdk", "constructs"}}
    assert makers <= named
    assert {name for name in named if not (LIBRARY / f"{name.partition('.')[2]}.py").exists()} == {"stacks"}


def test_what_runs_elsewhere_knows_nothing_of_us():
    """Nodes and jobs have no CDK, and Lambda has boto3 and the standard library."""
    for folder in ("lifecycle", "trainer"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not imports(path) & {"trainshed", "stacks", "app", "aws_cdk", "constructs"}, path
    for path in FUNCTIONS:
        beside = {other.stem for other in path.parent.glob("*.py")}
        assert imports(path) <= sys.stdlib_module_names | {"boto3", "botocore"} | beside, path


def limits() -> Iterator[tuple[str, int]]:
    """Files and how many lines each may have."""
    makers = [p for p in LIBRARY.glob("*.py") if imports(p) & {"aws_cdk", "constructs"}]
    kinds = {
        80: (ROOT / "stacks").glob("*.py"),
        150: [*makers, *FUNCTIONS],
        250: (LIBRARY / "planning").glob("*.py"),
        60: [p for p in (ROOT / "lifecycle").rglob("*") if p.suffix in (".py", ".sh")],
        300: (ROOT / "trainer").glob("*.py"),
    }
    for limit, paths in kinds.items():
        for path in paths:
            name = path.relative_to(ROOT).as_posix()
            yield name, EXCEPTIONS.get(name, limit)


def test_sizes_keep_it_readable():
    """Past its limit a file is split by concern (docs/architecture.md)."""
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name, _ in limits()}
    assert {name: (lengths[name], limit) for name, limit in limits() if lengths[name] > limit} == {}


def test_what_is_left_to_do_has_an_issue():
    # In two parts, because this file is searched as well.
    word = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!\(#\d+\))")
    left = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files(*TEXTS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if word.search(line)
    ]
    assert left == []


def test_no_file_knows_one_machine():
    paths = re.compile("/(work|root|Users)" + "/")
    found = [str(p.relative_to(ROOT)) for p in files(*TEXTS) if paths.search(p.read_text(encoding="utf-8"))]
    assert found == []


def test_types(types: subprocess.Popen[str]):
    output, _ = types.communicate(timeout=600)
    assert types.returncode == 0, output
