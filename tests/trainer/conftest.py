"""Order of the files: with two workers, what takes minutes must not begin when the rest is over."""

from __future__ import annotations

SLOW_FIRST = ("test_train", "test_parallel", "test_evaluate", "test_live", "test_agent", "test_rl")


def pytest_collection_modifyitems(items):
    def turn(item):
        name = item.path.stem
        return SLOW_FIRST.index(name) if name in SLOW_FIRST else len(SLOW_FIRST)

    items.sort(key=turn)  # stable: within a file and among the quick ones nothing moves
