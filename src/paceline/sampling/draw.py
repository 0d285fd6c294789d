"""One token per row of logits, with the row's own parameters and noise (spec 13.1, 13.2, 13.5, 13.6, 13.10).

Knows no history, window or request. A row's token depends on that row's logits, parameters, seed and step alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from ..kernels.draws import DrawColumns, DrawPlace, available, draw_rows
from .chains import permitted_rows, toned
from .host import draw_host
from .noise import INVERSE_CDF, gumbel, philox, philox_range, uniform
from .params import DrawParams
from .units import gaps_and_weights, units_of

#: Rows of sampled draws at least this wide are drawn one by one on the CPU, skipping ids that cannot win; narrower
#: ones are drawn together. Both give the same tokens.
WIDE = 1024
#: Every row of logits has the parameters of the same number.
_EACH = DrawPlace()


class Draws(NamedTuple):
    """``tokens`` [M] int64; ``bad`` [M] bool: the row holds NaN or +inf, or nothing above -inf, and its token is 0."""

    tokens: torch.Tensor
    bad: torch.Tensor


def draw(logits: torch.Tensor, params: DrawParams) -> Draws:
    """Draw one token per row of ``logits`` [M, V] (-inf = banned id). Ties go to the lowest id."""
    if _fits_kernels(logits, params):
        return Draws(*_by_kernels(logits, None, params))
    return _draw(logits, None, params)


def draw_subset(logits: torch.Tensor, ids: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Draw among listed ids: ``logits`` [M, N] of the full-vocabulary ``ids`` [N] int64, ascending.

    Returns full ids [M] int64: what :func:`draw` gives when all other ids are banned. A bad row gets ``ids[0]``. Rows
    with a curve, HLG or XTC are not reproducible on a subset: they draw with their temperature only (spec 13.10).
    """
    params = params.on_subset()
    if _fits_kernels(logits, params):
        return _by_kernels(logits, ids, params)[0]
    return ids[_draw(logits, ids, params).tokens]


def draw_indexed(
    logits: torch.Tensor,
    params: DrawParams,
    index: torch.Tensor,
    *,
    width: int = 1,
    offset: int = 0,
    ids: torch.Tensor | None = None,
) -> Draws:
    """:func:`draw`, or with ``ids`` :func:`draw_subset`, for windows of the rows ``index`` [B] int64 of ``params``:
    logits [B * width, N], place p of a window drawn at ``step + offset + p``. ``tokens`` are full ids; a bad row's is
    the first. On CUDA no parameter is copied."""
    if _fits_kernels(logits, params):
        return Draws(*_by_kernels(logits, ids, params, DrawPlace(index, width, offset)))
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    gathered = {name: getattr(params, name)[index] for name in names}
    params = replace(params, step=params.step[index] + offset, **gathered).window(width)
    if ids is None:
        return draw(logits, params)
    places, bad = _draw(logits, ids, params.on_subset())
    return Draws(ids[places], bad)


def _fits_kernels(logits: torch.Tensor, params: DrawParams) -> bool:
    return available(logits) and params.chains is None and params.coupling == "gumbel"


def _by_kernels(
    logits: torch.Tensor,
    ids: torch.Tensor | None,
    params: DrawParams,
    place: DrawPlace = _EACH,
) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "step")
    columns = DrawColumns(**{name: getattr(params, name) for name in names}, place=place)
    return draw_rows(logits.detach(), columns, ids, greedy=params.all_greedy, filtered=params.any_filter)


def _draw(logits: torch.Tensor, ids: torch.Tensor | None, params: DrawParams) -> Draws:
    """Places drawn in ``logits`` [M, N]; ``ids`` [N] gives each place its noise (``None``: the place itself)."""
    logits = logits.detach()
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if logits.device.type == "cpu" and (logits.shape[-1] >= WIDE or params.all_greedy):
        places, bad = draw_host(logits.contiguous().numpy(), None if ids is None else ids.numpy(), params)
        return Draws(torch.from_numpy(places), torch.from_numpy(bad))
    return draw_together(logits, ids, params)


def draw_together(logits: torch.Tensor, ids: torch.Tensor | None, params: DrawParams) -> Draws:
    """All rows at once, every id with its noise: the way of devices, and what every shortcut must agree with."""
    peak = logits.amax(-1, keepdim=True)
    bad = ~torch.isfinite(peak)
    top = _first(logits == peak)
    if not params.all_greedy:
        sampled = ~(bad | params.greedy.unsqueeze(1))
        drawn = _sample(logits.masked_fill(~sampled, 0.0), ids, params)
        top = torch.where(sampled.squeeze(1), drawn, top)
    return Draws(top.masked_fill(bad.squeeze(1), 0), bad.squeeze(1))


def _sample(logits: torch.Tensor, ids: torch.Tensor | None, params: DrawParams) -> torch.Tensor:
    """Places [M] drawn among the permitted ones; rows that are greedy give a meaningless place."""
    temperature = params.temperature.masked_fill(params.greedy, 1.0).unsqueeze(1)
    scaled = logits / temperature
    if params.chains is not None:
        scaled = toned(logits, scaled, temperature, params)
    if params.any_filter or params.chains is not None:
        scaled = scaled.masked_fill(~permitted_rows(logits, scaled, params), -torch.inf)
    if params.coupling == "inverse_cdf":
        return _inverse_cdf(scaled, params)
    if ids is None:
        words = philox_range(params.seed, params.step, logits.shape[-1])
    else:
        words = philox(params.seed, params.step, ids)
    score = scaled + gumbel(words)
    return _first(score == score.amax(-1, keepdim=True))


def _inverse_cdf(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Places [M]: the first at which the sum of probabilities, in ascending order, exceeds one uniform number."""
    total = units_of(gaps_and_weights(scaled)[1]).cumsum(-1)
    need = uniform(params.seed, params.step, INVERSE_CDF).unsqueeze(1) * total[:, -1:]
    return _first(total > need)


def _first(mask: torch.Tensor) -> torch.Tensor:
    """First true place of each row of ``mask`` [M, N] (N - 1 if there is none): reductions promise no order of ties."""
    last = mask.shape[-1] - 1
    places = torch.arange(last + 1, device=mask.device)
    return torch.where(mask, places, last).amin(-1)
