"""The registry (invariant 29): order of detection, names, errors, and that looking at drafters loads no torch."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.draft.kit import VIEW

from paceline.core.errors import ConfigError, DraftError
from paceline.draft import registry as module
from paceline.draft.artifact import DraftArtifact, LoadedDraft, LoadRequest, NativeDraft
from paceline.draft.base import NullDrafter
from paceline.draft.registry import DraftKind, DraftRegistry, NativeKind, default_registry, resolve_method


def load_nothing(request: LoadRequest) -> LoadedDraft:
    return LoadedDraft(NullDrafter(), request.settle_tokens(4, 8), "as the kind calls it")


def kind(name: str, detect: Callable[[DraftArtifact], bool] | None = None, **facts: object) -> DraftKind:
    return DraftKind(name, load_nothing, detect=detect, **facts)


def marked(name: str, **facts: object) -> DraftKind:
    """A kind found by ``name`` in the list ``marks`` of the config."""
    return kind(name, lambda artifact: name in (artifact.config() or {}).get("marks", ()), **facts)


def directory_with(path: Path, *marks: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"marks": marks}))
    return path


def check_order(registry_type: type[DraftRegistry], directory: Path) -> None:
    """First yes in registration order wins; fallback kinds come last wherever they were registered."""
    first, second, last = marked("first"), marked("second"), marked("last", fallback=True)
    for order in permutations([first, second, last]):
        registry = registry_type()
        for one in order:
            registry.register(one)
        specific = [one.kind for one in order if not one.fallback]
        assert registry.detect(directory_with(directory, "first", "second", "last")) == specific[0]
        assert registry.detect(directory_with(directory, "second", "last")) == "second"
        assert registry.detect(directory_with(directory, "last")) == "last"


def test_detection_order(tmp_path):
    check_order(DraftRegistry, tmp_path)


class InOrderOnly(DraftRegistry):
    """Broken: asks fallback kinds where they stand."""

    def detect(self, directory):
        artifact = DraftArtifact(directory)
        return next(k.kind for k in self._kinds.values() if k.detect and k.detect(artifact))


class LastWins(DraftRegistry):
    """Broken: the last yes wins."""

    def detect(self, directory):
        artifact = DraftArtifact(directory)
        kinds = sorted(self._kinds.values(), key=lambda k: k.fallback)
        plain = [k.kind for k in kinds if k.detect and k.detect(artifact) and not k.fallback]
        return plain[-1] if plain else "last"


@pytest.mark.parametrize("broken", [InOrderOnly, LastWins])
def test_a_wrong_order_is_noticed(broken, tmp_path):
    with pytest.raises(AssertionError):
        check_order(broken, tmp_path)


def test_detection_reads_the_config_once_for_all_kinds(tmp_path, monkeypatch):
    reads = []
    original = DraftArtifact._parse
    monkeypatch.setattr(DraftArtifact, "_parse", lambda self: reads.append(1) or original(self))
    registry = DraftRegistry()
    for name in "abcdef":
        registry.register(marked(name))
    assert registry.detect(directory_with(tmp_path, "f")) == "f"
    assert len(reads) == 1


def test_an_undetected_directory_is_named(tmp_path):
    registry = DraftRegistry().register(marked("a")).register(kind("free", lambda _: True, artifact=False))
    for directory in (directory_with(tmp_path, "b"), tmp_path / "absent"):
        with pytest.raises(DraftError, match=directory.name):
            registry.detect(directory)


def test_registering_returns_the_registry_and_keeps_the_order():
    names = list("abcdefgh")
    random.Random(1).shuffle(names)
    registry = DraftRegistry()
    for name in names:
        assert registry.register(kind(name)) is registry
    assert registry.kinds() == tuple(names)
    assert registry.get(names[3]).kind == names[3]


def test_a_duplicate_name_is_refused_and_changes_nothing():
    original = kind("a")
    registry = DraftRegistry().register(original)
    with pytest.raises(DraftError, match="'a'"):
        registry.register(kind("a"))
    assert registry.get("a") is original
    registry.register_native(NativeKind("a", lambda graph: NullDrafter()))
    with pytest.raises(DraftError, match="'a'"):
        registry.register_native(NativeKind("a", lambda graph: NullDrafter()))


@pytest.mark.parametrize("call", [lambda r: r.get("nope"), lambda r: r.load("nope", LoadRequest(None, VIEW))])
def test_an_unknown_name_lists_the_kinds(call):
    with pytest.raises(DraftError, match=r"nope.*alpha, beta"):
        call(DraftRegistry().register(kind("alpha")).register(kind("beta")))


def test_load_reports_depth_and_kind(tmp_path):
    registry = DraftRegistry().register(kind("a"))
    loaded = registry.load("a", LoadRequest(tmp_path, VIEW))
    assert (loaded.num_draft_tokens, loaded.kind) == (4, "a")
    assert registry.load("a", LoadRequest(tmp_path, VIEW, num_draft_tokens=7)).num_draft_tokens == 7
    with pytest.raises(ConfigError, match="spec_tokens"):
        registry.load("a", LoadRequest(tmp_path, VIEW, num_draft_tokens=9))


def test_a_name_is_resolved_by_what_the_directory_holds(tmp_path):
    def really(artifact: DraftArtifact) -> str:
        return "layered" if "layered" in (artifact.config() or {})["marks"] else "head"

    registry = DraftRegistry().register(kind("head", resolve=really)).register(kind("layered"))
    assert registry.load("head", LoadRequest(directory_with(tmp_path / "1", "head"), VIEW)).kind == "head"
    assert registry.load("head", LoadRequest(directory_with(tmp_path / "2", "layered"), VIEW)).kind == "layered"


def test_weights_are_asked_for_and_refused_by_name(tmp_path):
    registry = DraftRegistry().register(kind("with")).register(kind("without", artifact=False))
    with pytest.raises(DraftError, match="spec_model"):
        registry.load("with", LoadRequest(None, VIEW))
    with pytest.raises(DraftError, match="spec_model"):
        registry.load("without", LoadRequest(tmp_path, VIEW))


def test_a_bundled_companion_is_found_below_the_target(tmp_path):
    registry = (
        DraftRegistry()
        .register(kind("free", artifact=False))
        .register(marked("a", bundled_companion="draft-a"))
        .register(marked("b", bundled_companion="draft-b"))
    )
    assert registry.companion(tmp_path) is None
    directory_with(tmp_path / "draft-a", "something else")
    directory_with(tmp_path / "draft-b", "b")
    assert registry.companion(tmp_path) == ("b", tmp_path / "draft-b")


def test_native_drafters():
    provider = NullDrafter()
    registry = DraftRegistry().register_native(NativeKind("inner", lambda graph: graph.make()))
    assert registry.native(object()) is None
    assert registry.native(SimpleNamespace(native_draft=None)) is None
    graph = SimpleNamespace(native_draft=NativeDraft("inner", 3), make=lambda: provider)
    assert registry.native(graph) == LoadedDraft(provider, 3, "inner")
    with pytest.raises(DraftError, match="other"):
        registry.native(SimpleNamespace(native_draft=NativeDraft("other", 3)))


def test_methods_resolve_with_a_reason(tmp_path):
    registry = DraftRegistry().register(marked("a")).register(kind("ngram", artifact=False))
    assert resolve_method("none", registry).method == "none"
    assert resolve_method("a", registry).method == "a"
    assert resolve_method("auto", registry).method == "ngram"
    assert resolve_method("auto", registry.register(kind("suffix", artifact=False))).method == "suffix"
    method, reason = resolve_method("auto", registry, directory_with(tmp_path, "a"))
    assert method == "a" and str(tmp_path) in reason
    assert resolve_method("auto", DraftRegistry()).method == "none"
    with pytest.raises(ConfigError, match=r"spec_method.*'ngrm'.*auto, none, a, ngram, suffix"):
        resolve_method("ngrm", registry)


@pytest.mark.parametrize(("name", "depth"), [("ngram", 6), ("suffix", 16)])
def test_default_kinds_load_by_name(name, depth):
    registry = default_registry()
    loaded = registry.load(name, LoadRequest(None, VIEW))
    assert (loaded.kind, loaded.provider.id, loaded.num_draft_tokens) == (name, name, depth)
    assert loaded.provider.free and loaded.provider.external_tokens
    assert default_registry() is not registry, "callers may add kinds to their own"


def test_auto_prefers_suffix():
    assert resolve_method("auto", default_registry()).method == "suffix"


WITHOUT_TORCH = """
import sys
{before}
from paceline.draft.registry import default_registry, resolve_method
registry = default_registry()
assert registry.kinds()
resolve_method("auto", registry)
try:
    registry.detect({directory!r})
except Exception as error:
    assert type(error).__name__ == "DraftError", error
registry.companion({directory!r})
assert "torch" not in sys.modules
"""


def run_without_torch(directory: Path, before: str = "") -> int:
    source = Path(module.__file__).parents[2]
    script = WITHOUT_TORCH.format(directory=str(directory), before=f"sys.path.insert(0, {str(source)!r})\n{before}")
    return subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False).returncode


def test_importing_and_detecting_need_no_torch(tmp_path):
    directory_with(tmp_path)
    assert run_without_torch(tmp_path) == 0
    assert run_without_torch(tmp_path, before="import torch") != 0
