"""The compiler: off the caller's thread, shared, cached within bounds, in time; a broken grammar costs one request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.grammar.kit import EOS, SPECS, VOCAB, ids_of, tokenizer

from paceline.core.errors import RequestError
from paceline.grammar.compiler import CompilerLimits, GrammarCompiler
from paceline.grammar.spec import GrammarSpec


class _Backend:
    """Compiles when told to: ``gate`` must be set, ``compiled`` lists what was asked for and on which thread."""

    open_handles = 0

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.compiled: list[str] = []
        self.threads: set[int] = set()

    def compile(self, spec: GrammarSpec) -> Any:
        self.threads.add(threading.get_ident())
        self.compiled.append(spec.text)
        assert self.gate.wait(20)
        if "broken" in spec.text:
            raise RequestError(spec.field, "cannot be used")
        if "crash" in spec.text:
            raise KeyError("inside")
        return object()


def _compiler(made: Callable[[], Any], **limits: Any) -> GrammarCompiler:
    return GrammarCompiler("unused", VOCAB, EOS, CompilerLimits(**limits), make_backend=made)


def _regex(text: str, field: str = "") -> GrammarSpec:
    return GrammarSpec("regex", text, field=field)


def test_a_real_compiler_end_to_end() -> None:
    compiler = GrammarCompiler(tokenizer(), VOCAB, EOS)
    assert compiler.open_handles == 0
    matcher = compiler.compile(SPECS["choice"]).open()
    assert compiler.open_handles == 1
    assert all(matcher.accept(token) for token in ids_of("there"))
    with pytest.raises(RequestError, match="unclosed group"):
        compiler.compile(_regex("a("))
    assert compiler.compile(SPECS["choice"]).open().mask().any()  # the broken one cost nobody else anything
    matcher.close()
    compiler.close()
    assert matcher is not None and compiler.open_handles == 1  # the third handle above was never closed


def test_compiling_runs_elsewhere_and_once_per_spec() -> None:
    backend = _Backend()
    backend.gate.clear()
    compiler = _compiler(lambda: backend)
    futures = [compiler.submit(_regex("a")) for _ in range(5)] + [compiler.submit(_regex("b"))]
    assert not any(future.done() for future in futures)
    backend.gate.set()
    grammars = [future.result(20) for future in futures]
    assert len(set(map(id, grammars))) == 2 and sorted(backend.compiled) == ["a", "b"]
    assert threading.get_ident() not in backend.threads
    assert compiler.submit(_regex("a")).done()
    compiler.close()


def test_an_event_loop_can_wait_for_a_grammar() -> None:
    compiler = _compiler(_Backend)

    async def ask() -> object:
        return await asyncio.wrap_future(compiler.submit(_regex("a")))

    assert asyncio.run(ask()) is compiler.compile(_regex("a"))
    compiler.close()


def test_the_least_recently_used_go_first() -> None:
    backend = _Backend()
    compiler = _compiler(lambda: backend, entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        compiler.compile(_regex(text))
    assert backend.compiled == ["a", "b", "c", "b"] and compiler.cached == 2
    compiler.close()


def test_the_cache_is_bounded_by_characters() -> None:
    backend = _Backend()
    compiler = _compiler(lambda: backend, characters=10)
    for text in ("a" * 4, "b" * 4, "c" * 4, "d" * 11):
        compiler.compile(_regex(text))
    assert compiler.cached == 0
    for text in ("a" * 4, "b" * 6):
        compiler.compile(_regex(text))
    assert compiler.cached == 2
    compiler.close()


def test_failures_name_the_field_of_each_request_and_are_not_kept() -> None:
    backend = _Backend()
    compiler = _compiler(lambda: backend)
    for field in ("one", "two"):
        with pytest.raises(RequestError, match="cannot be used") as caught:
            compiler.compile(_regex("broken", field))
        assert caught.value.field == field
    with pytest.raises(RequestError, match="compiling the grammar failed: KeyError"):
        compiler.compile(_regex("crash"))
    assert backend.compiled == ["broken", "broken", "crash"] and compiler.cached == 0
    compiler.close()


def test_a_grammar_that_takes_too_long_fails_its_request_only() -> None:
    backend = _Backend()
    backend.gate.clear()
    compiler = _compiler(lambda: backend, timeout=0.05, threads=1)
    with pytest.raises(RequestError, match=r"longer than 0\.05 s"):
        compiler.submit(_regex("a")).result(20)
    late = compiler.submit(_regex("b"))  # waits behind the first for its whole time
    with pytest.raises(RequestError, match="longer than"):
        late.result(20)
    backend.gate.set()
    patient = _compiler(lambda: backend)
    assert patient.compile(_regex("c"))
    patient.close()
    compiler.close()


def test_the_queue_is_bounded() -> None:
    backend = _Backend()
    backend.gate.clear()
    compiler = _compiler(lambda: backend, waiting=2)
    first = [compiler.submit(_regex(text)) for text in "ab"]
    with pytest.raises(RequestError, match="too many grammars"):
        compiler.submit(_regex("c")).result(0)
    assert compiler.submit(_regex("a")) is first[0]
    backend.gate.set()
    assert all(future.result(20) for future in first)
    assert compiler.compile(_regex("c"))
    compiler.close()


def test_closing_fails_what_is_under_way() -> None:
    backend = _Backend()
    backend.gate.clear()
    compiler = _compiler(lambda: backend)
    future = compiler.submit(_regex("a"))
    compiler.close()
    compiler.close()
    for waiting in (future, compiler.submit(_regex("b"))):
        with pytest.raises(RequestError, match="closed"):
            waiting.result(20)
    backend.gate.set()


def test_a_backend_that_cannot_be_made_is_a_request_error_each_time() -> None:
    def missing() -> Any:
        raise RequestError("structured_outputs", "grammars need llguidance")

    compiler = _compiler(missing)
    for _ in range(2):
        with pytest.raises(RequestError, match=r"^here: grammars need llguidance$"):
            compiler.compile(_regex("a", "here"))
    wrong = GrammarCompiler(object(), VOCAB, EOS)
    with pytest.raises(RequestError, match="object is not a fast tokenizer"):
        wrong.compile(_regex("a"))
    compiler.close()
    wrong.close()
