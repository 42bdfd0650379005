"""The newest whole checkpoint of a folder, looked for by all ranks together, each reading its share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist

from trainer.errors import TrainerError
from trainer.publish import Marker, NotWholeError, Skipped, check_content, newest_whole
from trainer.state import cause

if TYPE_CHECKING:
    from trainer.folders import Folder


class Search:
    """Rank 0 goes through the folder; the others help to verify what it proposes."""

    def __init__(
        self,
        folder: Folder,
        *,
        run: str,
        verify: Literal["content", "sizes"],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._folder, self._run, self._content, self._group = folder, run, verify == "content", group
        self._rank = dist.get_rank() if group else 0
        self._world = dist.get_world_size() if group else 1

    def newest(self) -> tuple[Marker | None, list[Skipped]]:
        """The checkpoint, agreed by all ranks, and the newer ones that do not count. Collective."""
        if self._rank == 0:
            found: list[Any] = [self._all_agree(self._look)]
        else:
            self._help()
            found = [None]
        if self._group is not None:
            dist.broadcast_object_list(found, src=0, group=self._group)
        if isinstance(found[0], str):
            raise TrainerError("checkpoint.folder", self._folder.url, "a folder that can be read", found[0])
        return found[0]

    def _look(self) -> tuple[Marker | None, list[Skipped]]:
        return newest_whole(self._folder, run=self._run, content=self._verify)

    def _all_agree(self, look: Callable[[], Any]) -> Any:  # noqa: ANN401
        """On rank 0: look, then release the helpers; an error becomes its text."""
        try:
            return look()
        except Exception as failure:
            return cause(failure)
        finally:
            self._candidate(None)

    def _candidate(self, marker: Marker | None) -> Marker | None:
        box = [marker]
        if self._group is not None:
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def _verify(self, folder: Folder, marker: Marker) -> None:
        del folder
        if not self._content:
            return
        self._candidate(marker)
        reasons = self._gather(self._share(marker))
        if reason := next((entry for entry in reasons if entry), None):
            raise NotWholeError(reason)

    def _help(self) -> None:
        while marker := self._candidate(None):
            self._gather(self._share(marker))

    def _share(self, marker: Marker) -> str | None:
        """What is wrong with this rank's share of the files."""
        try:
            check_content(self._folder, marker, part=self._rank, parts=self._world)
        except (NotWholeError, OSError) as failure:
            return str(failure)
        return None

    def _gather(self, value: str | None) -> list[str | None]:
        if self._group is None:
            return [value]
        values: list[str | None] = [None] * self._world
        dist.all_gather_object(values, value, group=self._group)
        return values
