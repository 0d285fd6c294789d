"""The two-model drafter: streams are those of plain decoding whatever it drafts, its KV follows the text, and what it
declares holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.draft.kit import VIEW
from tests.draft.model_kit import (
    OTHER,
    TARGET,
    check_both,
    check_coverage,
    check_kv,
    drafting_model,
    greedy,
    load,
    model_rows,
    self_drafter,
    target,
)

from paceline.core.batch import Draft, RoundBatch
from paceline.core.errors import DraftError
from paceline.core.request import SamplingParams
from paceline.core.row import Row
from paceline.draft.kinds import _model_rows as rows_module
from paceline.draft.kinds._model_rows import GROUP, ModelRows, RowDraftError
from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.engine import planning as planning_module
from paceline.engine.scheduler import Scheduler
from paceline.testing.conformance import Coverage, check_provider
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs, watch_steps
from paceline.testing.models import TinyModel, tiny_model
from paceline.testing.truncate import truncate_model
from paceline.testing.watch import WatchedDrafter
from paceline.testing.workload import workload

PROMPTS = [tuple(range(20 + n, 20 + n + length)) for n, length in enumerate((1, 9, 33, 17, 5))]
COVERAGE = Coverage(samplings=("mixed",), batches=(1, 3), chunks=(7, 512), depths=(1, 4))


@functools.cache
def partial_drafter() -> ModelDrafter:
    """Half right: the target without its last layer."""
    directory = tiny_model(TARGET).parent / "truncated"
    return ModelDrafter(load(truncate_model(tiny_model(TARGET), directory, 2)))


def run(jobs: list[Job], drafter: ModelDrafter, setup: Setup, check=check_coverage):  # type: ignore[no-untyped-def]
    """Serve jobs; everything that departs from the plain loop or from the rules, and what was served."""
    model, decoder = target()
    watched = WatchedDrafter(drafter)
    with open_engine(model, decoder.eos_ids, setup, watched) as engine:
        broken = watch_steps(engine, check)
        served = run_jobs(engine, jobs)
        found = compare(jobs, decoder, served) + leftovers(engine) + broken + watched.problems
        return found + ["a failure"] * engine.stats().drafter_failures, served


# -- streams ---------------------------------------------------------------------------------------------------------


def test_a_provider_of_other_weights_passes_the_conformance_grid() -> None:
    other = drafting_model(OTHER)
    report = check_provider(lambda: ModelDrafter(other), COVERAGE)
    assert report.ok, report
    assert report.drafted > report.accepted


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_half_right_drafts_change_no_stream(batch: int, device_round: bool) -> None:
    jobs = workload(batch, "mixed", target()[1])
    setup = Setup(rows=batch, chunk=16, depth=3, device_round=device_round)
    found, served = run(jobs, partial_drafter(), setup)
    assert found == []
    drafted, accepted = (sum(getattr(got.spec, name) for got in served.values()) for name in ("drafted", "accepted"))
    assert 0.2 * drafted < accepted < drafted


@pytest.mark.parametrize("sampling", ["greedy", "mixed"])
def test_the_targets_own_weights_are_always_right(sampling: str) -> None:
    """Coupled draws: with equal weights every proposal is the target's draw, sampled or not, up to the row's end."""
    jobs = workload(3, sampling, target()[1])
    found, served = run(jobs, self_drafter(), Setup(rows=3, chunk=7), check_both)
    assert found == []
    for job in jobs:
        spec = served[job.name].spec
        assert spec.rejected <= 4, "all of it in the last round, whose proposals reach past the end"
        assert spec.accepted >= spec.drafted - 4 and (spec.accepted > 8 or spec.drafted < 20)


def test_seeded_streams_equal_across_drafters() -> None:
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=16)
    jobs = [Job(f"job-{n}", prompt, params) for n, prompt in enumerate(PROMPTS)]
    streams = [
        [got.tokens for got in run(jobs, drafter, Setup(rows=3))[1].values()]
        for drafter in (self_drafter(), partial_drafter(), ModelDrafter(drafting_model(OTHER)))
    ]
    assert streams[0] == streams[1] == streams[2]


# -- what it declares ------------------------------------------------------------------------------------------------


def test_its_layers_stand_behind_the_targets_in_a_group_of_their_own() -> None:
    model, decoder = target()
    drafter = ModelDrafter(drafting_model(TinyModel(family="gemma2")))
    with open_engine(model, decoder.eos_ids, Setup(rows=1), drafter) as engine:
        tables = engine._scheduler._parts.tables
        (group,) = [group for group in tables.groups if group.name == GROUP]
        assert [kv.layer for kv in group.layers] == [model.num_layers, model.num_layers + 1]
        assert group.window is None, "coverage may lag behind any window"
    assert drafter.weight_bytes == drafting_model(TinyModel(family="gemma2")).weight_bytes > 0
    assert not drafter.free and drafter.external_tokens


def test_another_number_format_is_refused() -> None:
    with pytest.raises(DraftError, match=r"float64.*bfloat16"):
        self_drafter().kv_groups(replace(VIEW, dtype="bfloat16"))


def test_a_closed_drafter_says_so() -> None:
    drafter = self_drafter()
    drafter.close()
    with pytest.raises(DraftError, match="closed"):
        drafter.kv_groups(VIEW)


# -- coverage --------------------------------------------------------------------------------------------------------


def before_drafts(monkeypatch: pytest.MonkeyPatch, look: Callable[[ModelRows, RoundBatch], None]) -> None:
    """Call ``look`` on the engine thread before every draft."""
    original = ModelRows.draft

    def draft(self: ModelRows, batch: RoundBatch) -> Draft:
        look(self, batch)
        return original(self, batch)

    monkeypatch.setattr(ModelRows, "draft", draft)


def test_a_preview_is_the_draft_and_changes_no_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = ModelRows.draft

    def draft(self: ModelRows, batch: RoundBatch) -> Draft:
        shown = self.preview(batch)
        ahead = any(self.covered(row) > row.length for row in batch.rows)
        drafted = original(self, batch)
        same = shown is not None and shown.to_lists() == drafted.to_lists()
        seen.append("ahead" if ahead else "same" if same else "another")
        return drafted

    monkeypatch.setattr(ModelRows, "draft", draft)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12)
    jobs = [Job(f"job-{n}", prompt, params) for n, prompt in enumerate(PROMPTS[:3])]
    found, _ = run(jobs, partial_drafter(), Setup(rows=3))
    assert (found, set(seen)) == ([], {"same"})


def test_catch_up_brings_coverage_to_the_targets_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lags: list[int] = []

    def look(rows: ModelRows, batch: RoundBatch) -> None:
        lags.extend(row.length - rows.covered(row) for row in batch.rows)
        rows.catch_up(batch.rows)
        assert all(rows.covered(row) == row.length == rows.capture(row, row.length) for row in batch.rows)

    before_drafts(monkeypatch, look)
    jobs = [Job(f"job-{n}", prompt, greedy(30)) for n, prompt in enumerate(PROMPTS)]
    found, served = run(jobs, self_drafter(), Setup(rows=3, depth=4), check_both)
    assert found == []
    assert lags.count(1) > 10, "after a round of full acceptance it is one behind"
    assert all(got.spec.accepted >= got.spec.drafted - 4 for got in served.values())


@pytest.mark.parametrize(("chunk", "family"), [(8, "llama"), (8, "gemma2"), (rows_module.CHUNK, "llama")])
def test_after_many_rounds_without_drafts_it_catches_up(
    chunk: int, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depth 0 for long, also with a window that has moved on: then everything missed is fed, in parts if it is much."""
    original = planning_module.Planner._cap
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    monkeypatch.setattr(rows_module, "SMALL_LAG", min(4, chunk))

    def cap(self, row: Row, unread=None) -> int:  # type: ignore[no-untyped-def]
        ready = row.step > 60 or row.request.id == "always"
        return original(self, row, unread) if ready else 0

    monkeypatch.setattr(planning_module.Planner, "_cap", cap)
    model, decoder = target(TinyModel(family=family, mixing=0.5))
    names = ("always", "late-1", "late-2")
    jobs = [Job(name, PROMPTS[n], greedy(90)) for n, name in enumerate(names)]
    drafter = ModelDrafter(drafting_model(TinyModel(family=family, mixing=0.5)))
    with open_engine(model, decoder.eos_ids, Setup(rows=3), drafter) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) == []
        assert engine.stats().drafter_failures == 0
    for name in names:
        spec = served[name].spec
        assert spec.accepted >= spec.drafted - 4, f"{name}: {spec}"
        assert spec.accepted > (60 if name == "always" else 20)


