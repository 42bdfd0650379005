"""Each published checkpoint scored once, by however many evaluators, whatever dies.

Beside the checkpoints lies `evaluations`: `step-00000020.json` is a result, created once and never replaced;
`step-00000020.claim-0001` says that somebody is at it, and is rewritten while that is so. A claim that has
stood still for the lease, by the observer's own clock, is void: the next number may be created. Creation
fails where a file is, so of several evaluators one has each number, and one result stands.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.errors import TrainerError
from trainer.folders import Folder
from trainer.publish import NotWholeError, name_of, step_of
from trainer.together import from_first, own_rank

_CLAIM = re.compile(r"(step-\d+)\.claim-(\d+)")


@dataclass(frozen=True)
class WatchConfig:
    """`until_step`: the last one to score; seconds: without news until the end, between two looks."""

    until_step: int
    idle_s: float = 3600
    poll_s: float = 10


class Claims:
    """Who scores which step, and the results, in a folder that evaluators share; `data` is what they use."""

    place = "evaluations"

    def __init__(self, folder: Folder, data: str, lease_s: float) -> None:
        self.folder, self.data, self.lease_s = folder, data, lease_s
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._seen: dict[str, tuple[bytes, float]] = {}  # claims of others: content, since when

    def done(self) -> set[int]:
        """Steps that have a result."""
        names = (
            name.removesuffix(".json") for name in self.folder.files(self.place) if name.endswith(".json")
        )
        return {step for name in names if (step := step_of(name)) is not None}

    def result(self, step: int) -> dict[str, Any]:
        """A result that is there."""
        return json.loads(b"".join(self.folder.chunks(f"{self.place}/{name_of(step)}.json")))

    def same_data(self) -> None:
        """Raise when the results there are of other data."""
        for step in sorted(self.done())[-1:]:
            if (other := self.result(step)["data"]) != self.data:
                where = f"{self.folder.url}/{self.place}"
                fix = f"evaluate on {other}, or move that folder away"
                raise TrainerError("--data", f"{self.data} for results in {where}", other, fix)

    def take(self, step: int) -> str | None:
        """The claim's path, or None: another one is at it, or it is done."""
        number = max(self._numbers(step), default=0)
        if number and not self._void(self._path(step, number)):
            return None
        path = self._path(step, number + 1)
        if not self.folder.create(path, self._beat(0)):
            return None
        if step in self.done():  # it ended, and its claims were cleared, since we looked
            self._clear(step)
            return None
        return path

    def publish(self, step: int, report: dict[str, Any]) -> bool:
        """Create the result; False: there is one already, and this one is dropped."""
        data = json.dumps({**report, "evaluator": self.owner}, indent=1).encode()
        first = self.folder.create(f"{self.place}/{name_of(step)}.json", data)
        self._clear(step)
        return first

    def release(self, path: str) -> None:
        """Give up a claim, so that others need not wait for the lease."""
        self.folder.remove(self.place, [path.partition("/")[2]])

    @contextmanager
    def held(self, path: str) -> Iterator[None]:
        """Keep a claim alive inside the block; an exception gives it up."""
        over = threading.Event()

        def beat() -> None:
            count = 0
            while not over.wait(self.lease_s / 4):
                count += 1
                with suppress(Exception):  # storage that fails for longer than the lease loses the claim
                    self.folder.put(path, self._beat(count))

        thread = threading.Thread(target=beat, name="claim", daemon=True)
        thread.start()
        try:
            yield
        except Exception:
            over.set()
            thread.join()
            self.release(path)
            raise
        finally:
            over.set()
            thread.join()  # no beat may follow the clearing of claims

    def _numbers(self, step: int) -> list[int]:
        matches = (_CLAIM.fullmatch(name) for name in self.folder.files(self.place))
        return [int(match[2]) for match in matches if match and match[1] == name_of(step)]

    def _void(self, path: str) -> bool:
        try:
            content = b"".join(self.folder.chunks(path))
        except FileNotFoundError:  # released since we looked: seen next time
            return False
        before, since = self._seen.get(path, (None, 0.0))
        if content != before:
            self._seen[path] = (content, time.monotonic())
            return False
        return time.monotonic() - since > self.lease_s

    def _path(self, step: int, number: int) -> str:
        return f"{self.place}/{name_of(step)}.claim-{number:04d}"

    def _beat(self, count: int) -> bytes:
        return json.dumps({"evaluator": self.owner, "beat": count, "time": time.time()}).encode()

    def _clear(self, step: int) -> None:
        self.folder.remove(self.place, [self._path(step, n).partition("/")[2] for n in self._numbers(step)])


def watch(
    claims: Claims,
    published: Callable[[], list[int]],
    score: Callable[[int], dict[str, Any]],
    config: WatchConfig,
    tell: Callable[..., None],
) -> Iterator[dict[str, Any]]:
    """Yield each report that became a step's result, in order of steps, until the last. Collective.

    `score` raises NotWholeError for a checkpoint that does not count or is gone: it is skipped with a line.
    """
    skipped: set[int] = set()
    moved = time.monotonic()
    from_first(claims.same_data)
    while True:
        state, step, path = from_first(partial(_next, claims, published, skipped, config.until_step))
        if state == "over":
            return tell("watched", step=step, reason="last step")
        if state == "free":
            try:
                with claims.held(path) if own_rank() == 0 else nullcontext():
                    report = score(step)
            except NotWholeError as error:
                tell("skipped", checkpoint=name_of(step), reason=str(error))
                skipped.add(step)
            else:
                if from_first(partial(claims.publish, step, report)):
                    yield report
            moved = time.monotonic()
            continue
        if state == "busy":
            moved = time.monotonic()
        if from_first(partial(_idle, moved, config.idle_s)):
            return tell("watched", step=step, reason="idle")
        time.sleep(config.poll_s)


def _next(
    claims: Claims, published: Callable[[], list[int]], skipped: set[int], until: int
) -> tuple[str, int, str]:
    """(state, step, claim). free: the step is ours; busy: others are at what is left; over; idle."""
    there = published()
    done = claims.done()  # after looking at the checkpoints: what is gone from there has its result here
    left = [step for step in there if step not in done | skipped and step <= until]
    for step in left:
        if (path := claims.take(step)) is not None:
            return "free", step, path
    newest = max([*there, *done, *skipped], default=0)
    state = "busy" if left else "over" if newest >= until else "idle"
    return state, newest, ""


def _idle(since: float, limit: float) -> bool:
    return time.monotonic() - since > limit
