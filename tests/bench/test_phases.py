"""Phases of rounds: measured on a tiny model, shown from known figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.decode import DecodeSettings
from paceline.bench.phases import (
    ArmPhases,
    PhaseWishes,
    counted_since,
    draw_phases,
    measure_phases,
    parts_together,
    phase_document,
    phase_sheets,
)
from paceline.core.errors import RequestError
from paceline.core.stats import EngineStats
from paceline.testing.models import tiny_model

MACHINE = {"cpu": "a CPU", "threads": 2}
PLAIN = ArmPhases("plain float32", 40, 1.0, 1.0, {"draft": 0.0, "verify": 9.0, "sample": 0.5, "commit": 0.5})
DRAFTING = ArmPhases(
    "lookup float32",
    20,
    1.0,
    2.5,
    {"draft": 2.0, "verify": 12.0, "sample": 0.75, "commit": 1.25},
    {"draft": {"aten::add": 2.0}, "verify": {"aten::mm": 4.0, "aten::add": 3.0}},
    {
        "layers.0.attention": 3.0,
        "layers.0.attention.qkv": 1.0,
        "layers.1.attention": 5.0,
        "layers.1.attention.qkv": 2.0,
        "head": 4.0,
    },
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "some.jsonl"
    texts = ("the rain in the main", "repeat this: one two three one two three", "x" * 1100)
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), "utf-8")
    return str(path)


def settings(prompts: str, **changes: object) -> DecodeSettings:
    common = {"model": str(tiny_model("llama")), "dtypes": ("float32",), "prompts": (prompts,), "threads": 1}
    sizes = {"max_tokens": 12, "ignore_eos": True, "device": "cpu", "peers": False, "methods": ("ngram",)}
    return DecodeSettings(**(common | sizes | changes))  # type: ignore[arg-type]


def test_every_arm_is_timed_and_looked_into(prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    asked = settings(prompts)
    machine, found = measure_phases(asked, PhaseWishes(operations=True, parts=True))
    plain, drafting = found
    assert (plain.arm, plain.rounds, plain.rows, plain.tokens) == ("plain float32", 22, 1.0, pytest.approx(24 / 22))
    assert plain.ms["verify"] > plain.ms["draft"] >= 0
    assert drafting.rounds <= plain.rounds
    assert sum(plain.operations["verify"].values()) > 50
    assert {"head", "layers.0.attention.qkv"} <= plain.parts.keys()
    json.dumps(phase_document(asked, machine, found))


def test_rows_decode_together_if_asked(prompts: str) -> None:
    _, found = measure_phases(settings(prompts, batch=2, methods=("none",)), PhaseWishes())
    assert 1.0 < found[0].rows <= 2.0
    assert (found[0].operations, found[0].parts) == ({}, {})


def test_prompts_without_room_are_refused(prompts: str) -> None:
    with pytest.raises(RequestError, match="none leaves room"):
        measure_phases(settings(prompts, max_tokens=1020), PhaseWishes())


def test_what_was_counted_before_is_taken_off() -> None:
    before = EngineStats(rounds=3, plain_rounds=3, generation_tokens=4, phase_ms={"draft": 1.0, "rounds": 3.0})
    after = EngineStats(
        rounds=8, num_drafts=2, plain_rounds=6, generation_tokens=14, phase_ms={"draft": 6.0, "rounds": 8.0}
    )
    before.op_counts, after.op_counts = {"draft": {"a": 1}}, {"draft": {"a": 4, "b": 2}, "verify": {"a": 5}}
    found = counted_since(before, after)
    assert (found.rounds, found.num_drafts, found.plain_rounds, found.generation_tokens) == (5, 2, 3, 10)
    assert found.phase_ms == {"draft": 5.0, "rounds": 5.0}
    assert found.op_counts == {"draft": {"a": 3, "b": 2}, "verify": {"a": 5}}


def test_the_sheets_say_ms_and_shares() -> None:
    phases, operations, parts = phase_sheets([PLAIN, DRAFTING])
    assert phases.rows[0][4:] == ("0.00 (0%)", "9.00 (90%)", "0.50 (5%)", "0.50 (5%)", "10.00", "10.00")
    assert phases.rows[1][-2:] == ("16.00", "6.40")
    assert operations.rows == [("aten::add", "2.0", "3.0"), ("aten::mm", "0.0", "4.0"), ("all 2 kinds", "2.0", "7.0")]
    assert dict(zip((row[0] for row in parts.rows), (row[1] for row in parts.rows), strict=True)) == {
        "attention.qkv": "3.00",
        "head": "4.00",
        "attention, rest": "5.00",
    }


def test_parts_add_up_to_what_contains_them() -> None:
    together = parts_together(DRAFTING.parts)
    assert sum(together.values()) == pytest.approx(3.0 + 5.0 + 4.0)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plot'")
    draw_phases(DecodeSettings(), MACHINE, [PLAIN, DRAFTING], tmp_path / "phases.png")
    assert (tmp_path / "phases.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
