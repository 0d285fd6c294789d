"""The graph runner on a backend that records plain functions: buckets, padding, uploads, reads, fallback."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import IntegrityError
from paceline.engine.device_round import RoundInputs, RoundShape
from paceline.engine.draws import Flavor
from paceline.engine.graph_runner import (
    BUCKETS,
    IN_FLIGHT,
    GraphLauncher,
    RoundSetting,
    buckets_for,
    input_views,
    upload_size,
)
from paceline.engine.launch import RoundAsk
from paceline.testing.recorded import RecordedFunctions

ROWS = 6
PADDING = ROWS
GREEDY = Flavor(all_greedy=True, any_filter=False)


def drafts(depth: int) -> RoundShape:
    return RoundShape(depth, 0, GREEDY)


def given_shape(depth: int) -> RoundShape:
    return RoundShape(0, depth, GREEDY)


def ask(indices: list[int], shape: RoundShape, given: list[list[int]] | None = None) -> RoundAsk:
    return RoundAsk(indices, [shape.drafts] * len(indices), given or [[] for _ in indices], shape)


class Table:
    """Rows with a length and a pending token; the padding row is not live. A round advances live rows."""

    def __init__(self) -> None:
        self.length = torch.arange(ROWS + 1) * 10
        self.pending = torch.arange(ROWS + 1) * 7
        self.live = torch.ones(ROWS + 1, dtype=torch.bool)
        self.live[PADDING] = False
        self.calls: list[int] = []

    def round(self, inputs: RoundInputs, shape: RoundShape) -> torch.Tensor:
        """A row accepts the leading proposals that follow its pending token by one, two, ...; then it advances."""
        index = inputs.index
        self.calls.append(len(index))
        live = self.live[index].to(torch.int64)
        steps = torch.arange(shape.given)
        right = inputs.proposals == self.pending[index][:, None] + 1 + steps
        right &= steps < inputs.lengths[:, None]
        emitted = live * (1 + right.to(torch.int64).cumprod(1).sum(1) + inputs.depths)
        self.length[index] += emitted
        self.pending[index] += emitted
        return torch.stack([index, emitted, self.length[index]], 1)


def launcher_of(table: Table, backend: RecordedFunctions, padding: int = PADDING, rows: int = ROWS) -> GraphLauncher:
    setting = RoundSetting(torch.device("cpu"), padding, rows, lambda: backend.log.append("refresh"))
    return GraphLauncher(table.round, backend, setting)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, (1,)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (64, BUCKETS), (100, BUCKETS)]
)
def test_buckets_end_with_the_largest_batch(rows: int, expected: tuple[int, ...]) -> None:
    assert buckets_for(rows) == expected


def test_the_upload_has_room_for_every_input_and_no_two_overlap() -> None:
    packed = torch.arange(upload_size(3, 4))
    inputs = input_views(packed, 3, 4)
    parts = [inputs.index, inputs.depths, inputs.lengths, inputs.proposals.reshape(-1)]
    assert torch.cat(parts).tolist() == packed.tolist()


def test_capturing_changes_no_row() -> None:
    table, backend = Table(), RecordedFunctions()
    before = table.length.clone(), table.pending.clone()
    report = launcher_of(table, backend).capture([drafts(0), given_shape(2)])
    assert report.captured == 2 * len(buckets_for(ROWS))
    assert report.held == backend.held > 0
    assert torch.equal(table.length, before[0])
    assert torch.equal(table.pending, before[1])


def test_the_widest_round_is_captured_first() -> None:
    table = Table()
    launcher_of(table, RecordedFunctions()).capture([drafts(0), drafts(3)])
    assert table.calls[0] == ROWS
    assert table.calls[-1] == 1


def test_progress_ends_with_the_last_graph() -> None:
    told: list[tuple[str, int, int]] = []
    launcher_of(Table(), RecordedFunctions()).capture([drafts(1)], lambda *entry: told.append(entry))
    total = len(buckets_for(ROWS))
    assert [done for _, done, _ in told] == list(range(total + 1))
    assert {count for _, _, count in told} == {total}


_ROUND = st.tuples(
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True), st.integers(0, 3), st.booleans()
)


def _same_as_eager(rounds: list[tuple[list[int], int, bool]], padding: int) -> bool:
    """Whether replayed rounds give the results and columns that eager ones do."""
    table, plain = Table(), Table()
    launcher = launcher_of(table, RecordedFunctions(), padding)
    launcher.capture([make(depth) for depth in range(4) for make in (drafts, given_shape)])
    for indices, depth, uploads in rounds:
        shape = given_shape(depth) if uploads else drafts(depth)
        tokens = [[int(plain.pending[i]) + 1 + step for step in range(min(depth, i % 4))] for i in indices]
        wanted_ask = ask(indices, shape, tokens if uploads else None)
        assert launcher.has_graph(len(indices), shape)
        launched = launcher.launch(wanted_ask)
        columns = shape.given
        inputs = RoundInputs(
            torch.tensor(indices),
            torch.tensor(wanted_ask.depths),
            torch.tensor([(list(row) + [0] * columns)[:columns] for row in wanted_ask.given]),
            torch.tensor([min(len(row), columns) for row in wanted_ask.given]),
        )
        if launched.read() != plain.round(inputs, shape).tolist():
            return False
    return torch.equal(table.length, plain.length) and torch.equal(table.pending, plain.pending)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(_ROUND, min_size=1, max_size=8))
def test_replayed_rounds_equal_eager_rounds(rounds: list[tuple[list[int], int, bool]]) -> None:
    assert _same_as_eager(rounds, PADDING)


def test_a_padding_row_that_is_live_is_noticed() -> None:
    """The comparison above has teeth: filling up with a row in use advances that row."""
    assert not _same_as_eager([([0, 1, 2], 1, False), ([5], 0, False)], padding=5)


def test_a_round_waits_for_nothing_until_it_is_read() -> None:
    backend = RecordedFunctions()
    launcher = launcher_of(Table(), backend)
    launcher.capture([drafts(0)])
    backend.log.clear()
    first, second = (launcher.launch(ask([0], drafts(0))) for _ in range(2))
    assert backend.log == ["refresh", "replay", "refresh", "replay"]
    assert first.read() == [[0, 1, 1]]
    assert second.read() == [[0, 1, 2]]
    assert backend.log[4:] == ["wait", "wait"]


def test_figures_of_rounds_in_flight_do_not_share_memory() -> None:
    launcher = launcher_of(Table(), RecordedFunctions())
    launcher.capture([drafts(0)])
    rounds = [launcher.launch(ask([3], drafts(0))) for _ in range(IN_FLIGHT)]
    assert [entry.read()[0][2] for entry in rounds] == [31, 32, 33]


def test_buffers_are_waited_for_before_they_serve_again() -> None:
    """A round that nobody reads is dropped; what is read too late is refused, not wrong."""
    backend = RecordedFunctions()
    launcher = launcher_of(Table(), backend)
    dropped = launcher.launch(ask([0], drafts(0)))
    for _ in range(IN_FLIGHT - 1):
        launcher.launch(ask([1], drafts(0)))
    assert "wait" not in backend.log
    launcher.launch(ask([2], drafts(0)))
    assert backend.log.count("wait") == 1
    with pytest.raises(IntegrityError, match="read after"):
        dropped.read()


def test_proposals_beyond_the_shape_are_cut() -> None:
    table = Table()
    launcher = launcher_of(table, RecordedFunctions())
    launcher.capture([given_shape(2)])
    pending = int(table.pending[1])
    figures = launcher.launch(ask([1], given_shape(2), [[pending + 1, pending + 2, pending + 3]])).read()
    assert figures[0][1] == 3


def test_an_upload_leaves_nothing_of_the_round_before() -> None:
    table = Table()
    launcher = launcher_of(table, RecordedFunctions())
    launcher.capture([given_shape(2)])
    for _ in range(IN_FLIGHT):
        pending = int(table.pending[1])
        assert launcher.launch(ask([1], given_shape(2), [[pending + 1, pending + 2]])).read()[0][1] == 3
    table.pending[1] -= 3  # what was proposed last would be right again
    assert launcher.launch(ask([1], given_shape(2))).read()[0][1] == 1


def test_a_round_that_cannot_be_captured_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    table, backend = Table(), RecordedFunctions()
    eager = table.round

    def refusing(inputs: RoundInputs, shape: RoundShape) -> torch.Tensor:
        if shape.depth == 2 and int(inputs.index[0]) == PADDING:
            raise RuntimeError("this reads a value on the host")
        return eager(inputs, shape)

    launcher = GraphLauncher(refusing, backend, RoundSetting(torch.device("cpu"), PADDING, ROWS, lambda: None))
    with caplog.at_level(logging.WARNING, "paceline.engine"):
        report = launcher.capture([drafts(0), drafts(2)])
    assert "reads a value on the host" in report.failures[drafts(2)]
    assert report.captured == len(buckets_for(ROWS))
    assert [record for record in caplog.records if "without a graph" in record.message]
    assert not launcher.has_graph(1, drafts(2))
    assert launcher.has_graph(1, drafts(0))
    table.calls.clear()
    assert launcher.launch(ask([0, 1, 2], drafts(2))).read() == [[0, 3, 3], [1, 3, 13], [2, 3, 23]]
    assert table.calls == [3]  # as it is: no padding


def test_batches_beyond_the_largest_bucket_run_eagerly() -> None:
    launcher = launcher_of(Table(), RecordedFunctions(), rows=2)
    launcher.capture([drafts(0)])
    assert not launcher.has_graph(3, drafts(0))
    assert len(launcher.launch(ask([0, 1, 2], drafts(0))).read()) == 3


def test_a_narrower_round_replays_the_next_wider_graph() -> None:
    """Its figures are those of the round asked for: five heads, its own proposals, its own draws."""

    def run(inputs: RoundInputs, shape: RoundShape) -> torch.Tensor:
        rows, columns = inputs.proposals.shape
        heads = torch.stack([inputs.index, inputs.lengths, *[torch.full((rows,), columns)] * 3], 1)
        draws = torch.arange(100, 100 + columns + 1).expand(rows, -1)
        return torch.cat([heads, inputs.proposals, draws], 1)

    launcher = GraphLauncher(run, RecordedFunctions(), RoundSetting(torch.device("cpu"), PADDING, ROWS, lambda: None))
    launcher.capture([drafts(0), given_shape(2), given_shape(5)])
    figures = launcher.launch(ask([3, 4], given_shape(3), [[7, 8, 9], [6]])).read()
    assert figures == [[3, 3, 5, 5, 5, 7, 8, 9, 100, 101, 102, 103], [4, 1, 5, 5, 5, 6, 0, 0, 100, 101, 102, 103]]
    assert launcher.launch(ask([3], given_shape(2), [[7, 8]])).read() == [[3, 2, 2, 2, 2, 7, 8, 100, 101, 102]]
    assert not launcher.has_graph(1, given_shape(6))
    assert not launcher.has_graph(1, drafts(1))


def test_shapes_of_little_use_are_captured_for_small_batches_only() -> None:
    launcher = launcher_of(Table(), RecordedFunctions())
    report = launcher.capture([given_shape(32)], most=lambda shape: 1)
    assert report.captured == 1
    assert launcher.has_graph(1, given_shape(20))
    assert not launcher.has_graph(2, given_shape(20))


def test_what_is_recorded_may_differ_from_what_runs_eagerly() -> None:
    table = Table()

    def eager(inputs: RoundInputs, shape: RoundShape) -> torch.Tensor:
        return -table.round(inputs, shape)

    setting = RoundSetting(torch.device("cpu"), PADDING, ROWS, lambda: None)
    launcher = GraphLauncher(eager, RecordedFunctions(), setting, table.round)
    launcher.capture([drafts(0)])
    assert launcher.launch(ask([1], drafts(0))).read() == [[1, 1, 11]]
    assert launcher.launch(ask([1], drafts(1))).read() == [[-1, -2, -13]]


def test_a_lazy_launcher_captures_exactly_what_it_launches() -> None:
    table, backend = Table(), RecordedFunctions()
    setting = RoundSetting(torch.device("cpu"), PADDING, ROWS, lambda: None)
    launcher = GraphLauncher(table.round, backend, setting, lazy=True)
    launcher.capture([given_shape(4)])
    launcher.launch(ask([1, 2, 3], given_shape(2))).read()
    assert launcher.report.captured == len(launcher.buckets) + 1
    assert backend.log.count("replay") == 1
    table.calls.clear()
    launcher.launch(ask([1, 2, 3, 4], given_shape(2))).read()
    assert table.calls == [4]  # the same bucket: a replay
