"""What an XID asks for: the table, with the deployment's changes to it."""

import json
import re
from pathlib import Path

ACTIONS = ("none", "drain", "reboot", "replace")
UNKNOWN = {"action": "none", "name": "not in the table"}


def table(changes):
    """XID → `{action, name, source}`, after `nodes.health.xids`.

    Raises ValueError with one line that says what was given, what is allowed and what to change.
    """
    rules = json.loads((Path(__file__).parent / "xids.json").read_text(encoding="utf-8"))["xids"]
    for xid, action in changes.items() if isinstance(changes, dict) else [(changes, None)]:
        if not re.fullmatch("[1-9][0-9]{0,3}", str(xid)) or action not in ACTIONS:
            allowed = f"allowed is a number with {', '.join(ACTIONS)}; change it and deploy again"
            raise ValueError(f"nodes.xids: {xid!r} is {action!r}; {allowed}")
        rules[xid] = {**rules.get(xid, UNKNOWN), "action": action, "recovery": {}}
    return rules


def stronger(action, other):
    """Whether an action goes before another; none goes before one that is not known here."""
    return other in ACTIONS and ACTIONS.index(action) > ACTIONS.index(other)
