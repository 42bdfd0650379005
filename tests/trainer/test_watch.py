"""Every published checkpoint scored once: several evaluators, dead ones, ones that come back too late."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing

import pytest
import torch.distributed as dist

from tests.trainer.buckets import s3_server
from tests.trainer.launch import launch
from trainer.errors import TrainerError
from trainer.folders import open_folder
from trainer.publish import NotWholeError, name_of
from trainer.together import agreed, anyone, from_first
from trainer.watch import Claims, WatchConfig, watch

LEASE = 0.4  # seconds: where somebody is dead; the living get LONG, which no load outlasts
LONG = 120.0
DATA = "val"


@pytest.fixture(scope="module")
def bucket():
    with s3_server("watched") as (url, _):
        yield url


@pytest.fixture(params=["posix", "s3"])
def folder(request, tmp_path):
    if request.param == "posix":
        return open_folder(str(tmp_path / "checkpoints"))
    return open_folder(f"{request.getfixturevalue('bucket')}/{tmp_path.name}/checkpoints")


class Evaluator(threading.Thread):
    """Watches with a score that takes a moment; notes what it scored, what became a result, what it told."""

    def __init__(self, folder, published, *, until=40, takes=0.02, gone=(), idle_s=60.0, lease=LONG):
        super().__init__(daemon=True)
        self.claims = Claims(open_folder(folder.url), DATA, lease)
        self.published, self.takes, self.gone = published, takes, gone
        self.config = WatchConfig(until, idle_s=idle_s, poll_s=0.02)
        self.scored, self.results, self.told = [], [], []

    def score(self, step):
        if step in self.gone:
            raise NotWholeError("not published (its writing or its removal was cut)")
        self.scored.append(step)
        time.sleep(self.takes)
        return {"step": step, "data": DATA}

    def run(self):
        tell = lambda kind, **fields: self.told.append((kind, fields))  # noqa: E731
        for report in watch(self.claims, self.published, self.score, self.config, tell):
            self.results.append(report["step"])

    def finished(self):
        self.join(60)
        assert not self.is_alive()
        return self


def files(folder):
    return sorted(folder.files(Claims.place))


def results(*steps):
    return [f"{name_of(step)}.json" for step in steps]


def test_of_many_that_create_a_file_one_succeeds(folder):
    texts, won = [f"writer {number}".encode() * 1000 for number in range(8)], []
    start = threading.Barrier(len(texts))

    def create(text):
        own = open_folder(folder.url)
        start.wait()
        if own.create("evaluations/one", text):
            won.append(text)

    threads = [threading.Thread(target=create, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = won
    assert b"".join(folder.chunks("evaluations/one")) == winner
    assert files(folder) == ["one"], "nothing temporary is left"
    assert folder.create("evaluations/one", winner), "a request sent again meets its own first try"
    assert not folder.create("evaluations/one", b"another")


def test_several_at_once_score_each_step_once_in_order(folder):
    steps = [10, 20, 30, 40]
    watchers = [Evaluator(folder, lambda: steps) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.finished()
    assert sorted(step for watcher in watchers for step in watcher.scored) == steps
    assert sorted(step for watcher in watchers for step in watcher.results) == steps
    assert all(watcher.scored == sorted(watcher.scored) for watcher in watchers)
    assert files(folder) == results(*steps), "claims are cleared"
    assert all(watcher.told == [("watched", {"step": 40, "reason": "last step"})] for watcher in watchers)


def test_a_dead_evaluators_step_is_taken_over_after_the_lease_and_not_before(folder):
    dead = Claims(folder, DATA, LEASE)
    assert dead.take(10)
    heir = Claims(folder, DATA, LEASE)
    began = time.monotonic()
    assert heir.take(10) is None, "first seen now"
    watcher = Evaluator(folder, lambda: [10, 20], until=20, lease=LEASE)
    watcher.start()
    watcher.finished()
    assert time.monotonic() - began > LEASE
    assert watcher.scored == [20, 10], "what is free comes first"
    assert files(folder) == results(10, 20)


def test_a_claim_that_is_renewed_stays(folder):
    """The observer's lease is over many times; what it sees has moved meanwhile."""
    busy, other = (Claims(folder, DATA, 4 * LEASE) for _ in range(2))
    path, seen = busy.take(10), set()
    with busy.held(path):
        while len(seen) < 4:
            seen.add(b"".join(folder.chunks(path)))
            assert other.take(10) is None
            time.sleep(LEASE / 10)
        assert busy.publish(10, {"step": 10})


