"""What a measurement looks like as JSON, tables, Markdown and a picture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.kit import TEXT, measurement, own, run

from paceline.bench import plot, report
from paceline.core.errors import ConfigError

LOAD = ((0.1, 0.1, 0.1), (1.9, 1.0, 0.5))


def test_the_document_is_json_and_complete() -> None:
    document = json.loads(json.dumps(report.document(measurement(), LOAD)))
    assert document["bench"] == "decode"
    assert document["machine"]["load_average"] == [list(entry) for entry in LOAD]
    assert document["settings"]["methods"][0] == "none"
    assert [prompt["status"] for prompt in document["prompts"]][:3] == ["measured"] * 3
    assert "arms" not in document["prompts"][3]
    assert document["prompts"][0]["arms"]["drafting float32"]["speedup"] == pytest.approx(2.0)
    copied = {arm["arm"]: arm for arm in document["classes"]["copy-heavy"]}
    assert copied["drafting float32"]["acceptance"]["by_position"] == pytest.approx([1.0, 0.75, 0.75])
    assert document["all_equal"] is True


def test_sheets_say_what_was_left_out_and_tried() -> None:
    sheets = {sheet.title: sheet for sheet in report.sheets(measurement())}
    assert sheets["Prompts left out"].rows == [("short", "file", "answer of 1 tokens, fewer than 24")]
    assert ("float32", "sdpa", "5", "4.0") in sheets["Settings of transformers that were tried"].rows
    row = dict(zip(sheets["Prompts"].headings, sheets["Prompts"].rows[0], strict=True))
    assert row["drafting float32"] == "8 (2.00x)"
    assert all(len(row) == len(sheet.headings) for sheet in sheets.values() for row in sheet.rows)


def test_other_tokens_are_marked() -> None:
    found = measurement()
    found.runs["drafting float32", 0] = [run(2.0, TEXT[::-1]), run(3.0)]
    sheet = next(sheet for sheet in report.sheets(found) if sheet.title == "Prompts")
    assert sheet.rows[0][-3].endswith("≠")


def test_markdown_has_a_table_for_every_sheet() -> None:
    text = report.markdown(measurement(), LOAD)
    for sheet in report.sheets(measurement()):
        assert f"## {sheet.title}" in text
    assert "2.00x [2.00, 2.00]" in text


def test_a_busy_machine_is_said() -> None:
    assert not any("busy" in line for line in report.heading_lines(measurement(), LOAD))
    assert any("busy" in line for line in report.heading_lines(measurement(), LOAD[::-1]))


def test_a_broken_promise_is_an_error_and_a_tie_is_not() -> None:
    found = measurement()
    assert report.first_failure(found) is None
    found.runs["drafting float32", 1] = [run(2.0, TEXT[::-1]), run(3.0)]
    assert "on prompt 'two'" in str(report.first_failure(found))
    found.arms[1] = own("drafting", "ties")
    assert report.first_failure(found) is None
    found.batches[1] = replace(found.batches[1], equal=False)
    assert "group 0" in str(report.first_failure(found))


def test_peers_may_give_other_tokens() -> None:
    found = measurement()
    found.runs["transformers float32", 1] = [run(2.0, TEXT[::-1]), run(3.0)]
    assert report.first_failure(found) is None


def test_a_picture_without_matplotlib_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"plot: needs matplotlib.*paceline\[plot\]"):
        plot.require_plot()


def test_a_picture_is_drawn_from_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canvas = _Canvas()
    monkeypatch.setattr(plot, "figure_class", lambda: lambda **size: canvas)
    plot.draw(measurement(), tmp_path / "speeds.png")
    left, right = canvas.axes
    assert sum(len(values) for _, values in left.bars) == 8
    assert [len(xs) for xs, _ in right.points] == [3]
    assert canvas.saved == tmp_path / "speeds.png"


class _Axes:
    def __init__(self) -> None:
        self.bars: list[tuple[range, list[float]]] = []
        self.points: list[tuple[list[float], list[float]]] = []

    def barh(self, places: range, values: list[float], **style: object) -> None:
        self.bars.append((places, values))

    def scatter(self, xs: list[float], ys: list[float], **style: object) -> None:
        self.points.append((xs, ys))

    def __getattr__(self, name: str) -> object:
        return lambda *arguments, **style: None


class _Canvas:
    def __init__(self) -> None:
        self.axes = (_Axes(), _Axes())
        self.saved: Path | None = None

    def subplots(self, rows: int, columns: int, **layout: object) -> tuple[_Axes, _Axes]:
        return self.axes

    def suptitle(self, text: str, **style: object) -> None:
        assert "a CPU" in text

    def savefig(self, path: Path, **style: object) -> None:
        self.saved = path
