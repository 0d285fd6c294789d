"""The flags that commands share, as tables: flag names, help and type of every setting. Nothing is decided here.

A command takes ``**values``; :func:`with_options` gives it the signature that typer reads. Flags that were not given
arrive as ``None``, which settings take for "not given".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

import typer

from ..draft.registry import default_registry

MODEL, SPECULATION, LIMITS, RUNTIME = "Model", "Speculation", "Limits", "Runtime"
INPUT, OUTPUT = "Prompt", "Output"


@dataclass(frozen=True)
class Flag:
    """One flag. ``name``: the parameter it arrives as; ``names``: its spellings, derived from ``name`` if empty.

    ``kind``: ``str``, ``int``, ``float``, ``bool`` or a list of one of them (the flag may be repeated).
    """

    name: str
    kind: Any
    help: str
    panel: str
    names: tuple[str, ...] = ()
    hidden: bool = False
    default: Any = None

    @property
    def long_names(self) -> tuple[str, ...]:
        """Its spellings that start with two dashes, the usual one first."""
        return tuple(name for name in self._names if name.startswith("--"))

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every form of the flag; on/off flags also have their ``--no-`` form."""
        if self.kind is bool and self.default is None:
            return tuple(f"{name}/--no-{name.removeprefix('--')}" for name in self._names)
        return self._names

    @property
    def _names(self) -> tuple[str, ...]:
        return self.names or ("--" + self.name.replace("_", "-"),)

    def parameter(self) -> inspect.Parameter:
        """The flag as typer reads it from a signature."""
        option = typer.Option(
            self.default, *self.spellings, help=self.help, rich_help_panel=self.panel, hidden=self.hidden
        )
        # typer 0.16 reads Optional, not every spelling of a union
        annotation = bool if self.default is False else Optional[self.kind]  # noqa: UP045
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _kinds() -> str:
    return ", ".join(("auto", "none", *default_registry().kinds()))


ENGINE_FLAGS: tuple[Flag, ...] = (
    Flag("revision", str, "Branch, tag or commit of a hub model.", MODEL),
    Flag("tokenizer", str, "Tokenizer directory, if not the model's own.", MODEL),
    Flag("dtype", str, "auto, float64, float32, bfloat16 or int8; auto takes what is fastest here.", MODEL),
    Flag("device", str, "auto, cpu, cuda or mps.", MODEL),
    Flag("trust_remote_code", bool, "Let the tokenizer run code that comes with the model.", MODEL),
    Flag("generation_config", str, "auto: start from the model's sampling options; none: do not.", MODEL),
    Flag("download_timeout", float, "Seconds until the hub must answer.", MODEL),
    Flag(
        "spec_method",
        str,
        f"Drafter: {_kinds()}. none decodes plainly.",
        SPECULATION,
        ("--spec-method", "--speculative-algorithm"),
    ),
    Flag(
        "spec_model",
        str,
        "Weights of the drafter, if it has any.",
        SPECULATION,
        ("--spec-model", "--draft-model", "-md", "--speculative-draft-model"),
    ),
    Flag(
        "spec_tokens",
        int,
        "Most proposals per round, the bonus token not counted; 0 = off.",
        SPECULATION,
        ("--spec-tokens", "--num-draft-tokens", "--speculative-num-draft-tokens", "--num-speculative-tokens"),
    ),
    Flag("spec_adaptive", bool, "Choose the depth of every round by its costs.", SPECULATION),
    Flag("prompt_lookup_min", int, "Shortest run of tokens that prompt lookup matches.", SPECULATION),
    Flag("prompt_lookup_max", int, "Longest run of tokens that prompt lookup matches.", SPECULATION),
    Flag("spec_shared_tokens", int, "Tokens of earlier answers that text lookup may draw on.", SPECULATION),
    Flag("speculative_config", str, "The same settings as one JSON object.", SPECULATION),
    Flag("draft_temperature", float, "Temperature of the drafter's draws, if not the request's.", SPECULATION),
    Flag("draft_filter", bool, "Filter the drafter's draws like the request's.", SPECULATION),
    Flag("coupling", str, "How draws of target and drafter share noise: gumbel or inverse_cdf.", SPECULATION),
    Flag("max_model_len", int, "Longest prompt and output together, in tokens.", LIMITS),
    Flag("max_num_seqs", int, "Requests decoded together.", LIMITS),
    Flag("max_num_batched_tokens", int, "Prompt tokens of one prefill forward.", LIMITS),
    Flag("kv_cache_tokens", int, "Tokens that the KV pool holds.", LIMITS),
    Flag("gpu_memory_utilization", float, "Share of a GPU's memory to take; 0.9 by default.", LIMITS),
    Flag("block_size", int, "Tokens per KV block, a multiple of 16.", LIMITS),
    Flag("preempt_ram_bytes", int, "Memory for the state of preempted requests.", LIMITS),
    Flag("enable_prefix_caching", bool, "Keep prefixes for later requests.", LIMITS),
    Flag("num_threads", int, "CPU threads of the tensor library.", RUNTIME),
    Flag("device_round", bool, "Decide acceptance on the device.", RUNTIME),
    Flag("run_ahead", bool, "Launch a device round before the one before it is read.", RUNTIME),
    Flag("fill_span", int, "Most copied tokens that a request alone verifies at once; 0 = no copied spans.", RUNTIME),
    Flag("phase_timing", bool, "Time draft, verify, sample and commit of every round, which slows them down.", RUNTIME),
    Flag("op_inventory", bool, "Also count the tensor operations of drafts and verify forwards.", RUNTIME),
    Flag("layer_profile", bool, "Also time the parts of the target, which distorts the times.", RUNTIME),
    # Settings of features to come: given, they are refused with a word on what to do instead.
    Flag("tensor_parallel_size", int, "", RUNTIME, hidden=True),
    Flag("kv_cache_dtype", str, "", RUNTIME, hidden=True),
)

CONFIG_FLAG = Flag("config", str, "Settings from a YAML file; flags win over it, it wins over PACELINE_*.", MODEL)
MODEL_FLAG = Flag("model", str, "demo, a directory, a .gguf file or a hub id.", MODEL, ("--model", "-m"))
QUIET_FLAG = Flag("quiet", bool, "Print the text only.", OUTPUT, ("--quiet", "-q"), default=False)
JSON_FLAG = Flag("as_json", bool, "Print one JSON document.", OUTPUT, ("--json",), default=False)
DEBUG_FLAG = Flag("debug", bool, "Show the traceback of an error.", OUTPUT, default=False)


def with_options(flags: Iterable[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command with ``**values`` one keyword parameter per flag, after its own parameters."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = [*own, *(flag.parameter() for flag in flags)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def given(flags: Iterable[Flag], values: dict[str, Any]) -> dict[str, Any]:
    """The values of ``flags`` that were given on the command line. A repeated flag that is absent comes as empty."""
    chosen = {flag.name: values[flag.name] for flag in flags}
    return {name: value for name, value in chosen.items() if value is not None and value != [] and value != ()}
