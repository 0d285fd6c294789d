"""Everything a request can ask for, as a table and as random combinations, and engines to ask it of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.support.grammars import GRAMMARS

from paceline import LLM
from paceline.core.params import SamplingParams
from paceline.draft.base import DraftProvider
from paceline.draft.kinds.ngram import NgramDrafter
from paceline.engine.outputs import RequestOutput
from paceline.testing.drafters import AdversarialDrafter, OracleDrafter
from paceline.testing.features import FeatureDecoder, comparable, departures, open_llm
from paceline.testing.harness import Setup
from paceline.testing.tokenizer import END_OF_TEXT, IM_END, build_tokenizer
from paceline.testing.toy import ToySpec, ToyTarget

DRAFTERS = ("none", "oracle", "adversarial", "ngram")
DEPTH = 4
#: Padded: ids from 322 on have no text, and it is no multiple of 32.
VOCAB = 333
EOS = (IM_END, END_OF_TEXT)
SPEC = ToySpec(vocab_size=VOCAB)


@functools.cache
def tokenizer() -> Any:
    """The byte-level tokenizer of 320 ids, with the markers of thinking blocks as ids 320 and 321."""
    made = build_tokenizer()
    made.add_tokens(["<think>", "</think>"])
    return made


THINK, END_THINK = 320, 321


@functools.cache
def decoder(coupling: str = "gumbel") -> FeatureDecoder:
    return FeatureDecoder(
        ToyTarget(SPEC).next_logits,
        tokenizer(),
        eos_ids=EOS,
        max_model_len=SPEC.max_model_len,
        vocab_size=VOCAB,
        coupling=coupling,
    )


#: Prompts with and without repeats; the last is inside a thinking block.
PROMPTS = (
    (40, 77, 115, 40, 77, 115, 40, 77),
    (99,),
    tuple(range(60, 79)),
    (70, 71, 72, 73) * 9,
    (260, 300, 14, 65, THINK),
)


def make_drafter(name: str, plain: FeatureDecoder) -> DraftProvider | None:
    makers: Mapping[str, Callable[[], DraftProvider | None]] = {
        "none": lambda: None,
        "oracle": lambda: OracleDrafter(plain.recorded),
        "adversarial": lambda: AdversarialDrafter(plain.recorded),
        "ngram": NgramDrafter,
    }
    return makers[name]()


Request = tuple[tuple[int, ...], SamplingParams]


class Engines:
    """One engine per drafter and order of rounds over copies of one target, kept open.

    ``make_target`` makes a target that agrees with the plain ``decoder`` (log-probabilities to ``tolerance``); without
    them it is the toy.
    """

    def __init__(
        self,
        stack: ExitStack,
        coupling: str = "gumbel",
        plain: FeatureDecoder | None = None,
        make_target: Callable[[], Any] = lambda: ToyTarget(SPEC),
        depth: int = DEPTH,
        tolerance: float = 1e-9,
    ) -> None:
        self._depth = depth
        self._tolerance = tolerance
        self._stack = stack
        self._coupling = coupling
        self._make_target = make_target
        self.decoder = plain or decoder(coupling)
        self._open: dict[tuple[str, bool], LLM] = {}

    def llm(self, drafter: str, device_round: bool) -> LLM:
        key = (drafter, device_round)
        if key not in self._open:
            setup = Setup(rows=8, chunk=16, depth=self._depth, device_round=device_round, coupling=self._coupling)
            plain = self.decoder
            opened = open_llm(self._make_target(), plain.eos_ids, setup, make_drafter(drafter, plain), plain.tokenizer)
            self._open[key] = self._stack.enter_context(opened)
        return self._open[key]

    def check(self, requests: Sequence[Request], drafter: str, device_round: bool) -> list[str]:
        """Serve the requests as one batch; where their answers differ from plain decoding."""
        outputs = self.serve(requests, drafter, device_round)
        return [
            f"{drafter} device_round={device_round} request {place} {shown(params)}: {line}"
            for place, ((prompt, params), output) in enumerate(zip(requests, outputs, strict=True))
            for line in departures(self.decoder.run(prompt, params), output, self._tolerance)
        ]

    def serve(self, requests: Sequence[Request], drafter: str, device_round: bool) -> list[RequestOutput]:
        llm = self.llm(drafter, device_round)
        return llm.generate([list(prompt) for prompt, _ in requests], [params for _, params in requests])


@contextmanager
def engines(coupling: str = "gumbel", **subject: Any) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(stack, coupling, **subject)


def same(a: RequestOutput, b: RequestOutput) -> bool:
    """Whether two answers are equal to the last bit; after an error an engine may have delivered fewer tokens."""
    if a.finish_reason == b.finish_reason == "error":
        size = min(len(a.token_ids), len(b.token_ids))
        return a.token_ids[:size] == b.token_ids[:size]
    return comparable(a) == comparable(b)


def shown(params: SamplingParams) -> str:
    """The options that are not the default ones."""
    plain = SamplingParams()
    names = [name for name in params.__dataclass_fields__ if getattr(params, name) != getattr(plain, name)]
    return ", ".join(f"{name}={getattr(params, name)!r}" for name in names)


# -- every feature alone -------------------------------------------------------------------------------------------

LETTERS = tuple("aeiostnrlu%ZE4")
MANY_IDS = tuple(range(4, 300, 9))


@dataclass(frozen=True)
class Feature:
    """A feature alone. ``changes``: plain answers with it differ from those without it."""

    name: str
    options: Mapping[str, Any]
    base: Mapping[str, Any]
    changes: bool = True

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(**{**self.base, **self.options})

    @property
    def without(self) -> SamplingParams:
        return SamplingParams(**self.base)


GREEDY: Mapping[str, Any] = {"max_tokens": 18, "temperature": 0.0, "seed": 1}
SAMPLED: Mapping[str, Any] = {"max_tokens": 18, "temperature": 1.3, "seed": 7}
#: Ids that texts of the five ids of ``LOOPING`` come upon again and again.
PREDICTED = (40, 77, 115, 70, 71) * 4
#: Five ids only, so that everything repeats.
LOOPING: Mapping[str, Any] = SAMPLED | {"max_tokens": 24, "logit_bias": dict.fromkeys((40, 77, 115, 70, 71), 13.0)}
ENDING: Mapping[str, Any] = SAMPLED | {"logit_bias": {IM_END: 9.0, END_OF_TEXT: 8.0}}

BOTH: Mapping[str, Mapping[str, Any]] = {
    "min_tokens_and_stop_ids": {"min_tokens": 9, "stop_token_ids": MANY_IDS},
    "min_tokens_and_stop_strings": {"min_tokens": 6, "stop": LETTERS},
    "max_tokens": {"max_tokens": 7},
    "stop": {"stop": LETTERS},
    "stop_over_tokens": {"stop": ("e th", "x\ufffd", "\ufffd\ufffd", "\n\n")},
    "include_stop_str_in_output": {"stop": LETTERS, "include_stop_str_in_output": True},
    "stop_token_ids": {"stop_token_ids": MANY_IDS},
    "stop_token_ids_few": {"stop_token_ids": MANY_IDS[:20:3]},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "repetition_bonus": {"repetition_penalty": 0.7},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "negative_penalties": {"presence_penalty": -1.5, "frequency_penalty": -2.0},
    "penalty_window": {"penalty_window": 5, "repetition_penalty": 1.8, "frequency_penalty": 2.0},
    "logit_bias": {"logit_bias": {50: 12.0, 51: 11.0, 60: -100.0}},
    "logit_bias_ban": {"logit_bias": dict.fromkeys(range(4, 150), float("-inf"))},
    "bad_words_ids": {"bad_words": [(i,) for i in range(4, 200)]},
    "bad_words_pairs": {"bad_words": [(i, j) for i in range(40, 60) for j in range(100, 150)]},
    "bad_words_text": {"bad_words": [*LETTERS, "the", " of", "e th"]},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "forced_tokens": {"forced_tokens": {0: 80, 3: 81, 4: 82, 11: 83}},
    "forced_end": {"forced_tokens": {6: IM_END}},
    "thinking_budget": {"thinking_budget": 6},
    "thinking_budget_0": {"thinking_budget": 0},
    "grammar_json": {"structured_outputs": {"json": GRAMMARS["json"]}, "max_tokens": 40},
    "grammar_object": {"structured_outputs": {"json_object": True}, "max_tokens": 30},
    "grammar_regex": {"structured_outputs": {"regex": GRAMMARS["regex"]}},
    "grammar_choice": {"structured_outputs": {"choice": GRAMMARS["choice"]}},
    "grammar_lark": {"structured_outputs": {"grammar": GRAMMARS["lark"]}},
    "grammar_gbnf": {"structured_outputs": {"grammar": GRAMMARS["gbnf"]}},
}
#: What acts on repeats.
REPEATS: Mapping[str, Mapping[str, Any]] = {
    "dry": {"dry_multiplier": 6.0, "dry_allowed_length": 1},
    "dry_longer": {"dry_multiplier": 2.0},
    "dry_breakers": {"dry_multiplier": 6.0, "dry_allowed_length": 1, "dry_sequence_breakers": ("M", "b")},
    "dry_last_n": {"dry_multiplier": 6.0, "dry_allowed_length": 1, "dry_base": 2.0, "dry_penalty_last_n": 12},
    "no_repeat_ngram_size_2": {"no_repeat_ngram_size": 2},
    "no_repeat_ngram_size_3": {"no_repeat_ngram_size": 3},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "presence_penalty": {"presence_penalty": 1.5},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "penalty_window": {"penalty_window": 3, "repetition_penalty": 1.5, "presence_penalty": 1.0},
    "bad_words": {"bad_words": [(40, 77), (77, 115), (70, 70), (71, 40, 77)]},
}
#: Features that report or choose how to draft: the tokens stay.
REPORTS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "logprobs_0": {"logprobs": 0},
    "logprobs": {"logprobs": 5},
    "logprobs_all": {"logprobs": -1, "max_tokens": 12},
    "prompt_logprobs": {"prompt_logprobs": 3},
    "speculative_off": {"speculative": False},
    "num_draft_tokens": {"num_draft_tokens": 2},
    "num_draft_tokens_0": {"num_draft_tokens": 0},
    "prediction": {"prediction": PREDICTED},
    "fill": {"fill": True},
}
#: Filters and other ways to draw: only where draws are random.
DRAWS: Mapping[str, Mapping[str, Any]] = {
    "temperature": {"temperature": 0.4},
    "temperature_tiny": {"temperature": 1e-5},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.3},
    "typical_p": {"typical_p": 0.4},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    "xtc_sometimes": {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    "temperature_last": {"filter_order": "temperature_last", "top_p": 0.7, "min_p": 0.05, "top_k": 9},
    "temperature_last_xtc": {"filter_order": "temperature_last", "xtc_probability": 1.0, "xtc_threshold": 0.05},
    "curve": {"curve": ((-12.0, -30.0), (-4.0, -3.0), (0.0, -1.0))},
    "hlg_entropy": {"hlg": {"pivot": "entropy"}},
    "hlg_top": {"hlg": {"pivot": "top", "toe": 2.0, "linear": 0.5}},
    "hlg_median": {"hlg": {"pivot": "median", "shoulder": 3.0, "linear": 0.2}},
    "hlg_plain": {"hlg": {"toe": 0.0, "shoulder": 0.0}, "temperature": 0.6},
    "seed": {"seed": 2**64 - 1},
}
PROCESSED: Mapping[str, Any] = {"logprobs": 4, "logprobs_mode": "processed"}


def features() -> list[Feature]:
    """Every feature alone, greedy and sampled where it acts on both."""
    found = [Feature(f"{name}-greedy", options, GREEDY) for name, options in BOTH.items()]
    found += [Feature(f"{name}-sampled", options, SAMPLED) for name, options in BOTH.items()]
    found += [Feature(f"{name}-greedy", options, GREEDY, changes=False) for name, options in REPORTS.items()]
    found += [Feature(f"{name}-sampled", options, SAMPLED, changes=False) for name, options in REPORTS.items()]
    found += [Feature(f"{name}-repeats", options, LOOPING) for name, options in REPEATS.items()]
    found += [
        Feature(f"{name}-greedy-repeats", options, LOOPING | {"temperature": 0.0}) for name, options in REPEATS.items()
    ]
    found += [Feature(name, options, SAMPLED) for name, options in DRAWS.items()]
    found += [
        Feature("eos", {}, ENDING, changes=False),
        Feature("ignore_eos", {"ignore_eos": True}, ENDING),
        Feature("min_tokens", {"min_tokens": 8}, ENDING),
        Feature("min_tokens_at_the_end", {"min_tokens": 18}, ENDING),
        Feature("eos_as_stop_id", {"stop_token_ids": (IM_END,)}, ENDING),
        *(
            Feature(f"processed-{name}", PROCESSED, SAMPLED | BOTH[name], changes=False)
            for name in ("repetition_penalty", "bad_words_ids", "grammar_json", "forced_tokens")
        ),
    ]
    return found


def requests_of(feature: Feature, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[Request]:
    return [(prompt, feature.params) for prompt in prompts]


# -- random combinations -------------------------------------------------------------------------------------------


def _options() -> dict[str, st.SearchStrategy[Any]]:
    """One option or a few that belong together -> the values to choose from."""
    ids = st.integers(4, VOCAB - 1)
    penalty = st.sampled_from([-1.5, 0.4, 2.0])
    groups: dict[str, st.SearchStrategy[Any]] = {
        "top_k": st.sampled_from([1, 4, 30, 10**6, -1]),
        "top_p": st.sampled_from([0.3, 0.8, 0.97]),
        "min_p": st.sampled_from([0.02, 0.2]),
        "typical_p": st.sampled_from([0.3, 0.9]),
        "xtc": st.fixed_dictionaries(
            {"xtc_probability": st.sampled_from([0.5, 1.0]), "xtc_threshold": st.sampled_from([0.02, 0.2])}
        ),
        "filter_order": st.just("temperature_last"),
        "curve": st.sampled_from([BOTH_CURVE, ((-20.0, -9.0), (0.0, 0.0))]),
        "hlg": st.fixed_dictionaries(
            {
                "pivot": st.sampled_from(["top", "entropy", "median"]),
                "toe": st.sampled_from([0.0, 0.7]),
                "shoulder": st.sampled_from([0.0, 1.5]),
            }
        ),
        "min_tokens": st.integers(1, 9),
        "stop": st.lists(st.sampled_from([*LETTERS, "e ", "the", "\ufffd\ufffd"]), min_size=1, max_size=9, unique=True),
        "include_stop_str_in_output": st.just(True),
        "stop_token_ids": st.sampled_from([(5, 9), MANY_IDS, MANY_IDS[::4]]),
        "ignore_eos": st.just(True),
        "prediction": st.sampled_from([PREDICTED, "the of and the of", tuple(range(30, 90))]),
        "fill": st.just(True),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "penalty_window": st.sampled_from([1, 4, 12]),
        "dry": st.fixed_dictionaries(
            {
                "dry_multiplier": st.sampled_from([0.8, 5.0]),
                "dry_allowed_length": st.integers(1, 2),
                "dry_penalty_last_n": st.sampled_from([-1, 0, 9]),
                "dry_base": st.sampled_from([1.0, 2.5]),
                "dry_sequence_breakers": st.sampled_from([None, ("M", "b"), ("e", " ")]),
            }
        ),
        "logit_bias": st.sampled_from([{IM_END: 9.0}, {IM_END: 11.0}, LOOPING["logit_bias"], {50: 99.0}]),
        "bad_words": st.lists(
            st.sampled_from(["a", " the", "of"]) | st.lists(ids, min_size=1, max_size=2), min_size=1, max_size=12
        ),
        "no_repeat_ngram_size": st.integers(1, 3),
        "forced_tokens": st.dictionaries(st.integers(0, 12), ids | st.just(IM_END), min_size=1, max_size=3),
        "thinking_budget": st.integers(0, 7),
        "logprobs": st.sampled_from([0, 1, 5]),
        "logprobs_mode": st.just("processed"),
        "prompt_logprobs": st.sampled_from([0, 3]),
        "structured_outputs": st.sampled_from([{key: value} for key, value in STRUCTURED]),
        "num_draft_tokens": st.sampled_from([0, 1, 3]),
        "speculative": st.just(False),
    }
    return groups


BOTH_CURVE = ((-12.0, -30.0), (-4.0, -3.0), (0.0, -1.0))
STRUCTURED: tuple[tuple[str, Any], ...] = (
    ("json", GRAMMARS["json"]),
    ("json_object", True),
    ("regex", GRAMMARS["regex"]),
    ("choice", GRAMMARS["choice"]),
    ("grammar", GRAMMARS["lark"]),
    ("grammar", GRAMMARS["gbnf"]),
)
#: Options that one request in so many asks for.
_ONE_IN = {"structured_outputs": 5, "curve": 9, "hlg": 7, "speculative": 12, "forced_tokens": 7, "ignore_eos": 6}


@st.composite
def combinations(draw: st.DrawFn) -> SamplingParams:
    """Options of one request; every pair of features comes up."""
    chosen: dict[str, Any] = {}
    for name, values in _options().items():
        if draw(st.integers(1, _ONE_IN.get(name, 4))) == 1:
            value = draw(values)
            chosen |= value if name in ("xtc", "dry") else {name: value}
    if chosen.get("filter_order") == "temperature_last":
        chosen.pop("typical_p", None)
    if "structured_outputs" in chosen:  # a text forced otherwise has no end in most grammars, and hardly a middle
        chosen.pop("forced_tokens", None)
        chosen.pop("thinking_budget", None)
    most = draw(st.sampled_from([1, 9, 14, 18, 20, 23]))
    chosen["min_tokens"] = min(chosen.get("min_tokens", 0), most)
    temperature = draw(st.sampled_from([0.0, 0.5, 1.0, 1.5]))
    return SamplingParams(max_tokens=most, temperature=temperature, seed=draw(st.integers(0, 2**64 - 1)), **chosen)


@st.composite
def mixed_batches(draw: st.DrawFn, size: int = 8) -> list[Request]:
    """A full batch: every row with its own prompt and its own combination of features."""
    return [(draw(st.sampled_from(PROMPTS)), draw(combinations())) for _ in range(size)]
