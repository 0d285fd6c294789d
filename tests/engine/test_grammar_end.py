"""A grammar that ends on a proposal: what lies behind it in the window is no reason to fail the row."""

from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams
from paceline.testing.drafters import OracleDrafter
from paceline.testing.models import tiny_model

pytest.importorskip("llguidance", reason="grammars need the extra paceline[grammar]")


def test_min_tokens_that_a_grammar_cannot_reach_do_not_fail_a_burst() -> None:
    """EOS is banned by min_tokens and nothing else is permitted once the text is complete."""
    params = SamplingParams(
        max_tokens=20, temperature=0.0, min_tokens=5, structured_outputs={"choice": ["abc", "fya"]}, num_draft_tokens=4
    )
    model = str(tiny_model("llama"))
    with LLM(model, dtype="float64", device="cpu", kv_cache_tokens=512, spec_method="none") as llm:
        (plain,) = llm.generate([[5, 6, 7]], params)
    assert plain.finish_reason == "stop"
    drafter = OracleDrafter(lambda request: plain.token_ids)
    with LLM(model, dtype="float64", device="cpu", kv_cache_tokens=512, drafter=drafter, spec_tokens=4) as llm:
        (burst,) = llm.generate([[5, 6, 7]], params)
    assert burst.error is None
    assert (burst.token_ids, burst.text, burst.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)
    assert burst.metrics.speculative_decoding.num_accepted_draft_tokens > 0
