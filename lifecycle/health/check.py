#!/usr/bin/python3
"""Slurm's HealthCheckProgram: events in the kernel's log and cheap checks become this node's state.

Ends with 0 whatever is broken, as slurmd joins only after that.
"""

import json
import os
import signal

import kernel
import node
import policy
import probes
import slurm_state


def look():
    """Handle what is new in the kernel's log, then check."""
    boot = (node.ROOT / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    known, settings = node.read(node.STATE), node.read(node.SETTINGS)
    fresh = {"boot": boot, "sequence": -1, "counts": {}, "wanted": slurm_state.NOTHING}
    state = {**fresh, **known} if known.get("boot") == boot else fresh
    try:
        rules = policy.table(((settings.get("nodes") or {}).get("health") or {}).get("xids") or {})
    except ValueError as error:
        node.say(f"{error}; until then the table holds as it is")
        rules = policy.table({})
    counts = state["counts"]
    for xid, rule in rules.items():
        for action in (rule["action"], *rule.get("recovery", {}).values()):
            counts.setdefault(f"{xid} {action}", 0)  # the first event must be an increase
    for sequence, xid, name, action, words in kernel.events(kernel.log(), rules, state["sequence"]):
        state["sequence"] = sequence
        counts[f"{xid} {action}"] = counts.get(f"{xid} {action}", 0) + 1
        node.say(f"XID {xid} {name}: {action} ({words})")
        if policy.stronger(action, state["wanted"][0]):
            state["wanted"] = [action, f"xid {xid} {name}"]
    node.STATE.parent.mkdir(parents=True, exist_ok=True)
    node.write(node.STATE, json.dumps(state))  # before Slurm is asked, which may not answer
    state["checks"] = probes.checks(node.read(node.FACTS), settings)
    state["wanted"] = slurm_state.settle(
        state["wanted"], [fault for fault in state["checks"].values() if fault]
    )
    node.write(node.STATE, json.dumps(state))


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(50)  # Slurm kills it after 60 s
    try:
        look()
    except Exception as error:
        node.say(f"the check itself failed: {error!r}")
