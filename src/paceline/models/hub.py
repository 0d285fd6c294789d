"""Fetches model files from the Hugging Face hub into its usual cache: short time-outs, progress, checksums.

Knows nothing of what the files hold. Every failure becomes a :class:`ModelError` that says what to do.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from ..core import env
from ..core.errors import ModelError
from .progress import Progress, watched_bytes

_CONFIG_FILES = ["config.json", "generation_config.json"]
_TOKENIZER_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
]
_WEIGHT_FILES = ["model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MAX_ID = 96
_TRANSFERS = 3  # attempts at one file
_T = TypeVar("_T")
_LOG = logging.getLogger("paceline")


@dataclass(frozen=True)
class Snapshot:
    """A downloaded revision: its directory and its commit hash."""

    path: Path
    commit: str


@dataclass(frozen=True)
class HubOptions:
    """Where the hub is and where its cache lies; ``None`` = as ``huggingface_hub`` is configured."""

    endpoint: str | None = None
    cache_dir: Path | None = None


DEFAULT_OPTIONS = HubOptions()


def is_hub_id(model: str) -> bool:
    """Whether ``model`` has the form of a hub id (``org/name``; very old models have no ``org``)."""
    shaped = _HUB_ID.fullmatch(model) is not None and len(model) <= _MAX_ID
    return shaped and ".." not in model and "--" not in model and not model.endswith((".gguf", ".safetensors", ".json"))


def fetch_model(
    repo: str,
    revision: str | None = None,
    *,
    timeout: float = 10.0,
    progress: Progress | None = None,
    options: HubOptions = DEFAULT_OPTIONS,
) -> Snapshot:
    """Download configuration, safetensors weights and tokenizer of ``repo`` at ``revision`` (branch, tag or commit).

    The hub gets ``timeout`` seconds to answer; if it does not, or ``HF_HUB_OFFLINE`` is set, a complete copy in the
    cache is used. Broken transfers are resumed, new large files are checked against the hub's sha256.
    """

    def choose(names: list[str]) -> list[str]:
        weights = ["model.safetensors"] if "model.safetensors" in names else _WEIGHT_FILES
        chosen = _matching(names, weights)
        if not chosen:
            offer = "only GGUF files: download one and give its path" if _matching(names, ["*.gguf"]) else "none"
            raise ModelError(repo, f"weights in safetensors form are needed, the hub has {offer}")
        return _matching(names, _CONFIG_FILES + _TOKENIZER_FILES) + chosen

    request = _Request(repo, revision, timeout, options, choose, progress)
    return _fetch(request, cached_model(repo, revision, options))


def fetch_tokenizer(repo: str, *, timeout: float = 10.0, options: HubOptions = DEFAULT_OPTIONS) -> Snapshot:
    """Download configuration and tokenizer files alone; cached ones are used if the hub does not answer."""
    request = _Request(repo, None, timeout, options, lambda names: _matching(names, _CONFIG_FILES + _TOKENIZER_FILES))
    cached = _cached(repo, None, options)
    return _fetch(request, cached if cached and (cached.path / "tokenizer_config.json").is_file() else None)


def cached_model(repo: str, revision: str | None = None, options: HubOptions = DEFAULT_OPTIONS) -> Snapshot | None:
    """The copy of ``repo`` at ``revision`` in the cache, if all its weights are there. Never uses the network."""
    snapshot = _cached(repo, revision, options)
    return snapshot if snapshot is not None and _has_weights(snapshot.path) else None


@dataclass(frozen=True)
class _Request:
    """One fetch: ``choose`` picks from the repository's file names those to download."""

    repo: str
    revision: str | None
    timeout: float
    options: HubOptions
    choose: Callable[[list[str]], list[str]]
    progress: Progress | None = None


def _matching(names: list[str], patterns: list[str]) -> list[str]:
    from fnmatch import fnmatchcase

    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _cached(repo: str, revision: str | None, options: HubOptions) -> Snapshot | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, "config.json", cache_dir=_cache_argument(options), revision=revision)
    return Snapshot(Path(found).parent, Path(found).parent.name) if isinstance(found, str) else None


def _has_weights(directory: Path) -> bool:
    from .weights import INDEX_FILE, SINGLE_FILE, read_index

    if (directory / SINGLE_FILE).is_file():
        return True
    try:
        return bool(read_index(directory / INDEX_FILE))
    except ModelError:
        return False


def _cache_argument(options: HubOptions) -> str | None:
    return None if options.cache_dir is None else str(options.cache_dir)


def _fetch(request: _Request, cached: Snapshot | None) -> Snapshot:
    repo = request.repo
    if env.hub_offline():
        if cached is None:
            raise ModelError(repo, "is not in the cache, and HF_HUB_OFFLINE forbids to download it; unset it")
        return cached
    try:
        info = _ask(request)
    except _Unreachable as error:
        if cached is None:
            raise ModelError(
                repo, f"{error}; check the network (or HF_ENDPOINT), or give a local model directory"
            ) from error.__cause__
        _LOG.warning("%s: %s; using the cached revision %s", repo, error, cached.commit)
        return cached
    files = {item.rfilename: item for item in info.siblings or []}
    wanted = request.choose(list(files))
    if "config.json" not in wanted:
        raise ModelError(repo, "holds no config.json: it is not a model that can be run")
    directory = _download(request, info.sha, [files[name] for name in wanted])
    return Snapshot(directory, info.sha)


