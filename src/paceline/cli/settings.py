"""What a command was asked for: its flags over a YAML file (``--config``). Variables and defaults come below both, in
:class:`paceline.EngineConfig`. Errors name the file and the key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.config import SERVER_SETTINGS, EngineConfig, flat_settings, known_settings, setting_name
from ..core.errors import ConfigError, RequestError
from .options import ENGINE_FLAGS, MODEL_FLAG, given
from .sampling import option_name, sampling_options

SAMPLING_SECTION, SERVER_SECTION = "sampling", "server"


@dataclass(frozen=True)
class Settings:
    """``engine``: flat settings; ``sampling``: fields of ``SamplingParams``; ``server``: settings of ``paceline serve``
    that other commands leave alone. Only what was given."""

    engine: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)


def asked_for(values: Mapping[str, Any]) -> Settings:
    """Engine settings and request options of a command line; a flag wins over the file that ``--config`` names.

    Options of requests are checked together, so that what is wrong with them is said before a model is loaded.
    """
    from ..core.params import SamplingParams

    path = values.get("config")
    file = Settings() if path is None else read_config(path)
    flags = [flag for flag in (MODEL_FLAG, *ENGINE_FLAGS) if flag.name in values]
    engine = file.engine | flat_settings(given(flags, dict(values)))
    sampling = file.sampling | sampling_options(values)
    SamplingParams(**sampling)
    return Settings(engine, sampling, file.server)


def read_config(path: str) -> Settings:
    """A YAML file of flat settings (or their aliases, with dashes or underscores), sections ``sampling``, ``server``.

    Raises :class:`ConfigError` that names the file and the key for what is unknown, given twice or of a wrong type.
    """
    content = _load(path)
    sampling, server = content.pop(SAMPLING_SECTION, None), content.pop(SERVER_SECTION, None)
    return Settings(_engine_part(path, content), _sampling_part(path, sampling), _server_part(path, server))


def read_value(text: str) -> Any:
    """A value as a person types it: numbers, true, false, null and quoted text as in JSON, [a, b] and {a: b} as in
    YAML, all else as plain text."""
    if text.lstrip()[:1] in ("[", "{"):
        yaml = _yaml()
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RequestError("value", f"{text!r} is not YAML: {error}") from error
    try:
        return json.loads(text)
    except ValueError:
        return text


def _engine_part(path: str, content: Mapping[Any, Any]) -> dict[str, Any]:
    spelt: dict[str, str] = {}
    layer: dict[str, Any] = {}
    for key, value in content.items():
        word = str(key).replace("-", "_")
        if word not in known_settings() and isinstance(value, Mapping):
            raise ConfigError(f"{path}: {key}", f"unknown section{_closest(word)}")
        try:
            name = setting_name(word)
        except ConfigError as error:
            raise _in_file(f"{path}: {key}", error) from error
        if name in spelt:
            raise ConfigError(f"{path}: {key}", f"is also given as {spelt[name]}; leave one out")
        spelt[name], layer[name] = str(key), value
    try:
        settings = flat_settings(layer)
        EngineConfig.build(environ={}, **settings)
    except ConfigError as error:
        raise _in_file(f"{path}: {spelt.get(error.field, error.field)}", error) from error
    return settings


def _sampling_part(path: str, content: Any) -> dict[str, Any]:
    from ..core.params import SamplingParams

    if content is None:
        return {}
    section = f"{path}: {SAMPLING_SECTION}"
    if not isinstance(content, Mapping):
        raise ConfigError(section, f"must hold options, one per line, not {content!r}")
    spelt: dict[str, str] = {}
    options: dict[str, Any] = {}
    try:
        for key, value in content.items():
            name = option_name(str(key))
            if name in spelt:
                raise ConfigError(f"{section}.{key}", f"is also given as {spelt[name]}; leave one out")
            spelt[name] = str(key)
            if value is not None:
                options[name] = value
        SamplingParams(**options)
    except RequestError as error:
        raise _in_file(f"{section}.{spelt.get(error.field, error.field)}", error) from error
    return options


def _server_part(path: str, content: Any) -> dict[str, Any]:
    """Names only: ``paceline serve`` checks the values."""
    section = f"{path}: {SERVER_SECTION}"
    if content is not None and not isinstance(content, Mapping):
        raise ConfigError(section, f"must hold settings, one per line, not {content!r}")
    part: dict[str, Any] = {}
    for key, value in (content or {}).items():
        name = str(key).replace("-", "_")
        if name not in SERVER_SETTINGS:
            close = difflib.get_close_matches(name, SERVER_SETTINGS, n=1)
            raise ConfigError(f"{section}.{key}", f"unknown setting{f'; did you mean {close[0]!r}?' if close else ''}")
        part[name] = value
    return part


def _in_file(place: str, error: ConfigError | RequestError) -> ConfigError:
    return ConfigError(place, str(error).removeprefix(f"{error.field}: "))


def _closest(word: str) -> str:
    close = difflib.get_close_matches(word, (SAMPLING_SECTION, SERVER_SECTION, *known_settings()), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _load(path: str) -> dict[Any, Any]:
    yaml = _yaml()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} cannot be read: {error}") from error
    try:
        twice = next(_repeated_keys(yaml.compose(text, yaml.SafeLoader), set()), None)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(path, f"is not YAML: {error}") from error
    if twice is not None:
        raise ConfigError(f"{path}: {twice}", "stands there twice; leave one out")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(path, f"must hold settings, one 'name: value' per line, not {type(content).__name__}")
    return content


def _repeated_keys(node: Any, seen: set[int]) -> Iterator[str]:
    """Keys that a mapping of the document holds twice, of which YAML would keep the last in silence."""
    if node is None or isinstance(node.value, str) or id(node) in seen:
        return
    seen.add(id(node))
    keys: set[str] = set()
    for item in node.value:
        key, value = item if isinstance(item, tuple) else (None, item)
        if key is not None and isinstance(key.value, str):
            if key.value in keys:
                yield key.value
            keys.add(key.value)
        yield from _repeated_keys(value, seen)


def _yaml() -> Any:
    """PyYAML, which comes with the hub's client."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError("config", "needs PyYAML (pip install pyyaml)") from error
    return yaml
