"""S09: an EOS anywhere inside an accepted burst ends the answer there, and nothing is streamed after it."""

from __future__ import annotations

import functools

import pytest
from tests.support.tiny import decoder, drafter, greedy, prompts, serve

from paceline.core.request import DEVICE_EOS_IDS
from paceline.testing.drafters import ScriptedDrafter
from paceline.testing.harness import Job, Setup, compare


@functools.cache
def ending_at(place: int) -> tuple[tuple[int, ...], int]:
    """A prompt whose plain run has a new token as its draw number ``place`` (from 1), and that token."""
    for prompt in prompts(60):
        tokens = decoder().run(prompt, greedy(16, ignore_eos=True)).tokens
        if tokens[place - 1] not in tokens[: place - 1]:
            return prompt, tokens[place - 1]
    raise AssertionError("no prompt has a new token there")


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("depth", [3, 4, 8])
@pytest.mark.parametrize("place", range(1, 13))
@pytest.mark.parametrize("extra", [(), (1,)])
def test_s09_the_answer_ends_at_the_eos(place: int, depth: int, device_round: bool, extra: tuple[int, ...]) -> None:
    prompt, eos = ending_at(place)
    ids = (*extra, eos)
    setup = Setup(rows=1, depth=depth, device_round=device_round)
    jobs = [Job("job", prompt, greedy(40, stop_token_ids=ids, ignore_eos=True))]
    plain = serve(setup, jobs, drafter("none"))["job"]
    burst = serve(setup, jobs, drafter("D-self"))["job"]
    for got in (plain, burst):
        assert compare(jobs, decoder(), {"job": got}) == []
        assert got.generated == place and len(got.tokens) == place - 1 and got.reason == "stop"
        assert sum(got.bursts) == place - 1
    model_eos = serve(setup, [Job("job", prompt, greedy(40))], drafter("D-self"), eos_ids=ids)["job"]
    assert (model_eos.tokens, model_eos.reason, model_eos.generated) == (plain.tokens, "stop", place)


@pytest.mark.parametrize("place", [1, 3, 6])
def test_s09_stop_ids_beyond_those_of_the_device_tables(place: int) -> None:
    prompt, eos = ending_at(place)
    tokens = decoder().run(prompt, greedy(16, ignore_eos=True)).tokens
    others = [i for i in range(decoder().vocab_size) if i not in tokens][: DEVICE_EOS_IDS + 4]
    jobs = [Job("job", prompt, greedy(40, stop_token_ids=(*others, eos)))]
    orders = [serve(Setup(rows=1, depth=8, device_round=on), jobs, drafter("D-self"))["job"] for on in (True, False)]
    for got in orders:
        assert compare(jobs, decoder(), {"job": got}) == []
        assert (len(got.tokens), got.generated) == (place - 1, place)
    assert orders[0].spec == orders[1].spec


@pytest.mark.parametrize("device_round", [True, False])
def test_s09_a_proposed_eos_that_is_not_drawn_ends_nothing(device_round: bool) -> None:
    prompt, eos = ending_at(9)
    jobs = [Job("job", prompt, greedy(40, stop_token_ids=(eos,)))]
    script = ScriptedDrafter([[eos] * 4, [eos]] * 20)
    got = serve(Setup(rows=1, depth=4, device_round=device_round), jobs, script)["job"]
    assert compare(jobs, decoder(), {"job": got}) == []
    assert got.generated == 9 and got.spec.accepted == 0
