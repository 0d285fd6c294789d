"""S31: rows that join, leave and are drafted differently never see each other's text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.tiny import decoder, drafter, engine_over, greedy, serve

from paceline.core.row import Row
from paceline.testing.collect import Behaviour
from paceline.testing.drafters import DeviceOracleDrafter, OracleDrafter, RowDrafter, another_id, upcoming
from paceline.testing.harness import Job, Setup, compare, leftovers, run_jobs

ROWS = 16


class MixedDrafter(RowDrafter):
    """Another way of drafting for each row: nothing, one token, wrong ones, right ones, right ones of odd lengths."""

    id = "mixed"

    def propose_for(self, row: Row, depth: int) -> Sequence[int]:
        truth = upcoming(decoder().recorded, row)
        kind = row.request.prompt_ids[0] % 5
        if kind == 0:
            return []
        if kind == 1:
            return truth[:1]
        if kind == 2:
            return [another_id(token, self.vocab_size) for token in truth[:depth]]
        return truth[: depth if kind == 3 else len(row.tokens) % (depth + 1)]


def code_word_jobs() -> list[Job]:
    """Sixteen requests, each with a private word repeated in its prompt; half of them join while others decode."""
    jobs = []
    for n in range(ROWS):
        word = (10 + 3 * n, 11 + 3 * n, 12 + 3 * n)
        prompt = (4 + n, *word * (1 + n % 4), 5 + n)
        after = None if n < ROWS // 2 else (f"row-{n - ROWS // 2}", 3 * (n % 3) + 1)
        ways = {3: Behaviour(stop_after=5), 6: Behaviour(abort_after=4), 9: Behaviour(raise_after=7)}
        jobs.append(Job(f"row-{n}", prompt, greedy(10 + 7 * n % 23), ways.get(n, Behaviour()), after))
    return jobs


@pytest.mark.parametrize("device_round", [True, False])
@pytest.mark.parametrize("rows", [4, ROWS])
def test_s31_every_row_is_itself_alone(rows: int, device_round: bool) -> None:
    jobs = code_word_jobs()
    with engine_over(Setup(rows=rows, chunk=8, device_round=device_round), MixedDrafter()) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder(), served) == []
        assert leftovers(engine) == []
    kinds = {job.prompt[0] % 5: served[job.name].spec for job in jobs if served[job.name].reason == "length"}
    assert kinds[0].drafted == 0 and kinds[2].accepted == 0 and kinds[3].accepted == kinds[3].drafted > 0


def test_s31_no_row_speaks_another_rows_code_word() -> None:
    jobs = code_word_jobs()
    served = serve(Setup(rows=ROWS), jobs, MixedDrafter())
    words = {job.name: set(job.prompt[1:4]) for job in jobs}
    for job in jobs:
        plain = set(decoder().run(job.prompt, job.params).tokens)
        foreign = set().union(*(word for name, word in words.items() if name != job.name)) - plain
        assert not foreign & set(served[job.name].tokens)


ORDERS = {"host": (False, False), "device": (True, False), "ahead": (True, True)}


def passing_jobs() -> list[Job]:
    """A row joins or leaves about every three tokens of the first one; those in the middle of the batch leave too."""
    jobs = [Job("row-0", (4, 10, 11, 12, 5), greedy(70))]
    for n in range(1, ROWS):
        word = (10 + 3 * n, 11 + 3 * n, 12 + 3 * n)
        leaves = (Behaviour(stop_after=4), Behaviour(), Behaviour(abort_after=6), Behaviour(raise_after=5))[n % 4]
        jobs.append(Job(f"row-{n}", (4 + n, *word, *word, 5 + n), greedy(7 + n % 5), leaves, ("row-0", 1 + 4 * n)))
    return jobs


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("rows", [2, 4, ROWS])
@pytest.mark.parametrize("name", ["none", "mixed", "device", "device ragged"])
def test_s31_a_row_joins_or_leaves_every_few_rounds(name: str, rows: int, order: str) -> None:
    device_round, run_ahead = ORDERS[order]
    setup = Setup(rows=rows, chunk=8, depth=3, device_round=device_round, run_ahead=run_ahead)
    oracle = DeviceOracleDrafter(decoder().recorded, wrong_every=3, ragged=name == "device ragged")
    provider = {"none": None, "mixed": MixedDrafter()}.get(name, oracle)
    jobs = passing_jobs()
    with engine_over(setup, provider) as engine:
        served = run_jobs(engine, jobs)
        assert compare(jobs, decoder(), served) + leftovers(engine) == []
        stats = engine.stats()
    used = [index for got in served.values() for index in got.indices]
    assert rows == ROWS or len(set(used)) < len(used), "indices are used again"
    if order == "ahead" and name != "mixed":
        assert stats.ahead_rounds > 10 and stats.dropped_positions > 0
        assert stats.host_reads == stats.rounds == stats.device_rounds


def test_s31_rows_that_run_ahead_propose_what_they_propose_alone() -> None:
    """Each row's figures are those of its solo run, whoever joins or leaves while a round is in flight."""
    setup = Setup(rows=ROWS, chunk=8, depth=3, device_round=True)
    jobs = [Job(job.name, job.prompt, job.params, after=job.after) for job in passing_jobs()]
    together = serve(setup, jobs, DeviceOracleDrafter(decoder().recorded, wrong_every=4))
    for job in jobs:
        own = Job(job.name, job.prompt, job.params)
        alone = serve(setup, [own], DeviceOracleDrafter(decoder().recorded, wrong_every=4))[job.name]
        assert together[job.name].spec == alone.spec and together[job.name].bursts == alone.bursts


@pytest.mark.parametrize("name", ["D-self", "D-lookup"])
def test_s31_acceptance_in_a_batch_is_acceptance_alone(name: str) -> None:
    jobs = [Job(job.name, job.prompt, greedy(30), after=job.after) for job in code_word_jobs()]
    together = serve(Setup(rows=ROWS), jobs, drafter(name))
    for job in jobs:
        alone = serve(Setup(rows=1), [Job(job.name, job.prompt, job.params)], drafter(name))[job.name].spec
        spec = together[job.name].spec
        assert (spec.drafted, spec.accepted, spec.acceptance_lengths) == (
            alone.drafted,
            alone.accepted,
            alone.acceptance_lengths,
        )


def test_s31_a_drafter_that_serves_one_rows_text_to_another_only_loses_acceptance() -> None:
    class Crossed(OracleDrafter):
        """Proposes for every row what the first row it met will say."""

        first: Row | None = None

        def propose_for(self, row: Row, depth: int) -> Sequence[int]:
            self.first = self.first or row
            return upcoming(decoder().recorded, self.first)[:depth]

    jobs = code_word_jobs()
    served = serve(Setup(rows=ROWS), jobs, Crossed(decoder().recorded))
    assert compare(jobs, decoder(), served) == []
