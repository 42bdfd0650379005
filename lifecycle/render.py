"""JSON work for the steps, which bash does badly: `python3 render.py COMMAND …`. Standard library only."""

import json
import sys
from pathlib import Path


def packages(manifest, node_path, machine):
    """`name file sha256` for each program of the mirror that this node wants.

    Raises ValueError: a wanted program has no digest.
    """
    wanted = _read(node_path)["programs"] or ()
    for entry in _read(manifest)["packages"]:
        if entry["for"] in wanted and entry["machine"] in (machine, "any"):
            if not entry["sha256"]:
                raise ValueError(
                    f"{entry['name']} has no digest: run `trainshed mirror --pin`, then deploy again"
                )
            yield f"{entry['name']} {entry['url'].rpartition('/')[2]} {entry['sha256']}"


def merge(path, more):
    """A JSON file with some keys changed; a file that is missing or empty counts as `{}`."""
    text = Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""
    yield json.dumps({**json.loads(text or "{}"), **json.loads(more)}, indent=2, sort_keys=True)


def pick(name):
    """A text of the JSON on standard input."""
    yield json.load(sys.stdin)[name]


def cloudwatch(group, node, files):
    """Settings of the CloudWatch agent that ship some files, one stream a node and file."""
    found = [
        {"file_path": path, "log_group_name": group, "log_stream_name": f"{node}{path.replace('*', 'all')}"}
        for path in files.split()
    ]
    collected = {"logs_collected": {"files": {"collect_list": found}}}
    yield json.dumps({"agent": {"run_as_user": "root"}, "logs": collected}, indent=2)


def _read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def main(arguments):
    """Run one command; 1 with a line that says why it cannot be done."""
    name, *rest = arguments
    try:
        print("\n".join({f.__name__: f for f in (packages, merge, pick, cloudwatch)}[name](*rest)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
