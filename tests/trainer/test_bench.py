"""The bench: that it measures what it says, and what it does with the figures."""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest
import torch

from tests.bench_trainer import __main__ as bench
from tests.bench_trainer import datasets, order_index, readers, resume
from tests.figures import figure, missed, table, write_between

SAMPLES = 1000


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    place = tmp_path_factory.mktemp("numbers")
    datasets.WRITERS["numbers"](place, SAMPLES)
    return str(place)


def numbers_of(batches) -> list[torch.Tensor]:
    return [batch["number"] for batch in batches]


def test_resumed_loader_gives_what_the_uninterrupted_one_would(numbers):
    """Else the time to its first batch means nothing."""
    whole, at = numbers_of(readers.ours(numbers)), 5
    resumed = numbers_of(readers.ours(numbers, at * readers.BATCH))
    assert len(whole) == SAMPLES // readers.BATCH
    assert torch.cat(whole).unique().numel() == len(whole) * readers.BATCH
    for expected, actual in itertools.zip_longest(whole[at:], resumed):
        assert torch.equal(expected, actual)


def test_rival_resumed_from_its_state_is_where_dropping_batches_would_lead(numbers):
    at = 4
    dropped = next(itertools.islice(readers.mosaicml(numbers), at, None))["number"]
    resumed = next(iter(readers.mosaicml(numbers, at * readers.BATCH)))["number"]
    assert torch.equal(dropped.sort().values, resumed.sort().values)


def test_all_figures_can_be_imported():
    modules = [importlib.import_module(f"tests.bench_trainer.{name}") for name in bench.MODULES.values()]
    assert all(callable(module.figures) for module in modules)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--only", "loader,speed"], "--only: given speed; allowed loader, resume, "),
        (["--quick", "--write", "docs/proof.md"], "--write: given with --quick or --only"),
        (["--only", "index", "--write", "docs/proof.md"], "--write: given with --quick or --only"),
    ],
)
def test_wrong_flags_are_told_before_anything_runs(given, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_trainer", *given])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_resume_is_judged_at_a_million_against_the_extrapolated_loop(monkeypatch):
    """10^6 samples at 8,000 a second are 125 s, a 500th of which is 0.25 s."""
    took = {"ours": 0.24, "mosaicml": 0.5}

    def call(target, *arguments):
        if target == "resume:skip":
            return {"s": 1.5, "samples_per_s": 8000.0}
        return took.get(arguments[0], "place")

    monkeypatch.setattr(resume, "call", call)
    found = list(resume.figures(quick=False))
    assert [(f.rival, f.target, f.met) for f in found] == [
        (0.5, "", None),
        (1.5, "", None),
        (0.5, "≤ 0.25", True),
        (125.0, "ratio ≤ 0.002", True),
    ]
    took["ours"] = 0.26
    assert [f.met for f in resume.figures(quick=False)] == [None, None, False, False]


def test_order_index_is_judged_by_time_and_by_memory(monkeypatch):
    runs = {
        "order_index:ours": {"s": 0.04, "mb": 120.0, "imports_mb": 28.0},
        "order_index:mosaicml": {"s": 16.0, "mb": 4300.0, "imports_mb": 700.0},
    }
    monkeypatch.setattr(order_index, "call", lambda target, _: runs[target])
    found = list(order_index.figures(quick=False))
    assert [(f.unit, f.ratio, f.met) for f in found] == [("s", 0.0025, True), ("MB", 0.02791, False)] * 2


def test_table_and_what_was_missed():
    figures = [
        figure("met", 1.0, 4.0, "s", "≤ 2", met=True),
        figure("missed", 3.0, 0.001, "s", "≤ 2", met=False),
        figure("alone", 5.0, None, "s"),
    ]
    assert table(figures).splitlines()[2:] == [
        "| met | 1 | 4 | s | 0.25 | ≤ 2 | yes |",
        "| missed | 3 | 0.001 | s | 3000.00 | ≤ 2 | **no** |",
        "| alone | 5 |  | s |  |  |  |",
    ]
    assert missed(figures) == "bench: 3 figures\n  missed: missed"


def test_only_the_text_between_its_own_markers_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- one -->\nold\n<!-- /one -->\nafter\n")
    write_between(page, "one", "new")
    write_between(page, "two", "more")
    write_between(page, "two", "again")
    assert page.read_text() == (
        "before\n<!-- one -->\nnew\n<!-- /one -->\nafter\n\n<!-- two -->\nagain\n<!-- /two -->\n"
    )
