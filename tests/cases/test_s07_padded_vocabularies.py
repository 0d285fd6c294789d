"""S07: one tokenizer, heads padded to different sizes: the pair loads, streams are plain, no id outside is drafted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.draft.model_kit import target

from paceline.core.batch import Draft, RoundBatch
from paceline.core.request import SamplingParams
from paceline.draft.artifact import LoadRequest
from paceline.draft.base import DraftProvider, TargetView
from paceline.draft.kinds._model_rows import ModelRows
from paceline.draft.registry import default_registry
from paceline.engine.build import target_view
from paceline.models.artifact import open_artifact
from paceline.models.tokenizer import load_tokenizer
from paceline.testing.harness import Job, Setup, compare, leftovers, open_engine, run_jobs
from paceline.testing.models import TinyModel, tiny_model

TOKENS = 320
PAIRS = [(512, 448), (448, 512), (320, 512), (512, 320)]


def model(head: int) -> TinyModel:
    return TinyModel(vocab_size=head, mixing=0.5, sharpness=1.5)


def loaded(view: TargetView, head: int) -> DraftProvider:
    request = LoadRequest(directory=tiny_model(model(head)), view=view, num_draft_tokens=3)
    return default_registry().load("draft_model", request).provider


def view_of(head: int) -> TargetView:
    artifact = open_artifact(str(tiny_model(model(head))))
    return target_view(target(model(head))[0], artifact.eos_ids(), load_tokenizer(artifact))


def jobs_of(head: int) -> list[Job]:
    """Greedy and sampled rows; every prompt holds ids that only the larger head has, where there are such."""
    prompts: list[Any] = [tuple((n * 7 + place * 31) % head for place in range(11 + n)) for n in range(4)]
    options = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.95}, {"temperature": 1.5}]
    return [
        Job(f"job-{n}", (*prompt, head - 1), SamplingParams(max_tokens=28, seed=n, ignore_eos=True, **options[n]))
        for n, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(("head", "draft_head"), PAIRS)
def test_s07_streams_are_plain_and_drafts_stay_inside(
    head: int, draft_head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted: set[int] = set()
    original = ModelRows.draft

    def draft(self: ModelRows, batch: RoundBatch) -> Draft:
        found = original(self, batch)
        drafted.update(token for tokens in found.to_lists() for token in tokens)
        return found

    monkeypatch.setattr(ModelRows, "draft", draft)
    binding, decoder = target(model(head))
    jobs = jobs_of(head)
    with open_engine(binding, decoder.eos_ids, Setup(rows=3, chunk=8), loaded(view_of(head), draft_head)) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder, served) + leftovers(engine) == []
        assert engine.stats().drafter_failures == 0
    assert drafted and max(drafted) < min(head, draft_head)
    emitted = {token for got in served.values() for token in got.tokens}
    assert head <= draft_head or max(emitted) >= draft_head, "ids that the drafter does not have were fed to it"
    assert sum(got.spec.drafted for got in served.values()) > 40
