"""Recording traces: what a drafter would have proposed along a text, and the synthetic drafter."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.record import SYNTHETIC, Output, lookups, places_of, synthesize, write_all
from paceline.bench.trace import read_traces
from paceline.draft.base import TargetView, TokenDrafter
from paceline.draft.registry import default_registry

VIEW = TargetView(100, 0, 0, 1000, (), "cpu", "float32")
LOOP = Output("loops", 0.0, (1, 2, 3, 4), tuple([1, 2, 3, 4] * 10))


class CountsUp(TokenDrafter):
    """Proposes the next numbers, as many as it is asked for but three at most."""

    id = "counts-up"

    def propose(self, state, tokens, max_tokens):  # type: ignore[no-untyped-def]
        return [tokens[-1] + step for step in range(1, min(3, max_tokens) + 1)]

    def matched(self, state):  # type: ignore[no-untyped-def]
        return 99


def test_counts_along_a_text_by_hand() -> None:
    places = places_of(CountsUp().open(VIEW, None, None), Output("w", 0.0, (0,), (1, 2, 3, 7, 8)), 4)  # type: ignore[arg-type]
    assert places.proposed == (3, 3, 3, 3)
    assert places.accepted == (2, 1, 0, 1)
    assert places.match == (24,) * 4


def test_lookups_are_recorded_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = Output("short", 0.7, (1,), (1, 2))
    write_all([LOOP, short], VIEW, tmp_path)
    assert '"left_out": 1' in capsys.readouterr().out
    kinds = lookups(default_registry())
    assert kinds and {path.stem for path in tmp_path.iterdir()} == {*kinds, "synthetic"}
    for kind in kinds:
        (found,) = read_traces(tmp_path / f"{kind}.jsonl")
        assert (found.drafter, found.free, found.synthetic) == (kind, True, False)
        assert found.tokens == len(LOOP.ids) and found.accepted[10] == found.proposed[10] > 3 and found.match[10] > 3


def test_the_synthetic_drafter_is_the_same_each_time_and_follows_the_text() -> None:
    strange = Output("strange", 0.0, (1, 2, 3, 4), tuple(range(10, 50)))
    found = list(synthesize([LOOP, strange]))
    assert found == list(synthesize([LOOP, strange]))
    easy, hard = (sum(trace.accepted) for trace in found)
    assert easy > hard
    assert all(trace.synthetic and trace.drafter == SYNTHETIC and not any(trace.match) for trace in found)


def test_a_hard_token_is_hard_wherever_a_proposal_starts() -> None:
    (found,) = synthesize([LOOP])
    for place in range(len(found.accepted) - 1):
        assert found.accepted[place + 1] >= found.accepted[place] - 1
