"""The import table, the environment rule, the names of drafter kinds and the size limits, each with a planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.architecture import rules

from paceline.draft.registry import default_registry

SOURCES = rules.read_sources()
#: Every kind that is or will be registered: a name that has not landed yet may not creep in either.
_PLANNED = {"suffix", "draft_model", "mtp", "nextn", "assistant", "eagle3", "eagle", "dflash", "dflash2", "dspark"}
KINDS = frozenset({"ngram", "medusa"} | _PLANNED | set(default_registry().kinds()))


def test_the_tree_is_read() -> None:
    assert {"core/config.py", "core/env.py", "engine/llm.py", "cli/main.py"} <= SOURCES.keys()


def test_rooms_import_what_the_table_allows() -> None:
    assert rules.import_violations(SOURCES) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/bad.py", "from ..cache.pool import BlockPool"),
        ("core/bad.py", "def f():\n    from paceline.engine import llm"),
        ("gate/bad.py", "import paceline.kernels.linear"),
        ("models/bad.py", "from ..draft import base"),
        ("draft/kinds/bad.py", "from ...engine.llm import LLM"),
        ("draft/kinds/bad.py", "from importlib import import_module\nimport_module('...engine.llm')"),
        ("engine/bad.py", "from ..server import app"),
        ("server/bad.py", "from ..draft import registry"),
        ("bench/bad.py", "from ..cli.main import main"),
        ("cli/bad.py", "from ..testing import tiny"),
        ("cli/bad.py", "from ..draft.base import DraftRows"),
        ("kernels/bad.py", "from .. import cache"),
        ("kernels/bad.py", "if TYPE_CHECKING:\n    from ..cache.pool import BlockPool"),
        ("attic/bad.py", "x = 1"),
    ],
)
def test_a_forbidden_import_is_found(path: str, text: str) -> None:
    assert len(rules.import_violations({path: text})) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/good.py", "from ..draft.registry import default_registry\nfrom ..core import errors"),
        ("cli/good.py", "from ..draft.registry import default_registry\nfrom ..draft import registry"),
        ("draft/kinds/good.py", "from ...core.batch import Draft\nfrom ..base import DraftRows\nfrom . import other"),
        ("core/good.py", "import torch\nfrom .errors import ConfigError\nfrom .. import __version__"),
    ],
)
def test_an_allowed_import_is_let_through(path: str, text: str) -> None:
    assert rules.import_violations({path: text}) == []


def test_rooms_without_torch_load_without_it() -> None:
    assert rules.eager_torch_violations(SOURCES) == []


@pytest.mark.parametrize("path", ["core/bad.py", "gate/bad.py", "cli/bad.py", "__init__.py"])
def test_an_eager_torch_import_is_found(path: str) -> None:
    assert rules.eager_torch_violations({path: "try:\n    import torch\nexcept ImportError:\n    pass"})
    assert not rules.eager_torch_violations({path: "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch"})
    assert not rules.eager_torch_violations({"kernels/good.py": "import torch"})


def test_only_one_module_reads_the_environment() -> None:
    assert rules.environment_violations(SOURCES) == []


@pytest.mark.parametrize(
    "text", ["import os\nx = os.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_a_read_of_the_environment_is_found(text: str) -> None:
    assert len(rules.environment_violations({"engine/bad.py": text})) == 1
    assert rules.environment_violations({"core/env.py": text}) == []


def test_drafter_kinds_are_named_in_their_room_only() -> None:
    assert rules.kind_violations(SOURCES, KINDS) == []


def test_a_drafter_kind_named_elsewhere_is_found() -> None:
    text = "if method == 'ngram':\n    pass"
    assert len(rules.kind_violations({"engine/bad.py": text}, KINDS)) == 1
    assert rules.kind_violations({"draft/good.py": text}, KINDS) == []
    assert rules.kind_violations({"engine/good.py": '"""How ngram is called."""'}, KINDS) == []


def test_sizes() -> None:
    assert rules.size_violations(SOURCES) == []


def test_sizes_of_tests() -> None:
    root = Path(__file__).resolve().parents[1]
    assert [v for v in rules.size_violations(rules.read_sources(root)) if "parameters" not in v] == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * 400,
        "def f():\n" + "    x = 1\n" * 59,
        "class A:\n    def f(self):\n" + "        x = 1\n" * 59,
        "class A:\n" + "    x = 1\n" * 249,
        "def f(a, b, c, d, *, e, f, g, h):\n    pass",
        "class A:\n    async def f(self, a, b, c, d, e, f, g, h):\n        pass",
    ],
)
def test_what_is_too_large_is_found(text: str) -> None:
    assert len(rules.size_violations({"core/bad.py": text})) == 1


def test_what_just_fits_is_let_through() -> None:
    text = "class A:\n    def f(self, a, b, c, d, e, f, *, g):\n" + "        x = 1\n" * 58
    assert rules.size_violations({"core/good.py": text + "\n" * 330}) == []


def test_nothing_is_unfinished() -> None:
    assert rules.unfinished_violations(SOURCES) == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        '"""Doc."""\n# TO' + "DO: later",
        '"""Doc."""\nraise NotImplemented' + "Error",
        '"""Doc."""\ndef f():\n    import pickle',
    ],
)
def test_what_is_unfinished_is_found(text: str) -> None:
    assert len(rules.unfinished_violations({"core/bad.py": text})) == 1
