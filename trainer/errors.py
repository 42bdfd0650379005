"""What a user did that cannot work, in one line: what was given, what is allowed, what to change."""


class TrainerError(ValueError):
    """A message for a person; the command line prints it without a traceback and exits with 2."""

    def __init__(self, where: str, given: object, allowed: str, fix: str) -> None:
        super().__init__(f"{where}: given {given}; allowed {allowed}; fix: {fix}")

    def __reduce__(self) -> tuple[object, ...]:
        """Cross a process boundary with the message as it is."""
        return _restore, (type(self), str(self))


def _restore(kind: type[TrainerError], message: str) -> TrainerError:
    error = kind.__new__(kind, message)
    error.args = (message,)
    return error
