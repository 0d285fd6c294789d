"""Where streamed tokens come from: drafted, copied, corrected, bonus or plain; the pieces joined are the text."""

from __future__ import annotations

import pytest
from tests.engine.fake_engine import make_row
from tests.engine.tokenizers_for_tests import byte_level

from paceline.core.request import SamplingParams
from paceline.core.round import Burst, RowResult, Source
from paceline.core.row import Finished, Row
from paceline.engine.consumer import StreamConsumer, Submission
from paceline.engine.delivery import deliver
from paceline.engine.detokenize import TokenDecoder
from paceline.engine.llm import LLM
from paceline.engine.outputs import StreamDelta
from paceline.testing.models import tiny_model


class _Host:
    """Publishes every burst to one consumer."""

    def __init__(self, consumer: StreamConsumer) -> None:
        self._consumer = consumer

    def publish(self, row: Row, tokens: tuple[int, ...], metadata: None) -> int:
        return self._consumer.take(row, tokens, metadata)


@pytest.mark.parametrize(
    ("proposed", "accepted", "source", "origins"),
    [
        (0, 0, "plain", ["plain"]),
        (3, 0, "draft", ["corrected"]),
        (3, 2, "draft", ["drafted", "drafted", "corrected"]),
        (2, 2, "draft", ["drafted", "drafted", "bonus"]),
        (2, 1, "span", ["copied", "corrected"]),
        (2, 2, "span", ["copied", "copied", "bonus"]),
    ],
)
def test_origin_of_every_place_of_a_burst(proposed: int, accepted: int, source: Source, origins: list[str]) -> None:
    burst = Burst(proposed, accepted, source)
    assert [burst.origin(place) for place in range(accepted + 1)] == origins


def test_pieces_carry_the_text_that_each_token_brought() -> None:
    tokenizer = byte_level()
    text = "the 안 and stop it"
    ids = tuple(tokenizer.encode(text))
    deltas: list[StreamDelta] = []
    params = SamplingParams(stop=["stop"])
    consumer = StreamConsumer(Submission("r", "", (5,), params, TokenDecoder(tokenizer), 4), deltas.append)
    row = make_row((5,), params)
    for start in range(0, len(ids), 3):
        burst = ids[start : start + 3]
        result = RowResult(burst[:2], burst, min(2, len(burst)), source="draft")
        if deliver(_Host(consumer), row, result).kind == "stop":  # type: ignore[arg-type]
            break
    consumer.finish(row, Finished("stop"))
    assert "".join(delta.text for delta in deltas) == "the 안 and "
    for delta in deltas:
        assert "".join(piece.text for piece in delta.pieces) == delta.text
        assert len(delta.pieces) == len(delta.token_ids)
    assert [piece.origin for piece in deltas[0].pieces] == ["drafted", "drafted", "bonus"]


def test_text_released_at_the_end_belongs_to_the_last_token() -> None:
    deltas: list[StreamDelta] = []
    tokenizer = byte_level()
    params = SamplingParams(stop=["anden"])
    consumer = StreamConsumer(Submission("r", "", (5,), params, TokenDecoder(tokenizer), 4), deltas.append)
    row = make_row((5,), params)
    row.burst = Burst(1, 0, "draft")
    ids = tuple(tokenizer.encode(" and"))
    consumer.take(row, ids, None)
    consumer.finish(row, Finished("length"))
    assert deltas[-1].text == "and"
    assert [(piece.text, piece.origin) for piece in deltas[-1].pieces] == [("and", "corrected")]


def test_an_engine_tells_the_origins_of_its_tokens() -> None:
    with LLM(str(tiny_model("llama")), spec_method="ngram", dtype="float32", num_threads=1) as llm:
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        deltas = list(llm.stream("the and the and the and the and", params))
    spec = deltas[-1].output.metrics.speculative_decoding  # type: ignore[union-attr]
    origins = [piece.origin for delta in deltas for piece in delta.pieces]
    assert origins[0] == "plain"  # drawn from the prefill
    assert len(origins) == 40
    assert origins.count("drafted") == spec.num_accepted_draft_tokens
    assert origins.count("corrected") + origins.count("bonus") <= spec.num_spec_steps
