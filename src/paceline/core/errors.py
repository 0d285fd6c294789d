"""Error types of paceline. Every message names the field, file or limit at fault and says what to do."""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that paceline raises on purpose."""


class ConfigError(PacelineError):
    """A setting is unknown, out of range or cannot be honoured.

    ``field`` is the setting's name as the user spelt it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class RequestError(PacelineError):
    """A request is refused at the door. ``field`` names the request field at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelError(PacelineError):
    """A model artifact is missing, damaged or of a kind that cannot be run. ``path`` names the file or directory."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class DraftError(PacelineError):
    """A drafter cannot be chosen, loaded or used."""


class OutOfBlocks(PacelineError):
    """The block pool cannot serve an allocation now. ``wanted`` and ``free`` are block counts."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"KV block pool exhausted: {wanted} blocks wanted, {free} free")
        self.wanted = wanted
        self.free = free


class IntegrityError(PacelineError):
    """Internal bookkeeping of the cache is inconsistent: a bug, raised by ``check_integrity()``."""


class RowFailed(PacelineError):
    """One row ended because of its own fault (non-finite logits, a raising consumer); the others go on."""


class Cancelled(PacelineError):
    """A request was aborted. ``reason`` is what the caller gave."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"request cancelled: {reason}")
        self.reason = reason


class EngineClosed(PacelineError):
    """The engine has been closed or has failed; no request can be served any more."""
