"""Two thousand malformed bodies: each is answered or refused, none fails the server, and streams beside them go on."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

from tests.server.kit import HELLO, VOCAB, Caller, app_over, chunks_of, joined_chat, toy_engine

from paceline import LLM, SamplingParams
from paceline.testing.harness import leftovers
from paceline.testing.toy import ToySpec, ToyTarget

COUNT = 2000
PATH = "/v1/chat/completions"
STREAM = {"messages": HELLO, "max_tokens": 60, "seed": 1, "ignore_eos": True, "stream": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "look", "parameters": SCHEMA}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "messages": [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}, *HELLO],
            "max_tokens": 3,
            "temperature": 0.7,
            "stop": ["a"],
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "auto",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": HELLO,
            "max_completion_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            "prediction": {"type": "content", "content": "a b"},
            "logit_bias": {"5": 1.0},
            "speculative": {"enabled": True, "num_draft_tokens": 2},
            "seed": 3,
        },
    ),
    (
        "/v1/completions",
        {"prompt": ["a", "b"], "max_tokens": 3, "echo": True, "logprobs": 1, "top_k": 3, "bad_words": ["a", [4]]},
    ),
    (
        "/v1/completions",
        {"prompt": [5, 6], "max_tokens": 3, "hlg": {"toe": 0.1}, "curve": [[-9, -9], [0, 0]], "dry_multiplier": 1.0},
    ),
    (
        "/v1/responses",
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            "max_output_tokens": 3,
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": "required",
            "text": {"format": {"type": "text"}},
            "stream": True,
        },
    ),
    ("/tokenize", {"messages": HELLO, "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [5, 6, 300]}),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "a", "\ud800", "\x00", "0", "é" * 50, "<|im_end|>", "{", "a" * 3000, "$ref"),
    *([], [[]], [None], ["a"], [0], [-1], {}, {"a": 1}, {"": None}, {"type": "object"}, [{}], {"type": "text"}),
    {"$ref": "#"},
    {"type": "array", "items": {"$ref": "#/x"}},
]


def mutated(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """A copy with one to three parts replaced, renamed, repeated or taken out."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        place = value
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.6:
                place = place[key]
                continue
            _break(place, key, chance)
            break
    return value


def _break(place: Any, key: Any, chance: random.Random) -> None:
    kind = chance.randint(0, 5)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[f"{key}{chance.choice(['', ' ', 'x', chr(0), 'é'])}_"] = place.pop(key)
    elif kind == 2:
        place[key] = [place[key]] * chance.randint(1, 40)
    elif kind == 3:
        place[key] = {"a": place[key]}
    else:
        place[key] = copy.deepcopy(chance.choice(VALUES))


def content_of(body: Any, chance: random.Random) -> bytes:
    """The JSON of a body, sometimes damaged."""
    content = json.dumps(body).encode()
    kind = chance.randint(0, 9)
    if kind == 0:
        return content[: chance.randint(0, len(content))]
    if kind == 1:
        place = chance.randint(0, len(content) - 1)
        return content[:place] + bytes([chance.randint(0, 255)]) + content[place + 1 :]
    return content


def test_two_thousand_malformed_bodies() -> None:
    chance = random.Random(11)
    statuses: dict[int, int] = {}

    async def main(engine: Any) -> list[str]:
        """Fuzz; the texts of streams that were started in between and ran beside it."""
        app = app_over(engine)
        beside = []
        for number in range(COUNT):
            if number % 100 == 0:
                beside.append(asyncio.create_task(Caller(app, PATH, STREAM).run()))
            path, body = chance.choice(BODIES)
            content = content_of(mutated(body, chance), chance)
            caller = Caller(app, path, content)
            text = await caller.run()
            statuses[caller.status] = statuses.get(caller.status, 0) + 1
            assert caller.status in (200, 400, 404), (path, content, text)
            if caller.status == 200:
                assert '"error":{' not in text, (path, content, text)
            else:
                assert json.loads(text)["error"]["message"], (path, content)
        assert app.state.server.health() == (True, "ok")
        return [joined_chat(chunks_of(text))["content"] for text in await asyncio.gather(*beside)]

    target = ToyTarget(ToySpec(vocab_size=VOCAB, max_model_len=128))
    with toy_engine(target=target) as engine:
        texts = asyncio.run(main(engine))
        (expected,) = LLM.from_engine(engine).chat(HELLO, SamplingParams(max_tokens=60, seed=1, ignore_eos=True))
        assert texts == [expected.text] * (COUNT // 100)
        assert leftovers(engine) == []
    assert statuses[200] > 60 and statuses[400] > 1000
