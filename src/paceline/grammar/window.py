"""A grammar over the window of a round (spec 7.2, 7.13): which proposals are legal, the mask of every position, and
where a burst ends. Knows matchers and token lists, no tensors and no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..core.errors import RowFailed
from ..core.round import RowResult
from .bits import permits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .matcher import Matcher


class WindowMasks(NamedTuple):
    """``masks`` [legal_length + 1, ceil(V / 32)] int32: row p holds for the draw after the first p proposals.
    ``legal_length`` proposals may be verified. ``ends_at``: place of the proposal that ends the grammar (then the last
    legal one), ``None`` if none does."""

    masks: NDArray[np.int32]
    legal_length: int
    ends_at: int | None


def window_masks(matcher: Matcher, proposals: Sequence[int]) -> WindowMasks:
    """Walk the proposals from the matcher's place and come back: it is afterwards as it was before.

    Proposals are cut before the first that the grammar forbids and after the one that ends it. A place whose mask
    exceeds the backend's limits cuts the proposals before it too, since only a row that really gets there may fail.
    Raises :class:`RowFailed` if the first mask cannot be had.
    """
    masks = [matcher.mask()]
    walked = 0
    ended = _ended(matcher)
    try:
        for token in proposals:
            if ended or not permits(masks[-1], token) or not _accepted(matcher, token):
                break
            walked += 1
            following = _mask_or_none(matcher)
            if following is None:
                break
            masks.append(following)
            ended = _ended(matcher)
    finally:
        matcher.rollback(walked)
    legal = len(masks) - 1
    return WindowMasks(np.stack(masks), legal, legal - 1 if ended and legal else None)


def _ended(matcher: Matcher) -> bool:
    return matcher.is_terminated


def _accepted(matcher: Matcher, token: int) -> bool:
    try:
        return matcher.accept(token)
    except RowFailed:
        return False


def _mask_or_none(matcher: Matcher) -> NDArray[np.int32] | None:
    try:
        return matcher.mask()
    except RowFailed:
        return None


def constrained_proposals(matcher: Matcher, proposals: Sequence[int], max_tokens: int) -> list[int]:
    """What a grammar row should propose: the drafter's ``proposals`` if they begin as the forced text does, else the
    forced ids, which are nearly always right. At most ``max_tokens``; legality is :func:`window_masks`'s."""
    forced = matcher.forced_tokens(max_tokens)
    common = min(len(forced), len(proposals))
    if list(proposals[:common]) == forced[:common] and len(proposals) >= len(forced):
        return list(proposals[:max_tokens])
    return forced


def accept_burst(matcher: Matcher, tokens: Sequence[int]) -> int | None:
    """Advance by emitted ids; the count of ids up to the one that ended the grammar, ``None`` if it goes on.

    Raises :class:`RowFailed` for an id that the grammar forbids: no draw under its masks can be one.
    """
    for count, token in enumerate(tokens, 1):
        if not matcher.accept(token):
            raise RowFailed(f"the grammar forbids token {token}, which was drawn without its mask")
        if matcher.is_terminated:
            return count
    return None


def cut_at_end(matcher: Matcher, result: RowResult) -> RowResult:
    """Advance the matcher by a row's burst and end the burst where the grammar ends, as the walk does (spec 7.13)."""
    count = accept_burst(matcher, result.emitted)
    if count is None:
        return result
    return replace(
        result,
        emitted=result.emitted[:count],
        accepted=min(result.accepted, count),
        saw_eos=False,
        end_id=None,
        grammar_done=True,
        metadata=None if result.metadata is None else result.metadata[:count],
    )