@pytest.mark.parametrize("fault", ["keeps one too many", "keeps everything", "calls a hole covered"])
def test_a_wrong_roll_back_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth of the checks of coverage and of KV."""
    original = ModelRows._roll_back

    def roll_back(self: ModelRows, rows: list[Row], ends: list[int]) -> None:
        if fault == "keeps one too many":
            original(self, rows, [end + 1 for end in ends])
        elif fault == "calls a hole covered":
            self._covered.update((row.index, end) for row, end in zip(rows, ends, strict=True))
            self._publish(rows)

    monkeypatch.setattr(ModelRows, "_roll_back", roll_back)
    drafter = self_drafter() if fault == "calls a hole covered" else partial_drafter()
    check = check_kv if fault == "calls a hole covered" else check_coverage
    found, _ = run([Job("job", PROMPTS[1], greedy(30))], drafter, Setup(rows=1), check)
    assert any("KV of" in problem or "covers" in problem for problem in found)


# -- failures --------------------------------------------------------------------------------------------------------


def test_an_error_that_names_a_row_costs_that_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ModelRows._depth

    def depth(self: ModelRows, row: Row, wanted: int) -> int:
        if row.request.id == "job-1" and row.step > 5:
            raise RowDraftError(row, "on purpose")
        return original(self, row, wanted)

    monkeypatch.setattr(ModelRows, "_depth", depth)
    model, decoder = target()
    jobs = [Job(f"job-{n}", prompt, greedy(40)) for n, prompt in enumerate(PROMPTS[:3])]
    with open_engine(model, decoder.eos_ids, Setup(rows=3), self_drafter()) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) + leftovers(engine) == []
        assert engine.stats().drafter_failures == 1
    assert served["job-1"].spec.accepted <= 5
    assert all(served[name].spec.accepted >= 25 for name in ("job-0", "job-2"))


def test_coverage_beyond_the_target_is_an_error_of_that_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, bool]] = []

    def look(rows: ModelRows, batch: RoundBatch) -> None:
        victim = batch.rows[-1]
        kept = rows._covered[victim.index]
        rows._covered[victim.index] = victim.length + 1
        try:
            rows.preview(batch)
        except RowDraftError as error:
            found.append((str(error), error.row is victim))
        rows._covered[victim.index] = kept

    before_drafts(monkeypatch, look)
    jobs = [Job(f"job-{n}", prompt, greedy(8)) for n, prompt in enumerate(PROMPTS[:2])]
    problems, _ = run(jobs, self_drafter(), Setup(rows=2))
    assert problems == []
    assert found and all(named and "covers" in message for message, named in found)


def test_rows_are_forgotten_when_they_leave() -> None:
    left: list[int] = []

    def look(scheduler: Scheduler) -> None:
        rows = model_rows(scheduler)
        if rows is not None and not scheduler.num_running:
            left.append(len(rows._covered))

    found, _ = run([Job(f"job-{n}", p, greedy(9)) for n, p in enumerate(PROMPTS)], self_drafter(), Setup(rows=2), look)
    assert found == []
    assert left and not any(left)


def test_depths_are_kept_row_by_row() -> None:
    """Rows of smaller depth drop out of later steps; each is asked for what it may have."""
    jobs = [Job(f"job-{n}", p, greedy(24, num_draft_tokens=n)) for n, p in enumerate(PROMPTS)]
    found, served = run(jobs, self_drafter(), Setup(rows=5, depth=4))
    assert found == []
    assert [len(served[f"job-{n}"].spec.drafted_by_pos) for n in range(5)] == [0, 1, 2, 3, 4]


def test_truncated_models_keep_what_is_not_a_layer(tmp_path: Path) -> None:
    cut = load(truncate_model(tiny_model(TinyModel(family="smollm3")), tmp_path / "cut", 1))
    assert cut.num_layers == 1
    assert cut.vocab_size == 320
    with pytest.raises(ValueError, match=r"layers must be in \[1, 2\]"):
        truncate_model(tiny_model("llama"), tmp_path / "more", 3)
    whole = drafting_model()
    same = load(truncate_model(tiny_model(TARGET), tmp_path / "whole", 3))
    hidden = torch.randn(2, whole.hidden_size, dtype=torch.float64)
    assert torch.equal(whole.logits(hidden), same.logits(hidden))
