"""What a target promises about bits: a row alone, in a batch, in windows of any width, and in any chunks."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels import attention
from paceline.models.binding import TargetBinding

from . import tiny

WIDTH = {"hidden_size": 96, "intermediate_size": 1600, "num_attention_heads": 6, "max_position_embeddings": 1024}
TEXT = torch.randint(3, 96, (3, 640), generator=torch.Generator().manual_seed(3)).tolist()


def build(dtype: str, family: str = "llama") -> TargetBinding:
    return tiny.target(tiny.reference(family, **WIDTH), dtype)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def target(request: pytest.FixtureRequest) -> TargetBinding:
    found = build(request.param)
    if not found.row_invariant:
        pytest.skip(f"{request.param} products or attention of this CPU are not row-invariant; 'ties' is declared")
    return found


def plain(target: TargetBinding, row: int, start: int, count: int) -> torch.Tensor:
    """Logits of ``count`` positions fed one at a time behind a prefill of ``start`` tokens, the row being alone."""
    rows = tiny.Rows(target, 3, 640, scattered=False)
    rows.run({row: TEXT[row][:start]})
    hidden = [rows.run({row: TEXT[row][start + i : start + i + 1]}).hidden for i in range(count)]
    return torch.cat([target.logits(one) for one in hidden])


@pytest.mark.parametrize(("start", "count"), [(5, 32), (250, 20), (500, 33)])
def test_windows_have_the_bits_of_single_steps(target: TargetBinding, start: int, count: int) -> None:
    rows = tiny.Rows(target, 3, 640, scattered=False)
    rows.run({0: TEXT[0][:start]})
    hidden = rows.run({0: TEXT[0][start : start + count]}).hidden
    assert torch.equal(target.logits(hidden), plain(target, 0, start, count))


def test_batch_mates_change_nothing(target: TargetBinding) -> None:
    rows = tiny.Rows(target, 3, 640)
    rows.run({1: TEXT[1][:70], 0: TEXT[0][:300], 2: TEXT[2][:9]})
    parts = {2: TEXT[2][9:30], 0: TEXT[0][300:304], 1: TEXT[1][70:71]}
    mixed = target.logits(rows.run(parts).hidden).split([21, 4, 1])
    for (row, start), got in zip(((2, 9), (0, 300), (1, 70)), mixed, strict=True):
        assert torch.equal(got, plain(target, row, start, got.shape[0]))


def test_prompt_chunks_change_nothing_where_promised(target: TargetBinding) -> None:
    if not target.chunk_invariant:
        assert target.dtype == "int8"
        return
    whole = tiny.Rows(target, 3, 640).run({0: TEXT[0]}).hidden
    rows, cuts = tiny.Rows(target, 3, 640), [0, 1, 130, 131, 400, 640]
    parts = [rows.run({0: TEXT[0][a:b], 1: TEXT[1][a:b]}).hidden[: b - a] for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 32)), min_size=3, max_size=10))
def test_any_schedule_of_windows(steps: list[tuple[int, int]]) -> None:
    """Bits of every position equal those of feeding its row alone, one window at a time of another width."""
    target = _BUILT.setdefault("bfloat16", build("bfloat16"))
    if not target.row_invariant:
        return
    mixed, solo = tiny.Rows(target, 3, 640), [tiny.Rows(target, 3, 640) for _ in range(3)]
    for first, second in itertools.pairwise(steps):
        window = {row: TEXT[row][mixed.lengths[row] : mixed.lengths[row] + count] for row, count in (first, second)}
        hidden = mixed.run(window).hidden.split([len(tokens) for tokens in window.values()])
        for (row, tokens), got in zip(window.items(), hidden, strict=True):
            singles = [solo[row].run({row: [token]}).hidden for token in tokens]
            assert torch.equal(torch.cat(singles), got)


_BUILT: dict[str, TargetBinding] = {}


def test_teeth_a_span_that_moves_with_the_window_breaks_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    target = build("bfloat16")
    if not target.row_invariant:
        pytest.skip("bfloat16 is not row-invariant on this CPU")
    expected = plain(target, 0, 250, 20)
    monkeypatch.setattr(attention, "SPAN", 192)
    assert not torch.equal(plain(target, 0, 250, 20), expected)


def test_a_soft_cap_is_declared_as_ties() -> None:
    target = build("bfloat16", "gemma2")
    assert target.exactness == "ties" and not target.row_invariant and not target.chunk_invariant