class _Unreachable(Exception):
    """The hub did not answer in time or at all."""


def _ask(request: _Request) -> Any:
    """The repository's files at the revision. A thread bounds the whole call: name look-ups know no time-out."""
    from huggingface_hub import HfApi, errors

    api = HfApi(endpoint=request.options.endpoint, token=env.hub_token())
    named = f"revision {request.revision!r}" if request.revision else "its main revision"

    def call() -> Any:
        return api.model_info(request.repo, revision=request.revision, timeout=request.timeout, files_metadata=True)

    try:
        return _within(request.timeout, call)
    except errors.GatedRepoError as error:
        raise ModelError(request.repo, "is gated: accept its terms on the hub and set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(request.repo, f"{named} does not exist on the hub; check --revision") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            request.repo, "no such directory here and no such model on the hub (a private one needs HF_TOKEN)"
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(request.repo, f"is not a hub id: {error}") from error
    except Exception as error:  # the HTTP library below differs from version to version
        late = "Timeout" in type(error).__name__
        what = f"did not answer within {request.timeout:g} s" if late else f"cannot be reached ({_reason(error)})"
        raise _Unreachable(f"the hub {what}") from error


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    outcome: list[tuple[_T | None, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # handed to the caller below
            outcome.append((None, error))

    thread = threading.Thread(target=work, name="paceline-hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError
    value, error = outcome[0]
    if error is not None:
        raise error
    return cast(_T, value)


def _download(request: _Request, commit: str, files: list[Any]) -> Path:
    """Bring every file of ``commit`` into the cache, one after another; returns the snapshot directory."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cache = _cache_argument(request.options)
    missing = [
        item
        for item in files
        if not isinstance(try_to_load_from_cache(request.repo, item.rfilename, cache, commit), str)
    ]
    arguments: dict[str, Any] = {
        "cache_dir": cache,
        "endpoint": request.options.endpoint,
        "token": env.hub_token(),
        "etag_timeout": max(request.timeout, 1.0),
    }

    def fetch(file: str, revision: str) -> Path:
        return Path(hf_hub_download(request.repo, file, revision=revision, **arguments))

    name = request.revision or "main"
    known = _cached(request.repo, name, request.options)
    if not missing and known is not None and known.commit == commit:
        return known.path
    with _explained(request.repo), _progress(request, missing):
        for item in missing:
            _verify(item, _resuming(partial(fetch, item.rfilename, commit)))
        # By name once more: this records which commit the name stands for, so that it is found offline.
        return fetch("config.json", name).parent.parent / commit


def _resuming(fetch: Callable[[], Path]) -> Path:
    """Call ``fetch`` again when the transfer broke off: what has arrived is kept. Refusals are not repeated."""
    from huggingface_hub import errors

    for _ in range(_TRANSFERS - 1):
        try:
            return fetch()
        except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError):
            raise
        except Exception as error:  # the HTTP library below differs from version to version
            _LOG.warning("transfer broke off (%s), resuming", _reason(error))
    return fetch()


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the HTTP library below differs from version to version
        raise ModelError(repo, f"download failed: {_reason(error)}; run again, it resumes where it stopped") from error


def _verify(item: Any, path: Path) -> None:
    """Compare a new file with the size and sha256 that the hub lists; a wrong one is removed from the cache."""
    size, expected = path.stat().st_size, None
    if item.lfs is not None:
        expected = item.lfs["sha256"] if isinstance(item.lfs, dict) else item.lfs.sha256
    problem = None
    if item.size is not None and size != item.size:
        problem = f"has {size} bytes instead of {item.size}"
    elif expected is not None:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            problem = f"has sha256 {actual} instead of {expected}"
    if problem is not None:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ModelError(str(path), f"was damaged on the way: it {problem}; it was removed, download it again")


@contextmanager
def _progress(request: _Request, missing: list[Any]) -> Iterator[None]:
    """Report downloaded bytes while the body runs; the hub library's own bars show only if nobody asked for ours."""
    from huggingface_hub import constants

    if request.progress is None or not missing:
        yield
        return
    root = request.options.cache_dir or Path(constants.HF_HUB_CACHE)
    blobs = root / f"models--{request.repo.replace('/', '--')}" / "blobs"
    total = sum(item.size or 0 for item in missing)
    bars: Any = importlib.import_module("huggingface_hub.utils")
    quiet = bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        with watched_bytes(blobs, f"Downloading {request.repo}", total, request.progress):
            yield
    finally:
        if not quiet:
            bars.enable_progress_bars()
