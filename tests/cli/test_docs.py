"""Pages for operators: every flag, variable and field of ours that they name exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from paceline.cli import flags_page
from paceline.cli.settings import read_config
from paceline.core.params import SamplingParams

_ROOT = Path(__file__).resolve().parents[2]
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
#: Of other programs, on the same pages.
_OTHERS = {"--build-arg", "--rm", "--device", "--gpus", "--now", "--url", "--plain", "--create-home", "--home-dir"}


def _flags() -> set[str]:
    return set(_FLAG.findall("\n".join(re.findall(r"`(-[^`]+)`", flags_page.page()))))


def _here() -> list[tuple[str, str]]:
    """(what another engine calls it, what it is called here), row by row."""
    rows = [line.split(" | ") for line in (_ROOT / "docs/coming_from.md").read_text("utf-8").splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 3 and row[0] != "| there"]


def test_flags_named_for_people_from_other_engines_exist() -> None:
    named = {flag for _, here in _here() for flag in _FLAG.findall(here)}
    assert len(named) > 30
    assert named - _flags() == set()


def test_request_fields_named_for_them_exist() -> None:
    words = {word for _, here in _here() for word in re.findall(r"`([a-z_]+)`", here)}
    known = {field.name for field in fields(SamplingParams)}
    assert {"max_tokens", "repetition_penalty", "penalty_window", "num_draft_tokens"} <= words & known


def test_flags_and_variables_of_the_deployment_exist() -> None:
    paths = ("docs/deploy.md", "Containerfile", "deploy/paceline.service")
    text = "\n".join((_ROOT / path).read_text("utf-8") for path in paths)
    commands = "\n".join(line for line in text.splitlines() if "paceline" in line or "`--" in line)
    named = set(_FLAG.findall(commands)) - _OTHERS
    assert len(named) > 6
    assert named - _flags() == set()
    variables = set(re.findall(r"PACELINE_[A-Z_]+", text))
    assert variables - set(re.findall(r"PACELINE_[A-Z_]+", flags_page.page())) == {"PACELINE_CACHE_DIR"}


def test_the_settings_file_of_the_deployment_is_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (_ROOT / "docs/deploy.md").read_text("utf-8"), re.DOTALL)
    path = tmp_path / "paceline.yaml"
    path.write_text(block, "utf-8")
    found = read_config(str(path))
    assert {**found.engine, "server": found.server} == yaml.safe_load(block)


@pytest.mark.parametrize("page", ["deploy", "coming_from", "metrics", "flags", "load"])
def test_links_lead_somewhere(page: str) -> None:
    path = _ROOT / "docs" / f"{page}.md"
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text("utf-8")):
        assert (path.parent / target).exists(), target


def test_the_unit_gives_running_requests_their_time() -> None:
    from paceline.server.settings import ServerSettings

    text = (_ROOT / "deploy/paceline.service").read_text("utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(seconds) > ServerSettings().drain_timeout
