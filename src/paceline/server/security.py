"""Who may call, and who may share: API keys compared in constant time, namespaces derived from keys and salts."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

#: Paths that need no key: what says nothing of anybody's requests.
OPEN_PATHS = frozenset({"/health", "/version", "/metrics", "/"})


class Keys:
    """The keys of a server; none = everybody may call."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> str | None:
        """The key that an ``Authorization`` header brings, if it is one of the server's. Takes the same time for all
        wrong keys: digests are compared, each with every key."""
        scheme, _, given = (authorization or "").partition(" ")
        digest = _digest(given.strip())
        found = [hmac.compare_digest(digest, known) for known in self._digests]
        return given.strip() if any(found) and scheme.lower() == "bearer" else None


def namespace_of(key: str | None, salt: str | None) -> str | None:
    """Whose text may be shared: callers with another key or another ``cache_salt`` are apart. ``None`` without both."""
    if key is None and salt is None:
        return None
    parts = [b"" if part is None else _digest(part) for part in (key, salt)]
    return hashlib.sha256(b"/".join(parts)).hexdigest()[:32]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
