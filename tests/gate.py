"""The gate before a deploy: what the examples' stacks would lose, without AWS and without credentials.

`baseline` writes down every example's templates. `diff` synthesises the examples and compares; it exits
with 1 where data, a cluster or a network would be replaced, deleted or left behind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests import offline
from tests.support import ROOT, Assembly, platform_assembly
from tests.verdicts import Change, Template, compare
from trainshed.planning.problems import PlanError

assert offline.NODE, "set before aws_cdk is imported"
BASELINES = Path("tests/baselines")
ACCEPTED = BASELINES / "accepted.txt"
_SUFFIX = ".template.json"
Baselines = dict[str, dict[str, Template]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gate; 1 when something must not happen, 2 when it cannot tell."""
    parser = argparse.ArgumentParser(prog="gate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("baseline", help="write the examples' templates to tests/baselines")
    diff = commands.add_parser("diff", help="compare the examples with their baselines")
    diff.add_argument("--base", help="take the baselines from where this git ref and HEAD parted")
    diff.add_argument("--strict", action="store_true", help="fail on any difference")
    arguments = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as out:
            assemblies = {name: synthesise(name, Path(out) / name) for name in examples()}
            if arguments.command == "baseline":
                return write(assemblies)
            baselines = committed(arguments.base) if arguments.base else on_disk()
            changes = changes_of(assemblies, baselines)
            stacks = sum(len(a.templates) for a in assemblies.values())
        print(f"gate: {len(assemblies)} examples, {stacks} stacks, {len(baselines)} baselines")
        return judge(changes, accepted(), strict=arguments.strict)
    except (PlanError, RuntimeError) as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2


def examples() -> list[str]:
    """Names of the example deployments."""
    return sorted(p.stem for p in (ROOT / "deployments").glob("*.yaml") if not p.name.endswith(".lock.yaml"))


def synthesise(example: str, folder: Path) -> Assembly:
    """An example as `app.py` synthesises it; assets stay where they are, for their hashes say enough."""
    return platform_assembly(example, {"aws:cdk:disable-asset-staging": "true"}, folder)


def write(assemblies: Mapping[str, Assembly]) -> int:
    """Replace the baselines on disk."""
    wanted = {
        ROOT / BASELINES / example / f"{stack}{_SUFFIX}": json.dumps(template, indent=1) + "\n"
        for example, assembly in assemblies.items()
        for stack, template in assembly.templates.items()
    }
    for path in set((ROOT / BASELINES).glob(f"*/*{_SUFFIX}")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"gate: wrote {len(wanted)} baselines of {len(assemblies)} examples")
    return 0


def on_disk() -> Baselines:
    """The baselines of the working tree."""
    paths = sorted((ROOT / BASELINES).glob(f"*/*{_SUFFIX}"))
    return _by_example((p.relative_to(ROOT), p.read_text(encoding="utf-8")) for p in paths)


def committed(ref: str, root: Path = ROOT) -> Baselines:
    """The baselines of the commit at which `ref` and HEAD parted: what was merged, so what is deployed.

    Raises:
        RuntimeError: git knows no such commit.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip() or "no common commit: fetch the whole history"
            raise RuntimeError(f"git {' '.join(arguments)}: {said}")
        return done.stdout

    base = git("merge-base", ref, "HEAD").strip()
    names = git("ls-tree", "-r", "--name-only", base, "--", f"{BASELINES}/").splitlines()
    return _by_example((Path(n), git("show", f"{base}:{n}")) for n in names if n.endswith(_SUFFIX))


def _by_example(files: Iterable[tuple[Path, str]]) -> Baselines:
    found: Baselines = {}
    for path, text in files:
        found.setdefault(path.parent.name, {})[path.name.removesuffix(_SUFFIX)] = json.loads(text)
    return found


def accepted(path: Path = ROOT / ACCEPTED) -> set[tuple[str, str]]:
    """What reviewers let pass: (stack, logical id) of each line, the rest of it being the reason."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    words = [line.split(maxsplit=2) for line in lines if line.strip() and not line.startswith("#")]
    short = [" ".join(w) for w in words if len(w) < 3]
    if short:
        raise RuntimeError(f"{ACCEPTED}: write STACK LOGICAL_ID REASON, not {short[0]!r}")
    return {(w[0], w[1]) for w in words}


def changes_of(assemblies: Mapping[str, Assembly], baselines: Baselines) -> list[Change]:
    """What every example, or one that is no more, would do to what is deployed."""
    changes: list[Change] = []
    for example in sorted({*assemblies, *baselines}):
        assembly = assemblies.get(example)
        changes += compare(assembly.templates if assembly else {}, baselines.get(example, {}))
    return changes


def judge(changes: Sequence[Change], allowed: set[tuple[str, str]], *, strict: bool) -> int:
    """Print what differs, and say whether it may pass."""
    failed = [c for c in changes if c.instead and (c.stack, c.resource) not in allowed]
    _print(changes, failed)
    print(f"gate: {len(changes)} changes, {len(failed)} must not happen")
    if failed:
        print(f"gate: what is meant all the same goes into {ACCEPTED}: STACK LOGICAL_ID REASON")
    for stack, name in sorted(allowed - {(c.stack, c.resource) for c in changes if c.instead}):
        print(f"gate: {ACCEPTED} no longer needs {stack} {name}")
    if strict and changes:
        print("gate: the baselines are out of date; if every change is meant, run `make baseline` and commit")
    return 1 if failed or (strict and changes) else 0


def _print(changes: Sequence[Change], failed: Sequence[Change]) -> None:
    rows = [("stack", "resource", "change", "verdict")]
    for change in changes:
        verdict = "FAIL" if change in failed else "accepted" if change.instead else "pass"
        what = f"{change.impact}: {change.details[0]}" if change.details else change.impact
        more = f" (+{len(change.details) - 1})" if len(change.details) > 1 else ""
        which = f"{change.kind} {change.resource}".strip()
        rows.append((change.stack, which, _cut(what, 90) + more, verdict))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows if changes else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for change in failed:
        details = ", ".join(change.details) or "it leaves the template"
        which = f"{change.stack} {change.resource} ({change.kind})"
        print(f"FAIL {which} {change.impact}: {details}; instead: {change.instead}")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


if __name__ == "__main__":
    sys.exit(main())
