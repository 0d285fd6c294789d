"""S33: memory that cannot be had is an error at start, naming the setting or the drafter; never a silent request."""

from __future__ import annotations

import pytest
from tests.support.tiny import FAMILY, decoder, drafter, engine_over, greedy, prompts, serve

import paceline.engine.memory as memory_module
from paceline.core.errors import ConfigError, PacelineError, RequestError
from paceline.draft.base import Constraints, DraftRows, DrawPort, TargetView
from paceline.draft.kinds.draft_model import ModelDrafter
from paceline.testing.collect import Collector
from paceline.testing.drafters import EmptyDrafter
from paceline.testing.grid import truncated
from paceline.testing.harness import Job, Setup, compare, leftovers, run_jobs


class NoMemory(EmptyDrafter):
    """A drafter whose state cannot be allocated."""

    id = "hungry"

    def open(self, view: TargetView, draw: DrawPort, constraints: Constraints) -> DraftRows:
        raise MemoryError("the draft KV takes 40 GB")


def test_s33_a_kv_pool_larger_than_memory_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_tokens.*GB"), engine_over(Setup(kv_cache_tokens=10**13), None):
        pass


def test_s33_a_drafter_without_memory_is_an_error_at_start_that_names_it() -> None:
    with pytest.raises((PacelineError, MemoryError), match="40 GB"), engine_over(Setup(), NoMemory()):
        pass


def test_s33_a_draft_cache_that_does_not_fit_beside_the_targets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(rows=2, kv_cache_tokens=65536)
    with engine_over(setup, None) as engine:
        memory = engine.info()["memory"]
    monkeypatch.setattr(memory_module, "available_bytes", lambda: memory["kv_cache"] + memory["transient"])
    with engine_over(setup, None) as engine:
        jobs = [Job("fits", (5, 6), greedy(4))]
        assert compare(jobs, decoder(), run_jobs(engine, jobs)) == []
    with pytest.raises(ConfigError, match=r"draft.*GB"), engine_over(setup, ModelDrafter(truncated(FAMILY))):
        pass


def test_s33_a_request_that_can_never_fit_is_refused_not_left_waiting() -> None:
    with engine_over(Setup(rows=2, kv_cache_tokens=64), drafter("D-lookup")) as engine:
        for prompt, max_tokens in [((5,) * 64, 1), ((5,) * 200, None), ((5,) * 40, 40)]:
            with pytest.raises(RequestError, match="kv_cache_tokens"):
                engine.add_request(prompt, greedy(max_tokens), Collector())
        jobs = [Job("fits", (5,) * 40, greedy(24, ignore_eos=True))]
        assert compare(jobs, decoder(), run_jobs(engine, jobs)) == []


@pytest.mark.parametrize("name", ["none", "D-self", "D-lookup"])
@pytest.mark.parametrize("tokens", [64, 96, 160])
def test_s33_a_small_pool_serves_everybody_in_turn(tokens: int, name: str) -> None:
    jobs = [Job(f"job-{n}", prompt[:20], greedy(30)) for n, prompt in enumerate(prompts(10))]
    with engine_over(Setup(rows=6, kv_cache_tokens=tokens), drafter(name)) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder(), served) == []
        assert leftovers(engine) == []


def test_s33_depth_is_given_up_before_a_row_is() -> None:
    jobs = [Job("job", (5, 6, 7, 8), greedy(44, ignore_eos=True))]
    got = serve(Setup(rows=1, depth=8, kv_cache_tokens=48), jobs, drafter("D-self"))
    assert compare(jobs, decoder(), got) == []
    assert got["job"].spec.accepted > 0
