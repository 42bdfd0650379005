"""The node in Slurm's eyes: the strongest action that is wanted becomes its state."""

import re

import node
import policy

NOTHING = ["none", ""]


def settle(wanted, faults):
    """Ask Slurm for an action, or for a drain while a check fails; what is still wanted afterwards."""
    code, shown = node.run(10, "scontrol", "--oneliner", "show", "node", node.NAME)
    if code != 0:
        return wanted
    current = re.search(r"\bState=(\S+)", shown)[1]
    out = re.search("DRAIN|FAIL", current)
    # Slurm keeps the reason of a node that is back in service.
    told = re.search(r"\bReason=(.*?) \[\S+@\S+\]", shown) if out or "DOWN" in current else None
    reason = told[1] if told else ""
    action, why = wanted
    if reason.startswith("Action:"):
        # AWS: no change of state while HyperPod acts. What is stronger waits; a reboot clears it.
        return wanted if policy.stronger(action, reason[7:].lower()) else NOTHING
    ours = out and reason.startswith("trainshed: ") and " xid " not in reason
    if action in ("replace", "reboot"):
        asked = ("state=fail", f"reason=Action:{action.title()}")  # HyperPod compares it letter by letter
    elif action == "drain" and (ours or not out):  # what somebody else took out keeps its reason
        asked = ("state=drain", f"reason=trainshed: {why}")
    elif faults and not out:
        asked = ("state=drain", f"reason=trainshed: {faults[0]}")
    elif ours and not faults:
        asked = ("state=resume",)
    else:
        return NOTHING
    if node.run(10, "scontrol", "update", f"nodename={node.NAME}", *asked)[0] == 0:
        node.say(f"{node.NAME}: {' '.join(asked)}")
    # Until it is seen: a controller that has just started forgets it when the node registers.
    return wanted
