"""What a change of the deployment file means for what is deployed.

Each field's policy stands in the schema; here is what a policy means, where a value decides, what
becomes of whole sections, and all of it as one page (`docs/update-policies.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import BaseModel

from .deployment import Deployment, Lustre, update_policies
from .planning.storage import automatic_metadata_iops, gib_from_tib

Policy = Literal["never", "replaces nodes", "rolling", "removed", "retained", "live", "added"]

MEANINGS: Mapping[Policy, str] = {
    "never": (
        "AWS refuses it or would replace the resource: "
        "make a new one beside it, move over, then drop the old one"
    ),
    "replaces nodes": "reaches nodes provisioned from then on: replace the others, or scale to 0 and back",
    "rolling": "HyperPod rebuilds nodes in batches, as `patching.rolling` says; root volumes start afresh",
    "removed": "goes, with what its nodes' local disks hold; file systems and buckets stay",
    "retained": "leaves the stacks but stays in AWS, data and bill included, until you delete it there",
    "live": "applied in place; no node and no data is replaced",
    "added": "made new; what is there already stays untouched",
}
"""From worst to best."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A change of value that does other than its field's policy says; `holds` sees the sections around it."""

    path: str
    when: str
    policy: Policy
    why: str
    holds: Callable[[BaseModel, BaseModel], bool]


def _shrinks(field: str) -> Callable[[BaseModel, BaseModel], bool]:
    def holds(old: BaseModel, new: BaseModel) -> bool:
        was, will = getattr(old, field), getattr(new, field)
        return was is not None and will is not None and will < was

    return holds


def _outgrew_automatic(old: BaseModel, new: BaseModel) -> bool:
    was, will = cast("Lustre", old), cast("Lustre", new)
    if will.metadata_iops is not None or will.capacity_tib is None:
        return False
    return (was.metadata_iops or 0) > automatic_metadata_iops(gib_from_tib(will.capacity_tib) or 0)


_GROWS = "FSx only grows: make a new file system and copy"
_RELINK = "fixed when it is made: drop the association in one deployment, add it anew in the next"
RULES: tuple[Rule, ...] = (
    Rule("account", "none was given before", "live", "nothing moves if it is the account deployed to so far",
         lambda old, _: cast("Deployment", old).account is None),
    Rule("storage.lustre.*.capacity_tib", "it shrinks", "never", _GROWS, _shrinks("capacity_tib")),
    Rule("storage.lustre.*.throughput_per_tib", "`efa` is on", "never",
         "EFA fixes the tier when the file system is made", lambda old, _: cast("Lustre", old).efa),
    Rule("storage.lustre.*.throughput_mbps", "it shrinks", "never", _GROWS, _shrinks("throughput_mbps")),
    Rule("storage.lustre.*.metadata_iops", "they shrink", "never", _GROWS, _shrinks("metadata_iops")),
    Rule("storage.lustre.*.metadata_iops", "they are left out and exceed automatic mode", "never",
         "FSx refuses a switch to automatic mode that shrinks them", _outgrew_automatic),
    Rule("storage.home.capacity_gib", "it shrinks", "never", _GROWS, _shrinks("capacity_gib")),
    *(Rule(f"storage.lustre.*.associations.*.{field}", "it changes", "never", _RELINK, lambda _, __: True)
      for field in ("bucket", "prefix", "batch_import")),
)  # fmt: skip

ENTRIES: Mapping[str, tuple[Policy, str]] = {
    "regions.*": ("retained", "its stacks leave the app but stay deployed until you destroy them by name"),
    "regions.*.vpc.subnets.*": ("live", "nothing new is put there"),
    "storage.lustre.*": ("retained", MEANINGS["retained"]),
    "storage.lustre.*.associations.*": ("removed", "unlinked; files and objects stay where they are"),
    "storage.home": ("retained", MEANINGS["retained"]),
    "clusters.*": ("removed", MEANINGS["removed"]),
    "clusters.*.groups.*": ("removed", MEANINGS["removed"]),
    "workload": ("retained", "its stack leaves the app but stays deployed until you destroy it by name"),
    "workload.evaluation": ("removed", "no further checkpoint is scored; results stay"),
}
"""What becomes of a section that is taken out; every one of them can be added at any time."""

CONTROLLER_STAYS = "a cluster keeps its controller group for life: make a new cluster beside it"
LINKED_TWICE = "the new link is made while the old one stands, and FSx refuses both: do it in two deployments"
MOVED = "AWS cannot move it: lock what is deployed (`trainshed plan OLD --lock`), then change the file"

_HEAD = """\
<!-- Written by `trainshed policies`; a test keeps it current. -->

# What a change does

`trainshed plan NEW.yaml --against OLD.yaml` says it of two files. This page says it of every field of the
deployment file, `*` being a name or an index. A field's policy holds for a change of its own value; sections
that come and go are in the last table.

"""


def policies_page() -> str:
    """The update policies in Markdown."""
    meanings = [(f"**{policy}**", meaning) for policy, meaning in MEANINGS.items()]
    fields = [(f"`{path}`", policy, text) for path, (policy, text) in update_policies().items()]
    rules = [(f"`{r.path}`", r.when, f"{r.policy}: {r.why}") for r in RULES]
    rules += [
        (
            "`regions.*.zones`",
            "the first one changes",
            "never, for all that names no zone of its own",
        ),
        ("any", "the region is not locked and a subnet or block would move", f"never: {MOVED}"),
    ]
    entries = [(f"`{path}`", f"{policy}: {meaning}") for path, (policy, meaning) in ENTRIES.items()]
    special = [
        ("a controller group", f"never: {CONTROLLER_STAYS}"),
        ("an association whose path or prefix another one takes over", f"never: {LINKED_TWICE}"),
    ]
    return "\n".join((
        _HEAD + _table("policy", "meaning", rows=meanings),
        "## Fields\n", _table("field", "policy", "what it is", rows=fields),
        "## Where the value decides\n", _table("field", "when", "then", rows=rules),
        "## Sections taken out\n", _table("section", "then", rows=[*entries, *special]),
    ))  # fmt: skip


def _table(*head: str, rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
