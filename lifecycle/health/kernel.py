"""XIDs in the kernel's log, which /dev/kmsg hands out record by record; a plain file will do."""

import os
import re
from contextlib import suppress

import node
import policy

# A bus address is longer than a process's name: no job fakes an event by a name that the kernel prints.
EVENT = re.compile(r"NVRM: Xid \((?:PCI:)?[\da-fA-F]{4,8}(?::[\da-fA-F]{2}){2}[^)]*\): (\d+)(?:, ?(.*)|$)")
RECORD = re.compile(r"(?:\d+,(\d+),\d+,[^;]*;)?(.*)")
RECOVERY = re.compile(r" to (0x[\da-f]+)")  # the number: drivers differ in the words behind it


def log():
    """All records that there are, as text."""
    parts = []
    with suppress(OSError):  # no more of them, or no such file
        records = os.open(node.ROOT / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        while not parts or parts[-1]:
            with suppress(BrokenPipeError):  # overwritten meanwhile: the next is the oldest that is left
                parts.append(os.read(records, 65536))
    return b"".join(parts).decode("utf-8", "replace")


def events(text, rules, after):
    """(sequence number, XID, name, action, words) of each event after a number; plain lines are counted."""
    sequence = -1
    for line in text.split("\n"):
        number, message = RECORD.match(line).groups()
        sequence = int(number) if number else sequence + 1
        found = EVENT.match(message)
        if found and sequence > after:
            rule, words = rules.get(found[1], policy.UNKNOWN), found[2] or ""
            # XID 154 says itself what the events before it need.
            recovery = RECOVERY.search(words) if rule.get("recovery") else None
            action = rule["recovery"].get(recovery[1], "drain") if recovery else rule["action"]
            yield sequence, found[1], rule["name"], action, words
