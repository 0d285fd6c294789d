"""Every feature alone: answers with any drafter, alone and in a full batch, equal plain decoding to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from tests.support.features import (
    DRAFTERS,
    EOS,
    LOOPING,
    PROMPTS,
    VOCAB,
    Engines,
    Feature,
    Request,
    decoder,
    engines,
    features,
    same,
    tokenizer,
)

from paceline.core.params import SamplingParams
from paceline.engine.draws import RowSampler
from paceline.testing.features import PlainTexts

FEATURES = features()
_ORDERS = (True, False)
#: Prompts that the quick tests use; the marked ones use all.
_QUICK = (PROMPTS[0], PROMPTS[4])


@pytest.fixture(scope="module")
def served() -> Iterator[Engines]:
    with engines() as opened:
        yield opened


def batches(prompts: tuple[tuple[int, ...], ...], size: int = 8) -> list[list[Request]]:
    """Every feature with every prompt, in batches of ``size`` unlike requests."""
    requests = [(prompt, feature.params) for prompt in prompts for feature in FEATURES]
    count = -(-len(requests) // size)
    return [requests[start::count] for start in range(count)]


@pytest.mark.parametrize("feature", [f for f in FEATURES if f.changes], ids=lambda f: f.name)
def test_the_feature_changes_what_plain_decoding_answers(feature: Feature) -> None:
    plain = decoder()
    runs = [(plain.run(prompt, feature.params), plain.run(prompt, feature.without)) for prompt in PROMPTS]
    assert any((a.draws, a.text, a.stop_reason) != (b.draws, b.text, b.stop_reason) for a, b in runs)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_alone_in_the_engine(feature: Feature, served: Engines) -> None:
    place = FEATURES.index(feature)
    for number, drafter in enumerate(DRAFTERS):
        order = bool((place + number) % 2)
        requests = [(_QUICK[(place + number // 2) % 2], feature.params)]
        assert served.check(requests, drafter, order) == []


@pytest.mark.parametrize(("drafter", "device_round"), list(product(DRAFTERS, _ORDERS)))
def test_together_in_a_batch_of_eight(drafter: str, device_round: bool, served: Engines) -> None:
    for requests in batches(_QUICK[:1]):
        assert served.check(requests, drafter, device_round) == []


@pytest.mark.grid
@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
@pytest.mark.parametrize(("drafter", "device_round"), list(product(DRAFTERS, _ORDERS)))
def test_every_feature_and_prompt(drafter: str, device_round: bool, coupling: str) -> None:
    with engines(coupling=coupling) as opened:
        for requests in [*batches(PROMPTS, 1), *batches(PROMPTS)]:
            assert opened.check(requests, drafter, device_round) == []


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_the_same_to_the_last_bit(drafter: str, served: Engines) -> None:
    """Log-probabilities included, which are compared with plain decoding up to rounding only."""
    requests = [(prompt, f.params) for f in FEATURES if f.params.logprobs is not None for prompt in _QUICK]
    alone = [served.serve([request], "none", False)[0] for request in requests]
    together = served.serve(requests, drafter, True)
    assert [place for place, pair in enumerate(zip(alone, together, strict=True)) if not same(*pair)] == []


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_context_ends_an_answer_without_a_limit(drafter: str, served: Engines) -> None:
    prompt = tuple(40 + place % 7 for place in range(244))
    requests = [
        (prompt, SamplingParams(temperature=1.0, seed=3, logprobs=1)),
        (prompt[:-1], SamplingParams(temperature=0.0, min_tokens=20)),
    ]
    assert served.check(requests, drafter, True) == []
    assert [len(output.token_ids) for output in served.serve(requests, drafter, False)] == [12, 13]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_inverse_cdf_gives_another_stream_and_the_same_for_all_drafters(drafter: str) -> None:
    sampled = [f for f in FEATURES if not f.params.greedy][::4]
    requests = [(PROMPTS[0], f.params) for f in sampled]
    with engines(coupling="inverse_cdf") as opened:
        assert opened.check(requests, drafter, True) == []
    others = [decoder("inverse_cdf").run(*r).draws != decoder().run(*r).draws for r in requests]
    assert sum(others) > len(others) // 2


def test_perfect_and_wrong_drafters_really_drafted(served: Engines) -> None:
    request = [(PROMPTS[0], SamplingParams(max_tokens=18, temperature=1.3, seed=7, frequency_penalty=0.5))]
    figures = {
        name: served.serve(request, name, False)[0].metrics.speculative_decoding for name in ("oracle", "adversarial")
    }
    assert figures["oracle"].draft_acceptance_rate == 1.0
    assert figures["adversarial"].num_draft_tokens > 10
    assert 0 < figures["adversarial"].draft_acceptance_rate < 0.5


def test_the_plain_text_is_that_of_the_tokenizer() -> None:
    texts = PlainTexts(tokenizer())
    for prompt in PROMPTS:
        tokens = decoder().run(prompt, SamplingParams(max_tokens=60, temperature=1.5, seed=1, ignore_eos=True)).tokens
        assert texts.certain(tokens, final=True) == tokenizer().decode(list(tokens), skip_special_tokens=True)
    assert len(tokenizer()) < VOCAB and EOS[0] < VOCAB


@pytest.mark.parametrize("broken", ["rejected drafts enter the history", "the history lags a token behind"])
def test_a_wrong_history_would_be_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = RowSampler.observe

    def wrong(self, row, draws):  # type: ignore[no-untyped-def]
        observe(self, row, [*draws, draws[-1]] if broken.startswith("rejected") else draws[1:])

    monkeypatch.setattr(RowSampler, "observe", wrong)
    params = SamplingParams(**LOOPING, frequency_penalty=0.9)
    with engines() as opened:
        found = [line for prompt in PROMPTS for line in opened.check([(prompt, params)], "oracle", False)]
    assert found
