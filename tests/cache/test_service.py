"""The prefix cache that keeps nothing."""

from __future__ import annotations

import pytest

from paceline.cache.service import NoCache
from paceline.core.errors import IntegrityError
from paceline.core.ports import CachedPrefix, CacheService
from paceline.core.request import Request, SamplingParams


def test_nothing_is_kept_found_or_taken() -> None:
    cache: CacheService = NoCache()
    request = Request("r7", (1, 2), SamplingParams(), 4, (), 0, 0)
    assert not cache.keeps(request)
    assert cache.acquire(request, "", (1, 2)) is None
    with pytest.raises(IntegrityError, match="r7"):
        cache.publish(request, "", (1, 2), CachedPrefix(2, {"full": (1,)}))
