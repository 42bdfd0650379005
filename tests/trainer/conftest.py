"""Order of the files."""

from __future__ import annotations

# Those that fork ranks of themselves begin in a process that is new: after some tests torch refuses a
# backward pass in a fork. Then what takes minutes, which must not begin when the rest is over.
FIRST = (
    "test_checkpoint", "test_tiered", "test_live", "test_train", "test_parallel", "test_evaluate",
    "test_agent",
)  # fmt: skip
LAST = "test_rl"  # leaves threads of many libraries behind


def pytest_collection_modifyitems(items):
    def turn(item):
        name = item.path.stem
        return FIRST.index(name) if name in FIRST else len(FIRST) + (name == LAST)

    items.sort(key=turn)  # stable: within a file and among the quick ones nothing moves
