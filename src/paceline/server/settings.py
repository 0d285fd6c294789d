"""Settings of the server, apart from the engine's: where it listens, who may call it, what it bounds."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from ..core import env
from ..core.config import SERVER_SETTINGS
from ..core.errors import ConfigError

LOG_FORMATS = ("text", "json")
TOOL_PARSERS = ("auto", "none", "hermes", "llama3", "mistral")
REASONING_PARSERS = ("auto", "none", "think")


@dataclass(frozen=True)
class ServerSettings:
    """Times are seconds, sizes bytes. Every name is a flag of ``paceline serve`` and a variable ``PACELINE_*``.

    ``api_key``: keys of which every call must bring one, comma-separated or a list; none = open to all.
    ``served_model_name``: names that requests may use, the first is the one reported; none = the model's own.
    ``max_queue``: requests that wait beyond those that decode; more are refused with 429. ``max_body_bytes``: of a
    request. ``drain_timeout``: how long running requests may go on after a stop was asked for. ``stuck_timeout``: how
    long one turn of the engine may take before ``/health`` fails. ``allowed_origins``: of CORS, none = off.
    ``tool_call_parser``, ``reasoning_parser``: how answers are read, ``auto`` = by the chat template.
    ``chat_template``: a file used in place of the model's. ``log_format``: ``text`` or ``json``. ``log_interval``:
    between lines on speculation, 0 = none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: tuple[str, ...] = ()
    served_model_name: tuple[str, ...] = ()
    max_queue: int = 1024
    max_body_bytes: int = 16 * 2**20
    drain_timeout: float = 30.0
    stuck_timeout: float = 60.0
    allowed_origins: tuple[str, ...] = ()
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    chat_template: str | None = None
    log_format: str = "text"
    log_interval: float = 10.0

    def __post_init__(self) -> None:
        _one_of("log_format", self.log_format, LOG_FORMATS)
        _one_of("tool_call_parser", self.tool_call_parser, TOOL_PARSERS)
        _one_of("reasoning_parser", self.reasoning_parser, REASONING_PARSERS)
        least = {"port": 0, "max_queue": 0, "max_body_bytes": 1024, "drain_timeout": 0, "stuck_timeout": 1}
        for name, low in (least | {"log_interval": 0}).items():
            if getattr(self, name) < low:
                raise ConfigError(name, f"must be at least {low}, not {getattr(self, name):g}")
        if self.port > 65535:
            raise ConfigError("port", f"must be at most 65535, not {self.port}")
        for name in ("api_key", "served_model_name", "allowed_origins"):
            if any(not word.strip() or not word.isascii() for word in getattr(self, name)):
                raise ConfigError(name, "must not be empty and holds ASCII only")

    @classmethod
    def build(cls, *, environ: Mapping[str, str] | None = None, **settings: Any) -> ServerSettings:
        """Flat settings over ``PACELINE_*`` variables over defaults; ``None`` means "not given". Raises
        :class:`ConfigError` that names the setting."""
        hints = get_type_hints(cls)
        variables = env.paceline_variables(environ)
        chosen = {name: _parsed(name, variables[name], hints[name]) for name in SERVER_SETTINGS if name in variables}
        for name, value in settings.items():
            if name not in hints:
                close = difflib.get_close_matches(name, hints, n=1)
                raise ConfigError(name, f"unknown setting{f'; did you mean {close[0]!r}?' if close else ''}")
            if value is not None and value != [] and value != ():
                chosen[name] = _checked(name, value, hints[name])
        return cls(**chosen)


def server_settings() -> tuple[str, ...]:
    """All names, in order."""
    return tuple(field.name for field in fields(ServerSettings))


def _parsed(name: str, text: str, kind: Any) -> Any:
    """A variable's text as the setting's type."""
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(name, f"must be a number, not {text!r}") from None
    return _checked(name, text, kind)


def _checked(name: str, value: Any, kind: Any) -> Any:
    if kind == tuple[str, ...]:
        words = [value] if isinstance(value, str) else list(value)
        if not all(isinstance(word, str) for word in words):
            raise ConfigError(name, f"must be text or a list of texts, not {value!r}")
        return tuple(part.strip() for word in words for part in word.split(","))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    expected = kind if isinstance(kind, type) else str
    if not isinstance(value, expected) or isinstance(value, bool):
        raise ConfigError(name, f"must be {expected.__name__}, not {value!r}")
    return value


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(name, f"must be one of {', '.join(choices)}, not {value!r}")
