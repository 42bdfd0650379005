"""`trainshed`: what a deployment file plans and what changing it does. Needs no Node; only `mirror` asks AWS.

Exit codes: 0 done, 2 refused (one `error:` line a problem), 3 a change that AWS would not make, 130
interrupted.
"""

# Imports wait for the command that needs them, so that each answers at once.
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .planning.problems import PlanError, Problem

if TYPE_CHECKING:
    from .loading import Loaded

REFUSED, NEVER, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141


class Arguments(argparse.Namespace):
    """What the command line gives, typed."""

    run: Callable[[Arguments], int]
    file: Path
    regions: str | None
    set: list[str]
    json: bool
    html: Path | None
    lock: bool
    prune: bool
    against: Path | None
    check: Path | None
    manifest: Path
    offline: Path | None
    pin: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Wrong usage raises SystemExit(2), as argparse does."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv, Arguments())
    try:
        code = args.run(args)
        sys.stdout.flush()
    except PlanError as error:
        return _refused(str(problem) for problem in error.problems)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _silence_stdout()
        return _refused([str(error)])
    return code


def _refused(messages: Iterable[str]) -> int:
    with contextlib.suppress(BrokenPipeError):
        for message in messages:
            line = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
            print(f"error: {line}", file=sys.stderr)
    return REFUSED


def _silence_stdout() -> None:
    """Keep Python from complaining about a broken stream once more when it shuts down."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainshed", description="Plans training platforms on AWS HyperPod.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[Arguments], int], summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.set_defaults(run=run)
        return added

    plan = command("plan", _plan, "Say what a deployment file plans, or what changing it does.")
    plan.add_argument("file", type=Path, metavar="FILE", help="the deployment file")
    plan.add_argument("--regions", metavar="A,B", help="regions that replace the file's own list")
    plan.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a dotted path and its value; repeatable",
    )
    plan.add_argument("--json", action="store_true", help="one JSON document instead of text")
    plan.add_argument("--html", type=Path, metavar="OUT.html", help="draw the address map")
    plan.add_argument("--prune", action="store_true", help="with --lock: forget subnets without a tenant")
    doing = plan.add_mutually_exclusive_group()
    doing.add_argument("--lock", action="store_true", help="write NAME.lock.yaml, so that addresses stay")
    doing.add_argument(
        "--against", type=Path, metavar="OLD.yaml",
        help="say what changes from OLD.yaml to FILE with these flags; exit code 3 for what AWS would refuse",
    )  # fmt: skip
    schema = command("schema", _schema, "Print the deployment file's JSON Schema.")
    policies = command("policies", _policies, "Print what changing each field does, in Markdown.")
    for exported in (schema, policies):
        exported.add_argument(
            "--check", type=Path, metavar="FILE", help="say whether FILE holds the current text"
        )
    instances = command("instances", _instances, "Print the instance table.")
    instances.add_argument("--json", action="store_true", help="JSON instead of text")
    mirror = command("mirror", _mirror, "Put the programs that nodes install into each region's bucket.")
    mirror.add_argument("file", type=Path, metavar="FILE", help="the deployment file")
    mirror.add_argument("--regions", metavar="A,B", help="regions that replace the file's own list")
    mirror.add_argument(
        "--manifest", type=Path, default=Path("lifecycle/mirror.json"), metavar="JSON", help="what there is"
    )
    mirror.add_argument("--from", dest="offline", type=Path, metavar="FOLDER", help="files fetched already")
    mirror.add_argument("--pin", action="store_true", help="write digests that the manifest lacks into it")
    return parser


def _mirror(args: Arguments) -> int:
    from .loading import load
    from .operations.mirror import mirror

    for line in mirror(
        load(args.file, regions=args.regions).plan, args.manifest, offline=args.offline, pin=args.pin
    ):
        print(line, flush=True)
    return 0


def _plan(args: Arguments) -> int:
    from .loading import load

    if args.prune and not args.lock:
        raise _refusal("--prune", "no --lock", "both together", "add --lock")
    loaded = load(args.file, regions=args.regions, overrides=args.set)
    said = _lock(loaded, prune=args.prune) if args.lock else []
    if args.html:
        from .picture import picture

        _write(args.html, picture(loaded))
        said.append(f"drew {args.html}")
    if args.against:
        return _against(args.against, args, loaded, said)
    if args.json:
        _print_document(loaded, said)
    elif args.lock:
        print("\n".join(said))
    else:
        from .report import plan_report

        flags = [f"--regions={args.regions}"] if args.regions else []
        flags += [f"--set={item}" for item in args.set]
        command = shlex.join(["trainshed", "plan", str(args.file), *flags])
        print("\n".join((*said, plan_report(loaded, command))))
    return 0


def _against(path: Path, args: Arguments, new: Loaded, said: list[str]) -> int:
    from .comparing import against, changes_report

    changes = against(path, new)
    if args.json:
        _print_document(new, said, changes)
    else:
        print("\n".join((*said, changes_report(changes, str(path), str(args.file)))))
    return NEVER if any(change.policy == "never" for change in changes) else 0


def _lock(loaded: Loaded, *, prune: bool) -> list[str]:
    from .locking import locked, write_lock

    locks, said = locked(loaded.plan, loaded.locks, prune=prune)
    if locks == loaded.locks:
        return [*said, f"{loaded.lock_path} stays as it is"]
    write_lock(loaded.lock_path, locks)
    return [*said, f"wrote {loaded.lock_path}: commit it beside the deployment file"]


def _print_document(loaded: Loaded, said: Sequence[str], changes: Sequence[object] | None = None) -> None:
    from .document import document

    print(json.dumps(document(loaded, changes), indent=2))
    for line in said:
        print(line, file=sys.stderr)


def _schema(args: Arguments) -> int:
    from .deployment import json_schema

    return _export(json.dumps(json_schema(), indent=2) + "\n", args.check, "trainshed schema")


def _policies(args: Arguments) -> int:
    from .consequences import policies_page

    return _export(policies_page(), args.check, "trainshed policies")


def _export(text: str, kept: Path | None, command: str) -> int:
    if kept is None:
        sys.stdout.write(text)
    elif kept.read_text(encoding="utf-8", errors="replace") != text:
        raise _refusal(str(kept), "an older text", f"what `{command}` prints", f"run `{command} > {kept}`")
    return 0


def _instances(args: Arguments) -> int:
    from .report import instances_document, instances_report

    print(instances_document() if args.json else instances_report())
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        given, fix = error.strerror or str(error), "choose another place"
        raise _refusal(str(path), given, "a file that can be written", fix) from None


def _refusal(path: str, given: str, allowed: str, fix: str) -> PlanError:
    return PlanError([Problem(path, given, allowed, fix)])
