"""What importing the package and asking the command line for help load, seen from a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("torch", "transformers", "tokenizers", "numpy", "huggingface_hub")


def _heavy_modules_after(statement: str) -> list[str]:
    code = f"import sys\n{statement}\nprint('LOADED', *[m for m in {_HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_probe_sees_a_heavy_import() -> None:
    assert _heavy_modules_after("import numpy") == ["numpy"]


@pytest.mark.parametrize(
    "statement",
    [
        "import paceline; paceline.__version__",
        "import paceline; paceline.SamplingParams(max_tokens=3); paceline.EngineConfig.build(spec_tokens=2)",
        "import paceline.core.batch, paceline.core.ports, paceline.core.transaction, paceline.core.acceptance",
        "from paceline.draft.registry import default_registry; default_registry().kinds()",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    assert _heavy_modules_after(statement) == []


@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--help"], ["doctor", "--help"], ["serve", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    statement = f"from paceline.cli.main import main\nassert main({arguments!r}) == 0"
    assert _heavy_modules_after(statement) == []


def test_every_public_name_can_be_had() -> None:
    import paceline

    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    assert set(paceline.__all__) <= set(dir(paceline))
    with pytest.raises(AttributeError, match="no attribute 'LLN'"):
        paceline.LLN  # noqa: B018


def test_threads_are_told_to_sleep_while_they_wait() -> None:
    code = "import os; os.environ.pop('GOMP_SPINCOUNT', None); import paceline; print(os.environ['GOMP_SPINCOUNT'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
