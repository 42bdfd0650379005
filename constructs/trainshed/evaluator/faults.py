"""Why a message was not done with: for good, or for now."""

from __future__ import annotations

from typing import Any, cast

from botocore.exceptions import ClientError  # pyright: ignore[reportMissingTypeStubs]


class UnfitError(Exception):
    """No further delivery would help: a human must look. `letter`: what to deliver then, if not the same."""

    def __init__(self, reason: str, letter: str | None = None) -> None:
        super().__init__(reason)
        self.letter = letter


class NotYetError(Exception):
    """Another delivery may help."""


def code_of(error: ClientError) -> str:
    """AWS's code of an error."""
    return str(cast("Any", error).response["Error"]["Code"])
