"""The depth simulator: traces, replay, the policies, and what the gate must reach on the traces that ship."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from paceline.bench.simulate import CostBook, FixedDepth, Gated, Oracle, replay
from paceline.bench.simulate_report import (
    MIX,
    Cell,
    SimulationSettings,
    document,
    read_costs,
    sheets,
    simulate,
)
from paceline.bench.trace import Trace, interleave, read_traces, shipped_traces, write_traces
from paceline.cli.main import main
from paceline.core.costs import FREE, CostTable, Grid
from paceline.core.errors import ConfigError, RequestError
from paceline.gate.adaptive import AdaptiveGate

#: A plain round costs 1, a proposal 0.25, whatever the rows.
COSTS = CostTable(
    Grid(((1,), (0,)), (1.0,)), Grid.monotone(((1, 2), (1, 2, 10), (0,)), (1.0, 1.25, 3.25, 1.0, 1.0, 3.0)), FREE
)


def trace(accepted: list[int], depth: int = 4, workload: str = "some", match: int = 0, free: bool = True) -> Trace:
    count = len(accepted)
    return Trace(workload, "scripted", 0.0, 10, depth, free, True, (depth,) * count, tuple(accepted), (match,) * count)


def forced(rate: float, requests: int, free: bool, depth: int = 4, length: int = 150) -> list[Trace]:
    """Every token is right with one chance."""
    found = []
    for number in range(requests):
        chance = Random(f"{rate}:{number}")
        right = [chance.random() < rate for _ in range(length + depth)]
        runs = [next((n for n in range(depth) if not right[place + n]), depth) for place in range(length)]
        found.append(trace(runs, depth, free=free))
    return found


# -- traces -----------------------------------------------------------------------------------------------------------


def test_traces_survive_their_file(tmp_path: Path) -> None:
    traces = [trace([0, 3, 2, 1, 0], match=17), trace([4] * 4)]
    write_traces(tmp_path / "some.jsonl", traces)
    assert read_traces(tmp_path / "some.jsonl") == traces


@pytest.mark.parametrize("line", ["{}", "no json", '{"workload": 1}', ""])
def test_a_file_that_holds_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(line + "\n", "utf-8")
    with pytest.raises(RequestError, match=r"some\.jsonl"):
        read_traces(path)
    with pytest.raises(RequestError, match="cannot be read"):
        read_traces(tmp_path / "none.jsonl")


def test_more_right_proposals_than_proposals_are_refused() -> None:
    with pytest.raises(ValueError, match="more right proposals"):
        trace([5])
    with pytest.raises(ValueError, match="length"):
        replace(trace([1]), match=())


def test_traces_that_ship_cover_every_kind_of_work() -> None:
    traces = shipped_traces()
    work = {"free prose", "summarise", "code edit", "extract", "json"}
    for drafter in {found.drafter for found in traces}:
        own = [found for found in traces if found.drafter == drafter]
        assert {found.workload for found in own} == work
        assert {found.temperature for found in own} == {0.0, 0.7}
        assert all(found.synthetic != found.free for found in own)
    assert sum(path.stat().st_size for path in Path(read_file_of_traces()).glob("*.jsonl")) < 300_000


def read_file_of_traces() -> Path:
    from paceline.bench.trace import SHIPPED

    return SHIPPED


def test_neighbours_come_from_different_workloads() -> None:
    mixed = interleave([trace([0], workload=name) for name in ("a", "a", "a", "b")])
    assert [found.workload for found in mixed] == ["a", "b", "a", "a"]


# -- replay -----------------------------------------------------------------------------------------------------------


def test_plain_decoding_takes_one_round_a_token() -> None:
    run = replay([trace([4] * 9)], CostBook(COSTS), FixedDepth(0), 1)
    assert (run.tokens, run.rounds, run.seconds, run.proposed) == (9, 9, 9.0, 0)


def test_a_fixed_depth_by_hand() -> None:
    """Nine tokens to go: 2 right of 2, then 1 right, then 2 right of 2, then the last one."""
    run = replay([trace([2, 0, 0, 1, 0, 3, 0, 0, 0])], CostBook(COSTS), FixedDepth(2), 1)
    assert (run.tokens, run.rounds, run.proposed, run.accepted) == (9, 4, 7, 5)
    assert run.seconds == pytest.approx(3 * 1.5 + 1.25)


def test_requests_take_turns_in_a_batch() -> None:
    run = replay([trace([0] * 5), trace([0] * 2), trace([0] * 4)], CostBook(COSTS), FixedDepth(0), 2)
    assert (run.tokens, run.rounds) == (11, 6)


def test_drafts_that_cost_are_paid() -> None:
    costs = replace(COSTS, draft_grid=Grid(((1,), (1, 2), (0,)), (0.5, 1.0)))
    run = replay([trace([0] * 3, free=False)], CostBook(costs), FixedDepth(2), 1)
    assert run.seconds == pytest.approx(1.5 + 1.0 + 1.5 + 1.0 + 1.25 + 0.5)


def test_the_oracle_never_wastes_a_proposal() -> None:
    traces = forced(0.6, 4, free=True)
    run = replay(traces, CostBook(COSTS), Oracle(CostBook(COSTS)), 1)
    assert run.proposed == run.accepted > 0
    fixed = [replay(traces, CostBook(COSTS), FixedDepth(depth), 1).seconds for depth in range(5)]
    assert run.seconds < min(fixed)


def test_a_replay_is_the_same_each_time() -> None:
    traces = interleave([*forced(0.3, 3, free=True), *forced(0.9, 3, free=True)])
    runs = [replay(traces, CostBook(COSTS), Gated(AdaptiveGate(COSTS, 4), True), 2) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("free", [True, False], ids=["lookup", "model"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.95])
def test_the_gate_never_loses_to_plain_decoding(rate: float, batch: int, free: bool) -> None:
    """Forced acceptance: at least 0.98 of plain decoding, at least 0.95 of the best depth."""
    table = read_costs("cpu-float32").costs
    book = CostBook(table.without_draft() if free else table)
    traces = forced(rate, 10, free)
    fixed = [replay(traces, book, FixedDepth(depth), batch).seconds for depth in range(5)]
    gated = replay(traces, book, Gated(AdaptiveGate(book.table, 4), free), batch).seconds
    assert gated <= fixed[0] / 0.98
    assert gated <= min(fixed) / 0.95


class Stubborn(AdaptiveGate):
    """Broken: drafts as deep as it can."""

    def next(self, rows):  # type: ignore[no-untyped-def]
        super().next(rows)
        return [row.cap for row in rows]


def test_the_comparison_sees_a_gate_that_always_drafts() -> None:
    book = CostBook(read_costs("cpu-float32").costs)
    traces = forced(0.0, 4, free=False)
    plain = replay(traces, book, FixedDepth(0), 1).seconds
    assert replay(traces, book, Gated(Stubborn(book.table, 4), False), 1).seconds > plain / 0.98


# -- the whole --------------------------------------------------------------------------------------------------------


def test_the_gate_on_the_traces_that_ship() -> None:
    """One request at a time, as most people decode: at least 85 percent of what an oracle gains, for lookups."""
    lookups = tuple({found.drafter for found in shipped_traces() if found.free})
    for costs in ("cpu-float32", "h200-8b-eagle3"):
        found = simulate(SimulationSettings(costs=(costs,), batches=(1,), drafters=lookups))
        for cell in found.cells:
            assert cell.gate >= 0.98 and cell.gate >= 0.97 * cell.best_fixed, cell
            if cell.workload == MIX:
                assert cell.gain is not None and cell.gain >= 0.85, cell


def test_lookups_can_be_charged_for_drafts(tmp_path: Path) -> None:
    write_traces(tmp_path / "traces.jsonl", forced(0.8, 2, free=True, length=30))
    free, charged = (
        simulate(SimulationSettings((str(tmp_path / "traces.jsonl"),), ("cpu-float32",), (1,), charge_drafts=charge))
        for charge in (False, True)
    )
    assert all(dear.oracle < cheap.oracle for cheap, dear in zip(free.cells, charged.cells, strict=True))


def test_a_gain_is_not_stated_where_there_is_none() -> None:
    cell = Cell("d", "c", 1, "w", gate=1.0, oracle=1.001, fixed=(0.5, 0.9), tokens=9, synthetic=False)
    assert cell.gain is None and cell.best_depth == 2 and cell.best_fixed == 0.9


def test_costs_are_read_by_name_or_from_a_file(tmp_path: Path) -> None:
    bare, wrapped = tmp_path / "bare.json", tmp_path / "wrapped.json"
    bare.write_text(json.dumps(COSTS.to_json()), "utf-8")
    wrapped.write_text(json.dumps({"name": "mine", "about": "here", "costs": COSTS.to_json()}), "utf-8")
    assert (read_costs(str(bare)).name, read_costs(str(bare)).costs) == ("bare", COSTS)
    assert (read_costs(str(wrapped)).name, read_costs(str(wrapped)).about) == ("mine", "here")
    assert read_costs("cpu-bfloat16").name == "cpu-bfloat16"
    with pytest.raises(ConfigError, match="cpu-bfloat16"):
        read_costs("nowhere")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    write_traces(tmp_path / "traces.jsonl", forced(0.7, 3, free=True, length=30))
    (tmp_path / "costs.json").write_text(json.dumps(COSTS.to_json()), "utf-8")
    return ["--traces", str(tmp_path / "traces.jsonl"), "--costs", str(tmp_path / "costs.json"), "--batch", "1,2"]


def test_the_command_prints_tables_and_ends_with_json(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "simulate", *files, "--report", str(tmp_path / "report.md")]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert [(cell["workload"], cell["batch"]) for cell in found["cells"]] == [
        ("some", 1),
        (MIX, 1),
        ("some", 2),
        (MIX, 2),
    ]
    assert found["cells"][0]["gate"] > 1.0 and found["worst"]["against plain"]["batch"] in (1, 2)
    assert "scripted" in (tmp_path / "report.md").read_text("utf-8")


@pytest.mark.parametrize(
    "more", [["--batch", "none"], ["--batch", "0"], ["--drafters", "nobody"], ["--costs", "nowhere"]]
)
def test_the_command_refuses_what_it_cannot_do(
    files: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "simulate", *files, *more]) != 0
    assert more[0].removeprefix("--") in capsys.readouterr().err


def test_the_document_holds_every_cell(tmp_path: Path) -> None:
    write_traces(tmp_path / "traces.jsonl", forced(0.5, 2, free=True, length=20))
    settings = SimulationSettings((str(tmp_path / "traces.jsonl"),), ("cpu-float32",), (1,))
    found = simulate(settings)
    assert len(document(found)["cells"]) == len(found.cells) == 2
    assert sum(len(sheet.rows) for sheet in sheets(found)[:-1]) == 2
