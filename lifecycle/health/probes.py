"""Cheap checks of the node. A feature that is off says nothing; a check that hangs is a fault, not a hang."""

import node

OFF, BUSY = 99, 75
PROBES = {
    # A job that starts without its file system fails at once, and so does the next.
    "lustre": (10, 'stat -f "$1" && mountpoint "$1"', "{} is not mounted"),
    # Scratch that is not mounted is a feature that is off; mounted and read-only it is a broken disk.
    "scratch": (5, f'mountpoint "$1" || exit {OFF}; : >"$1/.trainshed-health"', "{} cannot be written"),
    # No reboot from here: HyperPod's agent reboots for this itself, and two could go on for ever.
    "accelerators": (
        15,
        f'command -v nvidia-smi || exit {OFF}; [ "$(nvidia-smi -L | grep -c "^GPU ")" -ge "$1" ]',
        "fewer than {} accelerators answer",
    ),
}


def checks(facts, settings):
    """What each check that is on finds wrong: "" for nothing."""
    lustre = (settings.get("lustre") or {}).get("mount_path")
    said = {"login": "login node, takes no jobs"} if facts.get("role") == "login" else {}
    for name, (seconds, script, fault) in PROBES.items():
        if wanted := {"lustre": lustre, **facts}.get(name):
            # One that hangs in the kernel keeps its lock, so that it stays the only one.
            lock = ("flock", "-n", "-E", str(BUSY), str(node.STATE.with_name(f"{name}.lock")))
            code, _ = node.run(seconds, *lock, "sh", "-c", script, "sh", str(wanted))
            if code != OFF:
                hangs = f"{name} does not answer"
                said[name] = {0: "", None: hangs, BUSY: hangs}.get(code, fault.format(wanted))
    return said
