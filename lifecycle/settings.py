"""The settings contract on the node: what CDK wrote, checked before any step relies on it.

Standard library only; runs on the AMI's own Python (3.10 or later).
"""

import json
import sys
from pathlib import Path

VERSION = 1
REDEPLOY = "deploy both from one commit"
TOP = {"version", "platform", "cluster", "region", "orchestrator", "lustre", "home", "buckets", "groups"}
GROUP = {"role", "instance_type", "partition", "efa_interfaces", "accelerators", "scratch"}
LUSTRE = {"dns_name", "mount_name", "mount_path", "efa"}
HOME = {"dns_name", "mount_path"}
BUCKETS = {"datasets", "checkpoints", "lifecycle"}


class SettingsError(ValueError):
    """The settings are not what this version of the steps understands."""


def load(path):
    """The settings file as a dictionary.

    Raises SettingsError with one line that says what was found, what is allowed and what to do.
    """
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read ({error}); deploy the cluster stack again") from None
    if not isinstance(settings, dict) or settings.get("version") != VERSION:
        found = settings.get("version") if isinstance(settings, dict) else type(settings).__name__
        raise SettingsError(f"{path}: version {found}, these steps know {VERSION}; {REDEPLOY}")
    _only(settings, TOP, path, "the file")
    _only(settings["buckets"], BUCKETS, path, "buckets")
    for name, allowed in (("lustre", LUSTRE), ("home", HOME)):
        if settings[name] is not None:
            _only(settings[name], allowed, path, name)
    if not isinstance(settings["groups"], dict):
        raise SettingsError(f"{path}: groups is {settings['groups']}, not a section; {REDEPLOY}")
    for name, group in settings["groups"].items():
        _only(group, GROUP, path, f"groups.{name}")
    return settings


def _only(section, allowed, path, where):
    if not isinstance(section, dict) or set(section) != allowed:
        keys = sorted(section) if isinstance(section, dict) else section
        raise SettingsError(f"{path}: {where} has {keys}, allowed is {sorted(allowed)}; {REDEPLOY}")


def own_group(resource_config, addresses):
    """The instance group that this node belongs to, by any of its IPv4 addresses; None when not listed.

    Groups without instances are normal: they have been scaled to nothing.
    """
    for group in resource_config.get("InstanceGroups") or []:
        for instance in group.get("Instances") or []:
            if addresses & {instance.get("CustomerIpAddress"), instance.get("AgentIpAddress")}:
                return group["Name"]
    return None


def node_addresses():
    """This node's IPv4 addresses, from the kernel's own table of local routes."""
    found, last = set(), ""
    for line in Path("/proc/net/fib_trie").read_text(encoding="ascii").splitlines():
        words = line.split()
        if "host LOCAL" in line:
            found.add(last)
        elif words and words[0] in ("|--", "+--"):
            last = words[1].split("/")[0]
    return found - {"127.0.0.1"}


def main(arguments):
    """Print this node's own settings as one JSON line."""
    settings_path, resource_path = arguments
    try:
        settings = load(settings_path)
        resource_config = json.loads(Path(resource_path).read_text(encoding="utf-8"))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        why = f"cannot be read ({error}); HyperPod writes it before this runs"
        print(f"{resource_path}: {why}", file=sys.stderr)
        return 1
    group = own_group(resource_config, node_addresses())
    facts = {"cluster": settings["cluster"], "group": group, **settings["groups"].get(group or "", {})}
    print(json.dumps(facts, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
