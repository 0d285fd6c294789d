"""Configuration: small frozen records composed in one :class:`EngineConfig`, built from flat names, aliases and
``PACELINE_*`` variables. Unknown names are refused with the closest known one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from . import env
from .errors import ConfigError

DTYPES = ("auto", "float64", "float32", "bfloat16", "int8")
COUPLINGS = ("gumbel", "inverse_cdf")


@dataclass(frozen=True)
class ModelConfig:
    """Which weights to run and how. ``max_model_len`` counts prompt + output tokens (``None`` = the model's own)."""

    model: str = "demo"
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    trust_remote_code: bool = False
    skip_tokenizer_init: bool = False
    generation_config: str = "auto"
    download_timeout: float = 10.0


@dataclass(frozen=True)
class CacheConfig:
    """KV pool. ``kv_cache_tokens``: tokens the pool holds; ``None`` = planned from memory. ``gpu_memory_utilization``:
    share of a GPU's memory that weights, pool, graphs and temporaries may take (``None`` = 0.9; CUDA only)."""

    block_size: int = 16
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = False


@dataclass(frozen=True)
class SchedulerConfig:
    """``max_num_seqs``: rows decoded together. ``max_num_batched_tokens``: prompt tokens of one prefill forward."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True)
class SpecConfig:
    """Drafting. ``tokens``: largest number of drafter proposals per round, bonus token not counted (0 = off)."""

    method: str = "auto"
    model: str | None = None
    tokens: int | None = None
    adaptive: bool = True
    shared_tokens: int = 0
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None


@dataclass(frozen=True)
class RuntimeConfig:
    """How rounds run (spec 17.8). None of these changes a token, except ``coupling`` and ``seed``.

    ``device_round``: decide acceptance on the device (``None`` = on CUDA only; on the CPU the host walk is cheaper).
    ``seed``: makes the seeds of requests that bring none reproducible. ``preempt_ram_bytes``: host memory for the state
    of preempted rows; without room there a row is rebuilt by replay. ``run_ahead``: launch a device round before the
    one before it is read. ``fill_span``: widest span window of a row that is alone (0 = no spans). ``phase_timing``
    separates the times of draft, verify, sample and commit; ``op_inventory`` and ``layer_profile`` need it.
    """

    device_round: bool | None = None
    coupling: str = "gumbel"
    draft_temperature: float | None = None
    draft_filter: bool = True
    seed: int | None = None
    num_threads: int | None = None
    preempt_ram_bytes: int = 2_000_000_000
    run_ahead: bool = True
    fill_span: int = 32
    phase_timing: bool = False
    op_inventory: bool = False
    layer_profile: bool = False


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is built from. ``EngineConfig.build(model=..., spec_tokens=...)`` takes flat names."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    spec: SpecConfig = field(default_factory=SpecConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @classmethod
    def build(cls, *, environ: Mapping[str, str] | None = None, **settings: Any) -> EngineConfig:
        """Resolve flat settings over ``PACELINE_*`` variables over defaults; ``None`` means "not given".

        Settings of a file go below explicit ones: ``build(**(flat_settings(of_file) | flat_settings(explicit)))``.

        Raises :class:`ConfigError` naming the setting for unknown names, wrong types and values out of range.
        """
        merged = _environment_layer(environ) | flat_settings(settings)
        sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        for name, value in merged.items():
            section, attribute = _FIELDS[name]
            sections[section][attribute] = _checked(name, value)
        config = cls(**{section: _SECTIONS[section](**values) for section, values in sections.items()})
        _check(config)
        return config

    def resolved(self) -> dict[str, Any]:
        """Flat name -> value, for the line printed at start."""
        return {name: getattr(getattr(self, section), attribute) for name, (section, attribute) in _FIELDS.items()}


_SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "spec": SpecConfig,
    "runtime": RuntimeConfig,
}
_PREFIXED = {"spec": "spec_"}
_FIELDS: dict[str, tuple[str, str]] = {}
_TYPES: dict[str, Any] = {}
for _section, _record in _SECTIONS.items():
    _hints = get_type_hints(_record)
    for _field in fields(_record):
        _bare = _field.name.startswith("prompt_lookup")
        _name = _field.name if _bare else _PREFIXED.get(_section, "") + _field.name
        _FIELDS[_name] = (_section, _field.name)
        _TYPES[_name] = _hints[_field.name]

_ALIASES = {
    "speculative_algorithm": "spec_method",
    "draft_model": "spec_model",
    "speculative_draft_model": "spec_model",
    "num_draft_tokens": "spec_tokens",
    "speculative_num_draft_tokens": "spec_tokens",
    "num_speculative_tokens": "spec_tokens",
}
_SPECULATIVE_CONFIG = {
    "method": "spec_method",
    "model": "spec_model",
    "num_speculative_tokens": "spec_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
}
#: Settings of the server, which reads them itself.
SERVER_SETTINGS = (
    "host",
    "port",
    "api_key",
    "served_model_name",
    "max_queue",
    "max_body_bytes",
    "drain_timeout",
    "stuck_timeout",
    "allowed_origins",
    "tool_call_parser",
    "reasoning_parser",
    "chat_template",
    "log_format",
    "log_interval",
)
_IGNORED_VARIABLES = frozenset({"cache_dir", *SERVER_SETTINGS})
_OFF: tuple[Any, ...] = (False, 0)
#: Settings of features that have not landed: the values that ask for nothing, hence are honoured, and the refusal of
#: all others.
_NOT_YET: dict[str, tuple[tuple[Any, ...], str]] = {
    "tensor_parallel_size": ((1,), "tensor parallelism has not landed; leave it out (or give 1)"),
    "kv_cache_dtype": (("auto",), "quantised KV has not landed; leave it out (or give 'auto')"),
    "tap_ring": ((), "tapped drafters have not landed; leave it out"),
    "draft_vocab": ((*_OFF, "off"), "draft vocabularies have not landed; leave it out (or give 'off')"),
}
_ON_WORDS, _OFF_WORDS = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def setting_names() -> tuple[str, ...]:
    """All flat setting names, in the order of the sections."""
    return tuple(_FIELDS)


def known_settings() -> tuple[str, ...]:
    """Every name that :meth:`EngineConfig.build` takes: flat names, their aliases, ``speculative_config``."""
    return (*_FIELDS, *_ALIASES, "speculative_config")


def flat_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """One layer of settings under their flat names: aliases resolved, ``speculative_config`` taken apart.

    ``None`` means "not given". Raises :class:`ConfigError` for unknown names, for settings that cannot be honoured, and
    for one that is given twice with different values.
    """
    layer: dict[str, Any] = {}
    for key, value in given.items():
        name = setting_name(key)
        if value is not None and not _asks_nothing(name, key, value):
            _put(layer, name, key, value)
    return layer


def _environment_layer(environ: Mapping[str, str] | None) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    for key, text in env.paceline_variables(environ).items():
        shown = f"{env.PREFIX}{key.upper()}"
        if key not in _IGNORED_VARIABLES:
            name = setting_name(key, shown)
            if not _asks_nothing(name, shown, text, written=True):
                _put(layer, name, shown, _parse(name, text))
    return layer


def _put(layer: dict[str, Any], name: str, shown: str, value: Any) -> None:
    """Add a setting to its layer; ``speculative_config`` is several."""
    for part, item in (_from_speculative_config(value) if name == "speculative_config" else {name: value}).items():
        if part in layer and layer[part] != item:
            raise ConfigError(
                shown, f"gives {item!r} for {part}, which is also given as {layer[part]!r}; leave one out"
            )
        layer[part] = item


def _asks_nothing(name: str, shown: str, value: Any, written: bool = False) -> bool:
    """Whether ``value`` leaves off a feature that has not landed; one that switches it on is refused.

    ``written``: the value is text of the environment.
    """
    if name not in _NOT_YET:
        return False
    neutral, refusal = _NOT_YET[name]
    if written:
        words = {str(item).lower() for item in neutral} | (_OFF_WORDS if False in neutral else frozenset())
        honoured = value.lower() in words
    else:
        honoured = any(type(value) is type(item) and value == item for item in neutral)
    if not honoured:
        raise ConfigError(shown, refusal)
    return True


def setting_name(key: str, shown: str | None = None) -> str:
    """The flat name that ``key`` means; :class:`ConfigError` with the closest known one if it means none.

    ``shown``: how the user spelt it, ``key`` if left out.
    """
    name = _ALIASES.get(key, key)
    if name in _FIELDS or name in _NOT_YET or name == "speculative_config":
        return name
    close = difflib.get_close_matches(name, known_settings(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(shown or key, f"unknown setting{hint}")


def _from_speculative_config(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError("speculative_config", f"is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise ConfigError("speculative_config", "must be a JSON object")
    settings: dict[str, Any] = {}
    for key, item in value.items():
        if key not in _SPECULATIVE_CONFIG:
            raise ConfigError(f"speculative_config.{key}", f"unknown key; known are {sorted(_SPECULATIVE_CONFIG)}")
        settings[_SPECULATIVE_CONFIG[key]] = item
    return settings


def _allowed(name: str) -> tuple[tuple[type, ...], bool]:
    """Plain types a setting takes and whether it may be absent."""
    hint = _TYPES[name]
    types = get_args(hint) or (hint,)
    return tuple(t for t in types if t is not type(None)), type(None) in types


def _parse(name: str, text: str) -> Any:
    types, _ = _allowed(name) if name in _TYPES else ((str,), True)
    if bool in types:
        if text.lower() in _ON_WORDS | _OFF_WORDS:
            return text.lower() in _ON_WORDS
        raise ConfigError(name, f"must be on or off, not {text!r}")
    for kind in types:
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                raise ConfigError(name, f"must be a number, not {text!r}") from None
    return text


def _checked(name: str, value: Any) -> Any:
    types, optional = _allowed(name)
    if value is None and optional:
        return None
    if float in types and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join(t.__name__ for t in types)
        raise ConfigError(name, f"must be {wanted}, not {value!r}")
    return value


def _check(config: EngineConfig) -> None:
    _one_of("dtype", config.model.dtype, DTYPES)
    _one_of("coupling", config.runtime.coupling, COUPLINGS)
    _one_of("generation_config", config.model.generation_config, ("auto", "none"))
    if config.cache.block_size < 1 or config.cache.block_size % 16:
        raise ConfigError("block_size", f"must be a multiple of 16, not {config.cache.block_size}")
    for name, least in (
        ("max_model_len", 2),
        ("kv_cache_tokens", 1),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("spec_tokens", 0),
        ("prompt_lookup_min", 1),
        ("prompt_lookup_max", 1),
        ("num_threads", 1),
        ("seed", 0),
        ("spec_shared_tokens", 0),
        ("preempt_ram_bytes", 0),
        ("fill_span", 0),
    ):
        section, attribute = _FIELDS[name]
        value = getattr(getattr(config, section), attribute)
        if value is not None and value < least:
            raise ConfigError(name, f"must be at least {least}, not {value}")
    share = config.cache.gpu_memory_utilization
    if share is not None and not 0.0 < share <= 1.0:
        raise ConfigError("gpu_memory_utilization", f"must be above 0 and at most 1, not {share}")
    if config.spec.tokens is not None and config.spec.tokens > 64:
        raise ConfigError("spec_tokens", f"must be at most 64, not {config.spec.tokens}")
    for name in ("op_inventory", "layer_profile"):
        if getattr(config.runtime, name) and not config.runtime.phase_timing:
            raise ConfigError(name, "needs phase_timing")
    if config.cache.enable_prefix_caching:
        raise ConfigError("enable_prefix_caching", "the prefix cache has not landed; leave it out")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(name, f"must be one of {', '.join(choices)}, not {value!r}")
