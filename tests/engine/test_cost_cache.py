"""Cost tables on disk: what is kept comes back, everything else is measured again and never an error."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.costs import CostTable, Grid
from paceline.engine.cost_cache import CostCache, CostKey, Kept

KEY = CostKey("demo@1", 1000, "float32", "a CPU", 2, "lookup", 0, 6, 8, 2048, False, ("0.1", "2.13"))
TABLE = CostTable(Grid(((1, 2), (64,)), (0.01, 0.02)), Grid(((1,), (1, 4), (64,)), (0.01, 0.015)), error=0.04)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    cache = CostCache(tmp_path / "not" / "there" / "yet")
    assert cache.load(KEY) is None
    assert cache.save(KEY, TABLE)
    assert cache.load(KEY) == Kept(TABLE)
    assert [path.name for path in cache.directory.iterdir()] == [f"{KEY.digest}.json"]


@pytest.mark.parametrize("name", [field.name for field in fields(CostKey)])
def test_each_field_of_the_key_tells_tables_apart(tmp_path: Path, name: str) -> None:
    changed: dict[str, Any] = {name: ("0.2", "2.13") if name == "versions" else f"{getattr(KEY, name)}0"}
    other = replace(KEY, **changed)
    cache = CostCache(tmp_path)
    cache.save(KEY, TABLE)
    assert other.digest != KEY.digest
    assert cache.load(other) is None


def damage(text: str) -> dict[str, str]:
    content = json.loads(text)
    foreign = content | {"key": KEY.plain() | {"model": "other@1"}}
    falling = content | {"costs": content["costs"] | {"plain": {"axes": [[2, 1], [64]], "values": [1.0, 2.0]}}}
    infinite = content | {"costs": content["costs"] | {"plain": {"axes": [[1], [64]], "values": ["Infinity"]}}}
    return {
        "cut": text[: len(text) // 2],
        "empty": "",
        "list": "[]",
        "number": "3",
        "no costs": json.dumps({name: part for name, part in content.items() if name != "costs"}),
        "foreign": json.dumps(foreign),
        "older": json.dumps(content | {"format": 0}),
        "axes": json.dumps(falling),
        "infinite": json.dumps(infinite),
        "no number of tries": json.dumps(content | {"tries": "many"}),
        "costs of another kind": json.dumps(content | {"costs": [1, 2]}),
    }


@pytest.mark.parametrize("kind", sorted(damage(json.dumps({"costs": TABLE.to_json()}))))
def test_a_file_that_cannot_be_used_is_ignored_with_a_word(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CostCache(tmp_path)
    cache.save(KEY, TABLE)
    path = cache.path(KEY)
    path.write_text(damage(path.read_text("utf-8"))[kind], "utf-8")
    with caplog.at_level(logging.WARNING, "paceline.costs"):
        assert cache.load(KEY) is None
    assert "measured again" in caplog.text
    assert cache.save(KEY, TABLE)
    assert cache.load(KEY) == Kept(TABLE)


def test_how_often_it_was_measured_is_kept(tmp_path: Path) -> None:
    cache = CostCache(tmp_path)
    cache.save(KEY, TABLE, 2)
    assert cache.load(KEY) == Kept(TABLE, 2)


def test_a_file_that_is_no_text_is_ignored(tmp_path: Path) -> None:
    cache = CostCache(tmp_path)
    cache.save(KEY, TABLE)
    cache.path(KEY).write_bytes(b"\xff\xfe\x00")
    assert cache.load(KEY) is None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = CostCache(tmp_path / "file" / "below")
    with caplog.at_level(logging.WARNING, "paceline.costs"):
        assert not cache.save(KEY, TABLE)
        assert cache.load(KEY) is None
    assert "is not kept" in caplog.text


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CostCache(tmp_path)
    cache.save(KEY, TABLE)

    def refuse(source: str, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("paceline.engine.cost_cache.os.replace", refuse)
    assert not cache.save(KEY, TABLE.scaled(plain=2.0))
    assert cache.load(KEY) == Kept(TABLE)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_directory_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    assert CostCache().directory == tmp_path / "costs"
