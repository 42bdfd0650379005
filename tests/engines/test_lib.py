"""The steps' library under bats, where `/opt` is a folder of its own."""

from __future__ import annotations

import subprocess

from tests.engines.machine import need
from tests.support import ROOT


def test_lib():
    need(bats="bats", unshare="util-linux")
    script = f'mount -t tmpfs none /opt && REPOSITORY="{ROOT}" bats --tap tests/engines/lib.bats'
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nok 11 " in done.stdout
