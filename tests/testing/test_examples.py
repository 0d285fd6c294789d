"""What authors copy from works: the drafters of ``examples/`` and of ``docs/drafters.md`` keep the contract."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.draft.base import DraftProvider
from paceline.testing.conformance import Coverage, check_provider

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = Coverage(families=("toy",), depths=(1, 4), chunks=(7, 512), batches=(1, 3))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drafters_of(names: dict[str, Any]) -> list[type[DraftProvider]]:
    """The drafters that a namespace defines itself."""
    classes = [thing for thing in names.values() if isinstance(thing, type) and issubclass(thing, DraftProvider)]
    return [drafter for drafter in classes if drafter.__module__ == names["__name__"]]


def page_drafters() -> list[type[DraftProvider]]:
    """The drafters of the page; blocks without a class use them and are not run here."""
    names: dict[str, Any] = {"__name__": "drafters_page"}
    for block in BLOCKS:
        if any(isinstance(node, ast.ClassDef) for node in ast.parse(block).body):
            exec(block, names)
    return drafters_of(names)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_drafters_of_an_example_pass_the_check(path: Path) -> None:
    drafters = drafters_of(vars(load(path)))
    assert drafters, "an example defines a drafter"
    for drafter in drafters:
        report = check_provider(drafter, QUICK)
        assert report.ok, report
        assert report.drafted > 0


def test_the_page_defines_a_drafter_of_each_sort() -> None:
    assert [drafter.id for drafter in page_drafters()] == ["repeat_last", "unigrams"]


@pytest.mark.parametrize("drafter", page_drafters(), ids=lambda drafter: str(drafter.id))
def test_the_drafters_of_the_page_pass_the_check(drafter: type[DraftProvider]) -> None:
    report = check_provider(drafter, QUICK)
    assert report.ok, report
    assert report.drafted > 0


def test_everything_the_page_imports_exists() -> None:
    for block in BLOCKS:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_every_module_and_file_the_page_names_exists() -> None:
    for name in re.findall(r"`(paceline(?:\.\w+)+)`", PAGE):
        importlib.import_module(name)
    for name in re.findall(r"`((?:paceline|examples)/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).exists() or (ROOT / "src" / name).exists(), name


@pytest.fixture
def pairs() -> Any:
    return load(ROOT / "examples" / "pair_drafter.py").PairDrafter


def test_pairs_go_before_single_tokens_and_the_newest_of_equals_wins(pairs: Any) -> None:
    drafter = pairs()
    assert drafter.propose(drafter.new_state(()), [1, 2, 3, 9, 2, 4, 9, 2, 4, 1, 2], 1) == [3], "what followed 1, 2"
    assert drafter.propose(drafter.new_state(()), [2, 3, 2, 4, 8, 2], 1) == [4], "8, 2 is new: the newest after 2"
    assert drafter.propose(drafter.new_state(()), [5, 6, 7], 4) == []


def test_pairs_learn_the_same_whether_the_text_comes_in_parts_or_whole(pairs: Any) -> None:
    text = [n * n % 7 for n in range(40)]
    drafter = pairs()
    state = drafter.new_state(text[:5])
    for end in (5, 6, 9, 23, 40):
        whole = drafter.new_state(text[:5])
        assert drafter.propose(state, text[:end], 4) == drafter.propose(whole, text[:end], 4)
        assert state.counts == whole.counts


def test_pairs_keep_no_more_than_they_were_allowed(pairs: Any) -> None:
    drafter = pairs(max_contexts=10, max_successors=3)
    state = drafter.new_state(())
    drafter.propose(state, [n * n * n % 101 % (2 + n % 30) for n in range(500)], 4)
    assert len(state.counts) == 10
    assert max(map(len, state.counts.values())) <= 3
