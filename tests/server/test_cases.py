"""Cases S10 to S50 over HTTP: what the engine promises survives the way to the caller, streamed and whole, under a
drafter whose bursts are as long as they can be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.server.kit import (
    SPEC,
    Caller,
    Reciting,
    answer,
    app_over,
    chunks_of,
    decoder,
    error,
    in_process,
    post,
    tokenizer,
    toy_engine,
)
from tests.support.features import PROMPTS, VOCAB
from tests.support.grammars import GRAMMARS

from paceline.core.params import SamplingParams
from paceline.testing.harness import leftovers
from paceline.testing.toy import ToyTarget

PATH = "/v1/completions"
PROMPT = list(PROMPTS[0])
SAMPLED: dict[str, Any] = {"max_tokens": 18, "temperature": 1.3, "seed": 7}
WORDY: dict[str, Any] = SAMPLED | {"max_tokens": 22, "logit_bias": {str(n): 5.0 for n in range(260, 320)}}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with toy_engine("oracle") as engine, in_process(engine) as opened:
        yield opened


def check(client: httpx.Client, options: dict[str, Any], prompt: list[int] = PROMPT) -> dict[str, Any]:
    """The whole and the streamed answer equal plain decoding; the choice."""
    run = decoder().run(prompt, SamplingParams(**options))
    body = {"prompt": prompt, "return_token_ids": True, **options}
    document = answer(client, PATH, **body)
    (choice,) = document["choices"]
    assert (choice["text"], choice["finish_reason"]) == (run.text, run.finish_reason)
    assert (tuple(choice["token_ids"]), choice["stop_reason"]) == (run.tokens, run.stop_reason)
    assert document["usage"]["completion_tokens"] == run.generated
    streamed = chunks_of(post(client, PATH, stream=True, stream_options={"include_usage": True}, **body).text)
    shown, ids = "", []
    for piece in (each for chunk in streamed for each in chunk["choices"]):
        shown += piece["text"]
        ids += piece.get("token_ids", [])
        assert run.text.startswith(shown)
    assert (shown, ids) == (run.text, choice["token_ids"])
    assert streamed[-1]["usage"] == document["usage"]
    return dict(choice)


def test_s10_s11_stops_at_every_offset_of_a_burst(client: httpx.Client) -> None:
    text = decoder().run(PROMPT, SamplingParams(**WORDY)).text
    for end in range(2, 20):
        stop = text[max(0, end - 1 - end % 5) : end]
        choice = check(client, {**WORDY, "stop": ["never comes", stop], "include_stop_str_in_output": end % 3 == 0})
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    (cut,) = answer(client, PATH, prompt=PROMPT, logprobs=2, return_token_ids=True, **WORDY, stop=[text[7:9]])[
        "choices"
    ]
    assert len(cut["token_ids"]) == len(cut["logprobs"]["tokens"])


def test_s12_s13_lengths(client: httpx.Client) -> None:
    for most in range(1, 11):
        assert check(client, {"max_tokens": most, "temperature": 0, "ignore_eos": True})["finish_reason"] == "length"
        check(client, {**SAMPLED, "logit_bias": {"2": 9.0}, "min_tokens": most - 1, "max_tokens": 12})


def test_s14_s15_scores(client: httpx.Client) -> None:
    for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}):
        body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "logprobs": 5, "echo": True, **options}
        on = answer(client, PATH, **body)
        off = answer(client, PATH, speculative=False, **body)
        assert on["choices"] == off["choices"]
        assert on["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
        assert len(on["choices"][0]["logprobs"]["tokens"]) == len(PROMPT) + 12


PARAMETERS: list[dict[str, Any]] = [
    {"min_p": 0.3},
    {"xtc_threshold": 0.1, "xtc_probability": 1.0},
    {"logit_bias": {"50": 100}},
    {"logit_bias": {"50": -100, "2": -100, "60": 3}},
    {"typical_p": 0.4},
    {"bad_words": ["e", [5], [6, 7]]},
    {"dry_multiplier": 6.0, "dry_allowed_length": 1},
    {"repetition_penalty": 1.5},
    {"frequency_penalty": 1.9, "presence_penalty": 1.0},
    {"top_k": 5},
    {"top_p": 0.4},
    {"no_repeat_ngram_size": 1},
    {"filter_order": "temperature_last", "top_p": 0.5},
    {"hlg": {"pivot": "top", "toe": 2.0}},
    {"curve": [[-12.0, -30.0], [-4.0, -3.0], [0.0, -1.0]]},
    {"thinking_budget": 3},
    {"structured_outputs": {"regex": GRAMMARS["regex"]}},
    {"structured_outputs": {"choice": GRAMMARS["choice"]}},
]


@pytest.mark.parametrize("options", PARAMETERS, ids=lambda options: next(iter(options)))
def test_s16_s17_s18_no_parameter_is_lost_on_the_way(client: httpx.Client, options: dict[str, Any]) -> None:
    choice = check(client, SAMPLED | options)
    if options.get("logit_bias") == {"50": 100}:
        assert set(choice["token_ids"]) == {50}
    assert error(client, PATH, 400, prompt=PROMPT, mirostat=2)["param"] == "mirostat"


NUMBERS: list[tuple[str, Any]] = [
    *(("top_k", value) for value in (-2, 1.5)),
    *(("top_p", value) for value in (0, 1.5, float("nan"))),
    *(("temperature", value) for value in (-1, float("nan"), float("inf"), "hot")),
    *(("max_tokens", value) for value in (0, -1, 10**7)),
    *(("logprobs", value) for value in (-1, VOCAB + 1, 10**6)),
    *(("logit_bias", value) for value in ({"400": 1}, {"-1": 1}, {"x": 1}, {str(n): 1 for n in range(5000)})),
    *(("stop_token_ids", value) for value in ([-1], [10**6])),
    ("seed", -1),
    ("n", 0),
    ("num_draft_tokens", -1),
]


def test_s19_numbers_out_of_range_leave_running_streams_alone() -> None:
    async def main() -> None:
        with toy_engine() as engine:
            app = app_over(engine)
            long = {"prompt": PROMPT, "max_tokens": 150, "temperature": 1.0, "ignore_eos": True, "stream": True}
            solo = [await Caller(app, PATH, long | {"seed": seed}).run() for seed in range(4)]
            running = [asyncio.create_task(Caller(app, PATH, long | {"seed": seed}).run()) for seed in range(4)]
            for field, value in NUMBERS:
                caller = Caller(app, PATH, {"prompt": PROMPT, field: value})
                refused = json.loads(await caller.run())["error"]
                assert (caller.status, refused["param"]) == (400, field), (field, value, refused)
            for value in (0, -1, 10**7):
                caller = Caller(app, PATH, {"prompt": PROMPT, "top_k": value})
                await caller.run()
                assert caller.status == 200
            assert [_text(await task) for task in running] == [_text(text) for text in solo]
            assert leftovers(engine) == [] and app.state.server.health()[0]

    asyncio.run(main())


def _text(stream: str) -> str:
    return "".join(choice["text"] for chunk in chunks_of(stream) for choice in chunk["choices"])


def test_s20_empty_and_one_token_prompts(client: httpx.Client) -> None:
    for prompt in ("", [], [""], [[]]):
        assert error(client, PATH, 400, prompt=prompt)["param"].startswith("prompt")
    for one in ([2], [99]):
        check(client, {"max_tokens": 8, "temperature": 0}, one)
    messages = [{"role": "user", "content": ""}]
    assert answer(client, "/v1/chat/completions", messages=messages, max_tokens=2)["choices"]


def test_s21_s22_a_grammar_ends_inside_a_burst(client: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    schema["x-guidance"] = {"whitespace_flexible": False}
    for seed in range(8):
        options = {**SAMPLED, "seed": seed, "max_tokens": 40, "structured_outputs": {"json": schema}}
        options["logit_bias"] = {str(tokenizer().convert_tokens_to_ids("}")): 4.0}
        choice = check(client, options)
        assert choice["finish_reason"] == "stop" and isinstance(json.loads(choice["text"])["a"], int)
        chat = answer(
            client,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "x"}],
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
            **{key: value for key, value in options.items() if key != "structured_outputs"},
        )
        assert isinstance(json.loads(chat["choices"][0]["message"]["content"])["a"], int)


def test_s31_sixteen_callers_get_their_own_answers() -> None:
    async def main() -> None:
        with toy_engine() as engine:
            app = app_over(engine)
            bodies: list[dict[str, Any]] = [
                {
                    "prompt": [40 + number, 77, 115] * (1 + number % 5),
                    "max_tokens": 5 + 3 * number,
                    "temperature": 0.9,
                    "seed": number,
                    "ignore_eos": True,
                    "stream": True,
                    "logit_bias": {str(100 + number): 4.0},
                    "num_draft_tokens": number % 5,
                }
                for number in range(16)
            ]
            solo = [await Caller(app, PATH, body).run() for body in bodies]
            together = await asyncio.gather(*(Caller(app, PATH, body).run() for body in bodies))
            assert [_text(text) for text in together] == [_text(text) for text in solo]

    asyncio.run(main())


def test_s43_a_row_of_nans_fails_alone() -> None:
    target = ToyTarget(SPEC)
    target.poison = {(40, len(PROMPT) + 5)}
    with toy_engine(target=target) as engine, in_process(engine) as client:
        found = error(client, PATH, 500, prompt=PROMPT, max_tokens=12, temperature=0)
        assert found["type"] == "server_error"
        lines = post(client, PATH, prompt=PROMPT, max_tokens=12, temperature=0, stream=True).text.split("\n\n")
        assert any('"error":{' in line for line in lines)
        check(client, {"max_tokens": 12, "temperature": 0}, [99])
        assert engine.stats().bad_rows >= 2 and client.get("/health").status_code == 200


@pytest.mark.parametrize("size", range(1, 9))
def test_s49_partial_characters_reach_the_caller_whole(size: int) -> None:
    text = "a🙂한글 שלום 🇩🇪é the"
    with in_process(Reciting(text, (size,) * 99)) as client:
        assert answer(client, PATH, prompt="x", max_tokens=99)["choices"][0]["text"] == text
        raw = post(client, PATH, prompt="x", max_tokens=99, stream=True)
        assert _text(raw.content.decode("utf-8")) == text and "\ufffd" not in raw.text
        for most in range(1, len(Reciting(text).answer)):
            whole = answer(client, PATH, prompt="x", max_tokens=most)["choices"][0]["text"]
            streamed = post(client, PATH, prompt="x", max_tokens=most, stream=True).text
            assert _text(streamed) == whole


def test_s50_figures_add_up(client: httpx.Client) -> None:
    document = answer(client, PATH, prompt=PROMPT, **SAMPLED)
    spec = document["metrics"]["speculative_decoding"]
    assert spec["num_accepted_draft_tokens"] <= spec["num_draft_tokens"]
    assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"]
    assert spec["mean_acceptance_length"] == 1 + spec["num_accepted_draft_tokens"] / spec["num_spec_steps"]
    none = answer(client, PATH, prompt=PROMPT, **SAMPLED | {"max_tokens": 1})
    assert none["metrics"]["speculative_decoding"]["draft_acceptance_rate"] == 0