def test_two_heirs_of_one_claim(folder):
    Claims(folder, DATA, LEASE).take(10)
    heirs = [Claims(folder, DATA, LEASE) for _ in range(2)]
    assert [heir.take(10) for heir in heirs] == [None, None]
    time.sleep(1.2 * LEASE)
    assert sorted(path is None for path in (heir.take(10) for heir in heirs)) == [False, True]


def test_an_evaluator_that_comes_back_too_late_changes_nothing(folder):
    slow, quick = Claims(folder, DATA, LEASE), Claims(folder, DATA, LEASE)
    slow.take(10)
    quick.take(10)
    time.sleep(1.2 * LEASE)
    assert quick.take(10)
    assert quick.publish(10, {"step": 10, "ade": 1})
    assert not slow.publish(10, {"step": 10, "ade": 2})
    assert quick.result(10)["ade"] == 1
    assert slow.take(10) is None
    assert files(folder) == results(10)


def test_dead_after_the_result_but_before_the_claims_went(folder):
    dead = Claims(folder, DATA, LEASE)
    dead.take(10)
    dead.folder.create(f"evaluations/{name_of(10)}.json", json.dumps({"step": 10, "data": DATA}).encode())
    watcher = Evaluator(folder, lambda: [10], until=10)
    watcher.start()
    assert watcher.finished().scored == []


def test_a_restarted_watcher_goes_on_where_it_was(folder):
    for steps in ([10, 20], [10, 20, 30, 40]):
        watcher = Evaluator(folder, lambda steps=steps: steps, until=steps[-1])
        watcher.start()
        watcher.finished()
    assert watcher.scored == [30, 40]


def test_checkpoints_that_appear_later_and_ones_that_vanish(folder):
    """Retention has taken 10 before it was scored, and 20 after."""
    steps = [10, 20]
    watcher = Evaluator(folder, lambda: list(steps), gone=(10,), until=30)
    watcher.start()
    while files(folder) != results(20):
        time.sleep(0.01)
    steps[:] = [30]
    watcher.finished()
    assert watcher.results == [20, 30]
    reason = "not published (its writing or its removal was cut)"
    assert watcher.told[0] == ("skipped", {"checkpoint": "step-00000010", "reason": reason})
    assert [kind for kind, _ in watcher.told] == ["skipped", "watched"]
    assert files(folder) == results(20, 30)


def test_a_failed_evaluation_gives_its_claim_up_and_a_run_that_ends_early_is_no_wait(folder):
    watcher = Evaluator(folder, lambda: [10])

    def fail(step):
        raise TrainerError("data", "a bad shard", "a good one", "restore it")

    with pytest.raises(TrainerError), closing(
        watch(watcher.claims, watcher.published, fail, watcher.config, lambda *_, **__: None)
    ) as reports:  # fmt: skip
        next(reports)
    assert files(folder) == []
    watcher = Evaluator(folder, lambda: [10], idle_s=0.1)
    watcher.start()
    assert watcher.finished().told == [("watched", {"step": 10, "reason": "idle"})]
    assert watcher.results == [10]


def test_results_of_other_data_are_not_mixed(folder):
    first = Evaluator(folder, lambda: [10], until=10)
    first.start()
    first.finished()
    other = Claims(folder, "another", LEASE)
    with pytest.raises(TrainerError, match=r"--data: given another for results in .*; allowed val; fix: "):
        next(watch(other, lambda: [10], first.score, first.config, lambda *_, **__: None))


# ------------------------------------------------------------------------------------------- ranks


def ask_together():
    """In each of two processes: what they say when one of them errs."""
    rank = dist.get_rank()

    def fail_on(where, error):
        if rank == where:
            raise error
        return rank

    said = [from_first(lambda: f"from {rank}"), agreed(lambda: rank), anyone(rank == 1), anyone(False)]
    for call, error in (
        (from_first, TrainerError("data", "this", "that", "change it")),
        (agreed, NotWholeError("gone")),
        (agreed, KeyError("unforeseen")),
    ):
        try:
            call(lambda error=error: fail_on(0 if call is from_first else 1, error))  # noqa: B023
        except Exception as caught:
            said.append(f"{type(caught).__name__}: {caught}")
    return said


def test_ranks_go_the_same_way_when_one_errs():
    both = launch("tests.trainer.test_watch:ask_together", 2)
    errors = ["TrainerError: data: given this; allowed that; fix: change it", "NotWholeError: gone"]
    errors.append("RuntimeError: KeyError: 'unforeseen'")
    assert both == [["from 0", rank, True, False, *errors] for rank in (0, 1)]
