"""The settings contract on the node: what CDK wrote, checked before any step relies on it.

Standard library only; runs on the AMI's own Python (3.10 or later).
"""

import json
import shlex
import sys
from pathlib import Path

VERSION = 2
REDEPLOY = "deploy both from one commit"
# fmt: off
TOP = {
    "version", "platform", "cluster", "region", "orchestrator", "lustre", "home", "buckets", "groups",
    "nodes",
}
GROUP = {
    "role", "instance_type", "partition", "efa_interfaces", "accelerators", "scratch", "vcpus", "gres",
    "environment", "programs",
}
# fmt: on
SECTIONS = {
    "lustre": {"dns_name", "mount_name", "mount_path", "efa"},
    "home": {"dns_name", "mount_path"},
    "buckets": {"datasets", "checkpoints", "lifecycle"},
    "nodes": {"certificates", "ldap", "metrics", "logs", "containers", "health", "clock"},
    "nodes.certificates": {"files", "secret_arn"},
    "nodes.ldap": {"uri", "base", "bind_dn", "bind_secret_arn"},
    "nodes.metrics": {"url", "region", "auth", "secret_arn"},
    "nodes.logs": {"to", "group", "host", "port", "tls"},
    "nodes.health": {"xids"},
}
MAY_BE_NULL = {"lustre", "home", "nodes.ldap", "nodes.metrics", "nodes.logs"}


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
    for where, allowed in SECTIONS.items():
        section = settings
        for part in where.split("."):
            section = section[part]
        if section is not None or where not in MAY_BE_NULL:
            _only(section, allowed, path, where)
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


def facts_of(settings, resource_path):
    """What this node is: its group's settings, all null when HyperPod lists it nowhere."""
    try:
        resource_config = json.loads(Path(resource_path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"cannot be read ({error}); HyperPod writes it before this runs"
        raise SettingsError(f"{resource_path}: {why}") from None
    group = own_group(resource_config, node_addresses())
    unknown = dict.fromkeys(GROUP)
    return {"cluster": settings["cluster"], "group": group, **settings["groups"].get(group or "", unknown)}


def assignments(prefix, value):
    """Shell assignments: null is empty, true and a section are `yes`, a list is an array."""
    if isinstance(value, dict):
        yield f"{prefix}=yes"
        for name, part in value.items():
            yield from assignments(f"{prefix}_{name}", part)
    elif isinstance(value, list):
        yield f"{prefix}=({' '.join(shlex.quote(str(part)) for part in value)})"
    else:
        text = "yes" if value is True else "" if value is None or value is False else str(value)
        yield f"{prefix}={shlex.quote(text)}"


def main(settings_path, resource_path):
    """Prints this node's facts as a line of JSON, then all that steps are told as assignments."""
    try:
        settings = load(settings_path)
        node = facts_of(settings, resource_path)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    del settings["groups"]  # whose names are no shell names; this node's own is in `node`
    shell = [*assignments("settings", settings), *assignments("node", node)]
    print(json.dumps(node, sort_keys=True), *shell, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
