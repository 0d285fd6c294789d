"""Compiles grammars away from the engine thread and keeps what was compiled. Knows neither rows nor tokens; the
backend is made when the first grammar is asked for, so an engine without grammars pays nothing."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from ..core.errors import PacelineError, RequestError
from .matcher import Grammar, GrammarBackend
from .spec import GrammarSpec


@dataclass(frozen=True)
class CompilerLimits:
    """``threads`` compile side by side; ``waiting`` grammars may be under way at most; one that takes longer than
    ``timeout`` seconds fails its request. The cache holds ``entries`` grammars of ``characters`` source text."""

    threads: int = 2
    waiting: int = 256
    timeout: float = 30.0
    entries: int = 256
    characters: int = 8_388_608


class GrammarCompiler:
    """Grammars of one engine, compiled by a small thread pool and cached by their spec. All methods are thread-safe.

    ``tokenizer``: a fast ``transformers`` tokenizer, a ``tokenizers.Tokenizer``, or the path or text of a
    ``tokenizer.json``. ``vocab_size``: width of the model's logits. ``eos_ids``: the model's EOS ids.
    ``make_backend`` replaces the backend.
    """

    def __init__(
        self,
        tokenizer: object,
        vocab_size: int,
        eos_ids: Sequence[int],
        limits: CompilerLimits | None = None,
        make_backend: Callable[[], GrammarBackend] | None = None,
    ) -> None:
        self._limits = limits or CompilerLimits()
        self._make_backend = make_backend or _llguidance(tokenizer, vocab_size, eos_ids)
        self._backend: GrammarBackend | None = None
        self._backend_lock = threading.Lock()
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSpec, Grammar] = OrderedDict()
        self._cached_characters = 0
        self._under_way: dict[GrammarSpec, Future[Grammar]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def open_handles(self) -> int:
        """Handles that rows hold now; 0 once every request has ended."""
        return 0 if self._backend is None else self._backend.open_handles

    @property
    def cached(self) -> int:
        """Number of grammars kept."""
        return len(self._cache)

    def submit(self, spec: GrammarSpec) -> Future[Grammar]:
        """The compiled grammar, in a future that is done at once if it is cached. Fails with :class:`RequestError`.

        Requests with equal specs share one compilation; the future must not be cancelled by its holders.
        """
        with self._lock:
            known = self._cache.get(spec)
            if known is not None:
                self._cache.move_to_end(spec)
                return _done(known)
            waiting = self._under_way.get(spec)
            if waiting is not None:
                return waiting
            if self._closed:
                return _failed(RequestError(spec.field, "the engine is closed"))
            if len(self._under_way) >= self._limits.waiting:
                return _failed(RequestError(spec.field, "too many grammars are being compiled; try again later"))
            return self._start(spec)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """As :meth:`submit`, waiting for the result."""
        try:
            return self.submit(spec).result(self._limits.timeout + 1.0)
        except FutureTimeout:
            raise self._too_long(spec) from None
        except RequestError as error:  # its field is that of the request that came first
            raise RequestError(spec.field, _message(error)) from None

    def prepare(self) -> None:
        """Build the backend now (a second for a large vocabulary) instead of with the first grammar."""
        self._get_backend()

    def close(self) -> None:
        """Drop the cache and fail what is under way. Handles that rows hold stay usable."""
        with self._lock:
            self._closed = True
            self._cache.clear()
            self._cached_characters = 0
            waiting, pool = list(self._under_way.items()), self._pool
            self._under_way.clear()
        for spec, future in waiting:
            _settle(future, error=RequestError(spec.field, "the engine was closed"))
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, spec: GrammarSpec) -> Future[Grammar]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="paceline-grammar")
        future: Future[Grammar] = Future()
        self._under_way[spec] = future
        timer = threading.Timer(self._limits.timeout, self._expire, (spec, future))
        timer.daemon = True
        future.add_done_callback(lambda _: timer.cancel())
        timer.start()
        self._pool.submit(self._work, spec, future)
        return future

    def _work(self, spec: GrammarSpec, future: Future[Grammar]) -> None:
        """On a pool thread: compile unless the wait was already too long, keep the result, tell the holders."""
        if future.done():
            return
        try:
            grammar = self._get_backend().compile(spec)
        except RequestError as error:
            self._finish(spec, future, error=RequestError(spec.field, _message(error)))
        except PacelineError as error:
            self._finish(spec, future, error=RequestError(spec.field, f"no grammar can be used: {error}"))
        except Exception as error:
            self._finish(spec, future, error=RequestError(spec.field, f"compiling the grammar failed: {error!r}"))
        else:
            self._finish(spec, future, grammar)

    def _finish(
        self, spec: GrammarSpec, future: Future[Grammar], grammar: Grammar | None = None, error: Exception | None = None
    ) -> None:
        with self._lock:
            if self._under_way.get(spec) is future:
                del self._under_way[spec]
            if grammar is not None and not self._closed:
                self._keep(spec, grammar)
        _settle(future, grammar, error)

    def _keep(self, spec: GrammarSpec, grammar: Grammar) -> None:
        """Into the cache, dropping what was used least recently beyond its bounds; called with the lock held."""
        if spec not in self._cache:
            self._cached_characters += spec.size
        self._cache[spec] = grammar
        while len(self._cache) > self._limits.entries or self._cached_characters > self._limits.characters:
            oldest, _ = self._cache.popitem(last=False)
            self._cached_characters -= oldest.size

    def _expire(self, spec: GrammarSpec, future: Future[Grammar]) -> None:
        self._finish(spec, future, error=self._too_long(spec))

    def _too_long(self, spec: GrammarSpec) -> RequestError:
        return RequestError(spec.field, f"compiling the grammar took longer than {self._limits.timeout:g} s")

    def _get_backend(self) -> GrammarBackend:
        with self._backend_lock:
            if self._backend is None:
                self._backend = self._make_backend()
            return self._backend


def _llguidance(tokenizer: object, vocab_size: int, eos_ids: Sequence[int]) -> Callable[[], GrammarBackend]:
    def make() -> GrammarBackend:
        from .backend import LlguidanceBackend
        from .tokens import read_tokenizer

        return LlguidanceBackend(read_tokenizer(tokenizer, eos_ids), vocab_size, eos_ids)

    return make


def _settle(future: Future[Grammar], grammar: Grammar | None = None, error: Exception | None = None) -> None:
    """Complete a future unless its time was up already."""
    try:
        if error is not None:
            future.set_exception(error)
        elif grammar is not None:
            future.set_result(grammar)
    except InvalidStateError:
        return


def _done(grammar: Grammar) -> Future[Grammar]:
    future: Future[Grammar] = Future()
    future.set_result(grammar)
    return future


def _failed(error: Exception) -> Future[Grammar]:
    future: Future[Grammar] = Future()
    future.set_exception(error)
    return future


def _message(error: RequestError) -> str:
    """What a :class:`RequestError` says after the field it names."""
    return str(error).removeprefix(f"{error.field}: ")
