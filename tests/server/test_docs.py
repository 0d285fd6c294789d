"""The page about the server says what the code does: routes, fields, statuses, parsers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.kit import Reciting, app_over

from paceline.server.documented import ERRORS
from paceline.server.fields import ACCEPTED
from paceline.server.schemas import SpeculativeDecoding, StreamOptions
from paceline.server.schemas_sampling import MAX_TOP_LOGPROBS
from paceline.server.schemas_text import MAX_PROMPTS
from paceline.server.security import OPEN_PATHS
from paceline.server.tools.dialects import DIALECTS
from paceline.server.translate import COMPLETION_TOKENS, SAME

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text("utf-8")
_WORDS = set(re.findall(r"[A-Za-z0-9_/{}.-]+", _PAGE))


def test_routes_and_statuses_are_named() -> None:
    paths = app_over(Reciting("x")).openapi()["paths"]
    for path in paths:
        assert path in _WORDS, path
    for status in ERRORS:
        assert f"| {status}" in _PAGE or f"{status}," in _PAGE
    for path in OPEN_PATHS - {"/"}:
        assert f"`{path}`" in _PAGE


def test_fields_are_named() -> None:
    for name in (*SAME, *ACCEPTED, *StreamOptions.model_fields, *DIALECTS):
        known = name in _WORDS or (name.startswith("dry_") and "dry_*" in _PAGE)
        assert known or name in ("temperature", "top_p", "max_tokens", "n"), name
    for name in SpeculativeDecoding.model_fields:
        assert name in _PAGE or name in ("num_spec_tokens", "phase_ms"), name


def test_numbers_are_those_of_the_code() -> None:
    assert f"at most {MAX_TOP_LOGPROBS} alternatives" in _PAGE
    assert f"({MAX_PROMPTS} at most)" in _PAGE
    assert f"make {COMPLETION_TOKENS} tokens" in _PAGE
