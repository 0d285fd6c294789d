"""The page of flags: made from the code, up to date, complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli import flags_page
from paceline.cli.bench_serve import SERVE_FLAGS
from paceline.cli.options import ENGINE_FLAGS, Flag
from paceline.cli.sampling import SAMPLING_FLAGS
from paceline.cli.serve import SERVER_FLAGS

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "flags.md"


def test_the_page_is_up_to_date() -> None:
    assert _PAGE.read_text("utf-8") == flags_page.page(), "run: python -m paceline.cli.flags_page > docs/flags.md"


@pytest.mark.parametrize("flag", [*ENGINE_FLAGS, *SAMPLING_FLAGS, *SERVER_FLAGS, *SERVE_FLAGS], ids=lambda f: f.name)
def test_every_flag_stands_on_it_under_all_its_names(flag: Flag) -> None:
    page = flags_page.page().splitlines()
    lines = [line for line in page if all(f"`{name}`" in line for name in flag.long_names)]
    if flag.hidden:
        assert not [line for line in lines if line.startswith(f"| `{flag.long_names[0]}`")]
    else:
        assert any(flag.help in line.replace("\\|", "|") for line in lines)


def test_defaults_and_variables() -> None:
    lines = {line.split(" | ")[0]: line for line in reversed(flags_page.page().splitlines())}
    assert "| `PACELINE_PORT` | `8000` |" in lines["| `--port`"]
    assert "| `PACELINE_SPEC_ADAPTIVE` | on |" in lines["| `--spec-adaptive`, `--no-spec-adaptive`"]
    assert lines["| `--rate`"].startswith("| `--rate` |  | Requests per second")  # a benchmark's flags are no settings
