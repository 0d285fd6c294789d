"""Options of a request on the command line, as one table: every flag, the field of ``SamplingParams`` it fills, and how
its text is read. Checks no ranges: ``SamplingParams`` does."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..core.errors import RequestError
from .options import Flag, given

SAMPLING, PENALTIES, BANS, GRAMMAR, REPORTS = "Sampling", "Penalties", "Ends and bans", "Structured text", "Reports"
STRUCTURED = "structured_outputs"

#: Fields of ``SamplingParams`` that have no flag of their own, and why.
NO_FLAG: dict[str, str] = {
    "best_of": "the commands stream, and a stream cannot take back a sample that is not kept",
    "num_draft_tokens": "--num-draft-tokens sets the engine's depth, which for the requests of one command is the same",
}


@dataclass(frozen=True)
class SamplingFlag(Flag):
    """``field``: the field it fills, ``name`` if empty. ``part``: the key it fills inside that field. ``read``: makes
    the field's value of the flag's, given the flag as the user knows it; raises :class:`RequestError`."""

    field: str = ""
    part: str = ""
    read: Callable[[str, Any], Any] | None = None

    @property
    def target(self) -> str:
        return self.field or self.name


def sampling_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``SamplingParams`` from the flags that were given. Files that flags name are read here."""
    options: dict[str, Any] = {}
    flags = {flag.name: flag for flag in SAMPLING_FLAGS}
    constraint = ""
    for name, value in given([flag for flag in SAMPLING_FLAGS if flag.name in values], dict(values)).items():
        flag = flags[name]
        spelt = flag.long_names[0]
        if flag.part:
            if constraint:
                raise RequestError(spelt, f"cannot be combined with {constraint}; give one of them")
            constraint = spelt
        read = value if flag.read is None else flag.read(spelt, value)
        options[flag.target] = {flag.part: read} if flag.part else read
    return options


def option_name(word: str) -> str:
    """The field that ``word`` means: its name or a flag's, with dashes or underscores; ``RequestError`` if none."""
    name = word.strip().removeprefix("--").replace("-", "_")
    found = option_names().get(name)
    if found is None:
        close = difflib.get_close_matches(name, option_names(), n=1)
        raise RequestError(word, f"unknown option{f'; did you mean {close[0]!r}?' if close else ''}")
    return found


def option_names() -> dict[str, str]:
    """What options may be called -> the field meant. Flags that fill a part of a field are not among them."""
    from ..core.params import SamplingParams

    names = {option.name: option.name for option in fields(SamplingParams)}
    for flag in SAMPLING_FLAGS:
        if not flag.part:
            names |= {name.lstrip("-").replace("-", "_"): flag.target for name in flag.long_names}
    return names


