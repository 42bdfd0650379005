"""Which checkpoints go, and in an order that a crash cannot hurt: marker first, then data.

Steps: the newest `keep` stay, so does every `keep_every`-th step; the newest whole one always stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.publish import MARKER, step_of, unpublish

if TYPE_CHECKING:
    from trainer.folders import Folder


def expired(steps: list[int], *, keep: int, keep_every: int | None) -> list[int]:
    """Published steps that may go, oldest first."""
    kept = set(sorted(steps)[-max(keep, 1) :])
    return [
        step for step in sorted(steps) if step not in kept and not (keep_every and step % keep_every == 0)
    ]


def remove(folder: Folder, name: str) -> None:
    """Unpublish, then delete the data: cut in between, a rest is left that `retain` sweeps later."""
    unpublish(folder, name)
    folder.remove(name, list(folder.files(name)))


def retain(folder: Folder, newest: int, *, keep: int, keep_every: int | None) -> list[str]:
    """Delete what has expired and unpublished rests up to `newest`, a step just published: their names."""
    by_step = {
        step: name for name in folder.names() if (step := step_of(name)) is not None and step <= newest
    }
    published = [step for step, name in by_step.items() if MARKER in folder.files(name)]
    if newest not in published:  # somebody else removed it: touch nothing
        return []
    rests = [step for step in by_step if step not in published]
    gone = [by_step[step] for step in sorted(rests) + expired(published, keep=keep, keep_every=keep_every)]
    for name in gone:
        remove(folder, name)
    return gone


def clear_before_writing(writer: Any, folder: Folder, name: str) -> None:  # noqa: ANN401 (a DCP writer)
    """Delete what an earlier, cut save left under this name: on the coordinator, before any rank writes."""
    plan = writer.prepare_global_plan

    def prepare_global_plan(plans: list[Any]) -> list[Any]:
        remove(folder, name)
        writer.fs.mkdir(writer.path)  # `remove` takes the empty directory away
        return plan(plans)

    writer.prepare_global_plan = prepare_global_plan
