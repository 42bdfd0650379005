"""Everything that can be decided before AWS is asked: pure Python, no I/O."""
