"""S28: the drafter's KV follows the output: the stated rule holds after every round, and acceptance never decays.

The rule: between rounds the drafter covers the target's positions, or all but the last of them where the round before
accepted everything (its last proposal was never fed).
"""

from __future__ import annotations

import pytest
from tests.draft.model_kit import check_kv, model_rows, self_drafter, target

from paceline.core.request import SamplingParams
from paceline.core.row import Row
from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.engine.drafting import Proposals
from paceline.engine.scheduler import Scheduler
from paceline.testing.collect import Collector
from paceline.testing.drafters import another_id
from paceline.testing.harness import Job, Setup, open_engine, run_jobs, watch_steps
from paceline.testing.reference import PlainDecoder

PROMPT = tuple(range(30, 38))
DEPTH = 4


def run(tokens: int, drafter: ModelDrafter | None, check) -> tuple[Collector, list[str]]:  # type: ignore[no-untyped-def]
    model, decoder = target()
    job = Job("job", PROMPT, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    with open_engine(model, decoder.eos_ids, Setup(rows=1, depth=DEPTH), drafter) as engine:
        found = watch_steps(engine, check)
        got = run_jobs(engine, [job], timeout=120)["job"]
        return got, found


def rule(scheduler: Scheduler) -> None:
    rows = model_rows(scheduler)
    for row in scheduler.rows if rows is not None else ():
        lag = 1 if row.spec.acceptance_lengths and row.spec.acceptance_lengths[-1] == DEPTH else 0
        assert rows is not None
        assert rows.covered(row) == row.length - lag, f"covers {rows.covered(row)}, target {row.length}, lag {lag}"
        if row.step % 80 < 5:
            check_kv(scheduler)


def test_s28_acceptance_over_a_long_text_stays_at_one() -> None:
    rounds = 198
    tokens = 1 + rounds * (DEPTH + 1)
    got, found = run(tokens, self_drafter(), rule)
    assert found == []
    assert got.spec.acceptance_lengths == [DEPTH] * rounds, "1.0 over tokens 900 to 990 as over the first hundred"
    assert len(got.tokens) == tokens > 900
    plain, _ = run(300, None, lambda scheduler: None)
    assert got.tokens[:300] == plain.tokens


@pytest.mark.parametrize("accepted", range(DEPTH + 1))
def test_s28_the_rule_holds_for_every_accepted_length(accepted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals are spoilt at one place after the drafter has fed them: the entries from there on must go."""
    import paceline.engine.drafting as drafting

    original = drafting.GuardedDrafter.draft

    def spoilt(self, batch):  # type: ignore[no-untyped-def]
        proposals = original(self, batch)
        for proposal in proposals.tokens:
            if accepted < len(proposal):
                proposal[accepted] = another_id(proposal[accepted], 320)
        return proposals

    monkeypatch.setattr(drafting.GuardedDrafter, "draft", spoilt)
    rounds = 12
    got, found = run(1 + rounds * (accepted + 1), self_drafter(), rule)
    assert found == []
    assert set(got.spec.acceptance_lengths[:-DEPTH]) <= {accepted}
    _, decoder = target()
    assert tuple(got.tokens) == _plain(decoder, len(got.tokens))


def _plain(decoder: PlainDecoder, tokens: int) -> tuple[int, ...]:
    return decoder.run(PROMPT, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)).tokens


@pytest.mark.parametrize("shift", [-2, 1])
def test_s28_a_rewind_that_is_off_is_noticed(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth: two entries too many removed, or one too few."""
    from paceline.draft.kinds._model_rows import ModelRows

    original = ModelRows._roll_back

    def roll_back(self: ModelRows, rows: list[Row], ends: list[int]) -> None:
        covered = [self.covered(row) for row in rows]
        original(self, rows, ends)
        for row, before in zip(rows, covered, strict=True):
            if self.covered(row) < before:
                self._covered[row.index] += shift

    monkeypatch.setattr(ModelRows, "_roll_back", roll_back)
    monkeypatch.setattr("paceline.engine.drafting.GuardedDrafter.draft", _always_wrong)
    _, found = run(12, self_drafter(), rule)
    assert any("covers" in problem for problem in found)


def _always_wrong(self, batch):  # type: ignore[no-untyped-def]
    drafted = self._rows.draft(batch).to_lists()
    wrong = [[another_id(token, 320) for token in proposal] for proposal in drafted]
    return Proposals(wrong, [0] * len(wrong))
