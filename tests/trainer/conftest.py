"""Order of the files."""

from __future__ import annotations

# With two workers, what takes minutes must not begin when the rest is over.
FIRST = ("test_train", "test_parallel", "test_evaluate", "test_live", "test_agent")
# Its backward passes leave autograd threads in the process, after which torch refuses one in a fork of it.
LAST = "test_rl"


def pytest_collection_modifyitems(items):
    def turn(item):
        name = item.path.stem
        return FIRST.index(name) if name in FIRST else len(FIRST) + (name == LAST)

    items.sort(key=turn)  # stable: within a file and among the quick ones nothing moves