def _text_file(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(flag, f"{path} cannot be read: {error}") from error


def _json_file(flag: str, path: str) -> Any:
    text = _text_file(flag, path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestError(flag, f"{path} is not JSON: {error}") from error


def _halves(flag: str, text: str, form: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals or not left.strip() or not right.strip():
        raise RequestError(flag, f"must be {form}, not {text!r}")
    return left.strip(), right.strip()


def _pairs(key: type, value: type, form: str) -> Callable[[str, list[str]], list[tuple[Any, Any]]]:
    """A reader of repeated ``KEY=VALUE``."""

    def read(flag: str, texts: list[str]) -> list[tuple[Any, Any]]:
        pairs = [_halves(flag, text, form) for text in texts]
        try:
            return [(key(left), value(right)) for left, right in pairs]
        except ValueError as error:
            raise RequestError(flag, f"must be {form}: {error}") from None

    return read


def _mapping(key: type, value: type, form: str) -> Callable[[str, list[str]], dict[Any, Any]]:
    """The same as a mapping; a key that comes twice with different values is refused."""
    read_pairs = _pairs(key, value, form)

    def read(flag: str, texts: list[str]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for left, right in read_pairs(flag, texts):
            if found.setdefault(left, right) != right:
                raise RequestError(flag, f"gives {left} twice, as {found[left]} and as {right}")
        return found

    return read


def _film(flag: str, texts: list[str]) -> dict[str, Any]:
    """The fields of ``HlgSettings``, all numbers but the pivot."""
    found: dict[str, Any] = _mapping(str, str, "NAME=VALUE")(flag, texts)
    for name, text in found.items():
        try:
            found[name] = text if name == "pivot" else float(text)
        except ValueError:
            raise RequestError(flag, f"{name} must be a number, not {text!r}") from None
    return found


SAMPLING_FLAGS: tuple[SamplingFlag, ...] = (
    SamplingFlag(
        "max_tokens", int, "Most tokens to generate; default 512.", SAMPLING, ("--max-tokens", "--max-new-tokens", "-n")
    ),
    SamplingFlag("temperature", float, "0 = greedy.", SAMPLING, ("--temperature", "--temp")),
    SamplingFlag("top_p", float, "Keep the likeliest tokens that make up this share.", SAMPLING),
    SamplingFlag("top_k", int, "Keep this many of the likeliest tokens; 0 = all.", SAMPLING),
    SamplingFlag("min_p", float, "Keep tokens at least this likely, as a share of the likeliest.", SAMPLING),
    SamplingFlag(
        "typical_p",
        float,
        "Keep the most typical tokens that make up this share.",
        SAMPLING,
        ("--typical-p", "--typical"),
    ),
    SamplingFlag("xtc_probability", float, "How often XTC drops the likeliest tokens.", SAMPLING),
    SamplingFlag("xtc_threshold", float, "How likely a token must be for XTC to drop it.", SAMPLING),
    SamplingFlag("filter_order", str, "temperature_first or temperature_last.", SAMPLING),
    SamplingFlag(
        "curve",
        list[str],
        "IN=OUT, a point of a curve over log-probabilities, used in place of filters; repeat, left to right.",
        SAMPLING,
        read=_pairs(float, float, "IN=OUT, two numbers"),
    ),
    SamplingFlag(
        "hlg",
        list[str],
        "NAME=VALUE, bends both ends of the distribution: pivot (top, entropy, median), linear, toe, shoulder.",
        SAMPLING,
        read=_film,
    ),
    SamplingFlag("seed", int, "Seed of the draws; a random one is used and reported otherwise.", SAMPLING),
    SamplingFlag("n", int, "Samples of the prompt.", SAMPLING, ("--n", "--samples")),
    SamplingFlag(
        "speculative",
        bool,
        "Whether the request may be drafted for; never changes a token.",
        SAMPLING,
        ("--speculation",),
    ),
    SamplingFlag(
        "prediction", str, "File of the text that most of the output is expected to repeat.", SAMPLING, read=_text_file
    ),
    SamplingFlag("fill", bool, "The output may repeat long runs of the prompt and of itself.", SAMPLING),
    SamplingFlag("stop", list[str], "Text that ends the output; may be repeated.", BANS),
    SamplingFlag(
        "stop_token_ids",
        list[int],
        "Token id that ends the output; may be repeated.",
        BANS,
        ("--stop-token-id", "--stop-token-ids"),
    ),
    SamplingFlag("include_stop_str_in_output", bool, "Keep the stop string at the end.", BANS),
    SamplingFlag("ignore_eos", bool, "Go on past the model's end of text.", BANS),
    SamplingFlag("min_tokens", int, "Tokens before the output may end.", BANS),
    SamplingFlag(
        "logit_bias",
        list[str],
        "ID=VALUE, a number added to a token's logit, -inf bans it; may be repeated.",
        BANS,
        read=_mapping(int, float, "ID=VALUE, a token id and a number"),
    ),
    SamplingFlag(
        "bad_words", list[str], "Text that may not come; may be repeated.", BANS, ("--bad-words", "--bad-word")
    ),
    SamplingFlag("no_repeat_ngram_size", int, "No run of this many tokens comes twice; 0 = off.", BANS),
    SamplingFlag(
        "forced_tokens",
        list[str],
        "POSITION=ID, a token at a place of the output, the first being 0; may be repeated.",
        BANS,
        ("--forced-token", "--forced-tokens"),
        read=_mapping(int, int, "POSITION=ID, two whole numbers"),
    ),
    SamplingFlag("thinking_budget", int, "Most tokens inside a thinking block.", BANS),
    SamplingFlag(
        "repetition_penalty",
        float,
        "Divides logits of tokens of prompt and output; 1 = off.",
        PENALTIES,
        ("--repetition-penalty", "--repeat-penalty"),
    ),
    SamplingFlag("presence_penalty", float, "Taken off tokens that the output holds.", PENALTIES),
    SamplingFlag("frequency_penalty", float, "Taken off for every time the output holds a token.", PENALTIES),
    SamplingFlag(
        "penalty_window",
        int,
        "Tokens the penalties look back; 0 = all.",
        PENALTIES,
        ("--penalty-window", "--repeat-last-n"),
    ),
    SamplingFlag("dry_multiplier", float, "Strength of DRY, against repeated runs; 0 = off.", PENALTIES),
    SamplingFlag("dry_base", float, "How fast DRY grows with the length of a run.", PENALTIES),
    SamplingFlag("dry_allowed_length", int, "Longest run that DRY lets pass.", PENALTIES),
    SamplingFlag("dry_penalty_last_n", int, "Tokens DRY looks back; -1 = all, 0 = off.", PENALTIES),
    SamplingFlag(
        "dry_sequence_breakers",
        list[str],
        "Text that ends a run for DRY; may be repeated.",
        PENALTIES,
        ("--dry-sequence-breaker", "--dry-sequence-breakers"),
    ),
    SamplingFlag(
        "json_schema",
        str,
        "File of a JSON schema that the text must match.",
        GRAMMAR,
        field=STRUCTURED,
        part="json",
        read=_json_file,
    ),
    SamplingFlag("json_object", bool, "The text must be a JSON object.", GRAMMAR, field=STRUCTURED, part="json_object"),
    SamplingFlag("regex", str, "Regular expression that the text must match.", GRAMMAR, field=STRUCTURED, part="regex"),
    SamplingFlag(
        "choice",
        list[str],
        "A text that may be the whole output; repeat for each.",
        GRAMMAR,
        field=STRUCTURED,
        part="choice",
    ),
    SamplingFlag(
        "grammar",
        str,
        "File of a grammar (Lark or GBNF/EBNF) that the text must match.",
        GRAMMAR,
        field=STRUCTURED,
        part="grammar",
        read=_text_file,
    ),
    SamplingFlag(
        "logprobs", int, "Log-probabilities of the likeliest tokens, so many each; 0 = the chosen one.", REPORTS
    ),
    SamplingFlag("prompt_logprobs", int, "The same for the prompt.", REPORTS),
    SamplingFlag("logprobs_mode", str, "raw, or processed: after penalties and bans.", REPORTS),
)
