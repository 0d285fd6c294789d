"""What a user sees of an error: one line on standard error, and an exit code.

Exit codes: 0 done, 2 bad input (flags, settings, requests), 1 failure (model files, drafter, engine), 130 interrupted.
"""

from __future__ import annotations

import sys

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def report(error: BaseException) -> int:
    """Print one line on an error and return its exit code."""
    from ..core.errors import ConfigError, PacelineError, RequestError

    if isinstance(error, PacelineError):
        say(str(error))
        return BAD_INPUT if isinstance(error, ConfigError | RequestError) else FAILURE
    say(f"{type(error).__name__}: {error} (--debug shows where)")
    return FAILURE


def say(message: str) -> None:
    """One line, whatever the message holds."""
    print(f"paceline: {' '.join(message.split())}", file=sys.stderr)
