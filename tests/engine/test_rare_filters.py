"""Rarer filters and both couplings through the engine: drafters change no token, no parameter is dropped (S17)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tiny import decoder, drafter, prompts, serve

from paceline.core.request import SamplingParams
from paceline.draft.base import DraftProvider
from paceline.engine.options import OptionResolver
from paceline.testing.drafters import OracleDrafter
from paceline.testing.harness import Job, Setup

FIELDS: dict[str, dict[str, Any]] = {
    "typical": {"typical_p": 0.5},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.01},
    "xtc-last": {"xtc_probability": 1.0, "xtc_threshold": 0.01, "top_p": 0.9, "filter_order": "temperature_last"},
    "order": {"top_p": 0.6, "temperature": 1.8, "filter_order": "temperature_last"},
    "curve": {"curve": [(-9.0, -20.0), (-4.0, -3.0), (-1.0, -2.5)]},
    "hlg": {"hlg": {"pivot": "entropy", "linear": 0.2, "toe": 2.0, "shoulder": 4.0}},
}
#: What each would be if the field itself were dropped.
DROPPED = {"xtc-last": {"top_p": 0.9, "filter_order": "temperature_last"}, "order": {"top_p": 0.6, "temperature": 1.8}}


def jobs_of(kinds: list[dict[str, Any]]) -> list[Job]:
    options = [{"temperature": 1.0, **kind} for kind in kinds]
    return [
        Job(f"job-{n}", prompt, SamplingParams(max_tokens=24, seed=n, ignore_eos=True, **o))
        for n, (prompt, o) in enumerate(zip(prompts(len(options)), options, strict=True))
    ]


def tokens(setup: Setup, jobs: list[Job], provider: DraftProvider | None) -> list[list[int]]:
    served = serve(setup, jobs, provider)
    return [list(served[job.name].tokens) for job in jobs]


@pytest.mark.parametrize("coupling", ["gumbel", "inverse_cdf"])
def test_s17_streams_do_not_depend_on_the_drafter(coupling: str) -> None:
    jobs = jobs_of([*FIELDS.values(), {}, {"temperature": 0.0, **FIELDS["xtc"]}])
    setup = Setup(rows=8, coupling=coupling)
    plain = tokens(setup, jobs, None)
    recorded = {job.prompt: stream for job, stream in zip(jobs, plain, strict=True)}
    oracle = OracleDrafter(lambda request: tuple(recorded[request.prompt_ids]))
    assert tokens(setup, jobs, oracle) == plain
    assert tokens(Setup(rows=8, coupling=coupling, depth=2), jobs, drafter("D-lookup")) == plain
    assert tokens(setup, jobs, drafter("D-bad")) == plain
    assert [tokens(setup, [job], drafter("D-bad"))[0] for job in jobs] == plain


@pytest.mark.parametrize("name", FIELDS)
def test_s17_no_field_is_dropped(name: str) -> None:
    setup = Setup(rows=8)
    asked, dropped = (
        tokens(setup, jobs_of([kind] * 4), drafter("D-bad")) for kind in (FIELDS[name], DROPPED.get(name, {}))
    )
    assert asked != dropped


def test_the_coupling_is_part_of_what_determines_a_stream() -> None:
    jobs = jobs_of([{}] * 4)
    assert tokens(Setup(coupling="inverse_cdf"), jobs, None) != tokens(Setup(coupling="gumbel"), jobs, None)


class Bytes:
    """Text is its bytes."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode()


def test_xtc_spares_the_ends_of_the_model_and_its_newline() -> None:
    asked, plain = SamplingParams(xtc_probability=0.5), SamplingParams()
    assert OptionResolver(Bytes(), 256).spared(asked, (7, 8)) == (7, 8, 10)
    assert OptionResolver(Bytes(), 256).spared(plain, (7, 8)) == ()
    assert OptionResolver(None, 256).spared(asked, (7,)) == (7,)


def test_spared_ends_of_a_model_can_still_be_drawn() -> None:
    """With every id spared XTC changes nothing; with the model's own ends it does."""
    jobs = jobs_of([FIELDS["xtc"] | {"xtc_probability": 1.0}] * 4)
    everything = tuple(range(decoder().vocab_size))
    spared = serve(Setup(rows=8), jobs, None, everything)
    plain = serve(Setup(rows=8), jobs_of([{}] * 4), None, everything)
    assert [spared[job.name].tokens for job in jobs] == [plain[job.name].tokens for job in jobs]
    assert tokens(Setup(rows=8), jobs, None) != [list(plain[job.name].tokens) for job in jobs]
