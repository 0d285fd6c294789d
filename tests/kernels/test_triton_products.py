"""The product and row kernels against torch: in the interpreter where there is no GPU, else on it in bfloat16."""

from __future__ import annotations

import pytest
import tests.support.interpreter  # noqa: F401  # before any kernel
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")

from paceline.kernels.triton import launch, tiles
from paceline.kernels.triton.launch import DeviceWeight, Fused, embed, normed, product, sums_of

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32
TOLERANCE = 2e-2 if GPU else 1e-5
on_gpu = pytest.mark.skipif(not GPU, reason="bits depend on the matrix units, which the interpreter does not have")


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(DEVICE, DTYPE)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    error = (found.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-6)
    return bool(error < TOLERANCE)


def squares(x: torch.Tensor) -> torch.Tensor:
    """Sums of squares per 64 features, the last of them over what is left."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % 64))
    return padded.square().unflatten(1, (-1, 64)).sum(-1).contiguous()


@pytest.mark.parametrize(("outputs", "inputs"), [(192, 128), (200, 176), (64, 64)])
@pytest.mark.parametrize("rows", [1, 17, 70])
def test_a_product_is_that_of_torch(rows: int, outputs: int, inputs: int) -> None:
    x, w, bias = drawn(rows, inputs), drawn(outputs, inputs, seed=1), drawn(outputs, seed=2)
    out = torch.full((rows, outputs), torch.nan, dtype=DTYPE, device=DEVICE)
    product(x, DeviceWeight(w, bias), out)
    assert close(out, x.float() @ w.float().t() + bias.float())


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_norm_is_folded_into_the_product(rows: int) -> None:
    x, w = drawn(rows, 320, scale=3.0), drawn(128, 320, seed=1)
    out = torch.empty((rows, 128), dtype=DTYPE, device=DEVICE)
    product(x, DeviceWeight(w), out, Fused(sums_in=squares(x), eps=1e-5))
    assert close(out, torch.nn.functional.rms_norm(x.float(), (320,), eps=1e-5) @ w.float().t())


def test_a_residual_is_added_and_sums_of_squares_are_those_of_what_is_stored() -> None:
    x, w, stream = drawn(5, 64), drawn(192, 64, seed=1), drawn(5, 3 * 192, seed=2)
    residual = stream[:, 192:384]
    out = torch.full((5, 2 * 192), torch.nan, dtype=DTYPE, device=DEVICE)[:, 192:]
    sums = torch.full((5, sums_of(192)), torch.nan, device=DEVICE)
    product(x, DeviceWeight(w), out, Fused(sums_out=sums, residual=residual, factor=0.25))
    assert close(out, residual.float() + 0.25 * (x.float() @ w.float().t()))
    assert torch.allclose(sums, squares(out), rtol=1e-5)


def test_gates_and_ups_in_turns_give_the_gated_product() -> None:
    from paceline.models.device_graph import in_turns

    x, gate, up = drawn(3, 128), drawn(96, 128, seed=1, scale=0.1), drawn(96, 128, seed=2, scale=0.1)
    out = torch.full((3, 96), torch.nan, dtype=DTYPE, device=DEVICE)
    product(x, DeviceWeight(in_turns(torch.cat((gate, up))), gated=True), out)
    wide = x.float()
    assert close(out, torch.nn.functional.silu(wide @ gate.float().t()) * (wide @ up.float().t()))


def test_rows_that_are_not_asked_for_are_not_written() -> None:
    x, w = drawn(3, 64), drawn(64, 64, seed=1)
    memory = torch.full((20, 64), 7.0, dtype=DTYPE, device=DEVICE)
    product(x, DeviceWeight(w), memory[:3])
    assert (memory[3:] == 7.0).all()


@pytest.mark.parametrize("width", [64, 320, 72])
def test_embedding_rows_come_with_their_sums_and_can_be_normed(width: int) -> None:
    table, weight = drawn(11, width), torch.linspace(0.5, 1.5, width, device=DEVICE)
    tokens = torch.tensor([3, 10, 3], device=DEVICE)
    x = torch.empty((3, width), dtype=DTYPE, device=DEVICE)
    sums = torch.empty((3, sums_of(width)), device=DEVICE)
    embed(tokens, table, 2.0, x, sums)
    assert torch.equal(x, table[tokens] * 2.0)
    assert torch.allclose(sums, squares(x), rtol=1e-5)
    expected = torch.nn.functional.rms_norm(x.float(), (width,), weight, 1e-6)
    assert close(normed(x, sums, weight, 1e-6), expected)


@on_gpu
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 2048), (1024, 3072), (6144, 4096)])
def test_a_row_has_the_same_bits_for_every_number_of_rows(outputs: int, inputs: int) -> None:
    weight = DeviceWeight(drawn(outputs, inputs, seed=1))
    x = drawn(700, inputs)
    whole = torch.empty((700, outputs), device=DEVICE)
    product(x, weight, whole)
    assert close(whole, x.float() @ weight.matrix.float().t())
    for rows in (1, 2, 15, 16, 17, 31, 33, 64, 65, 128, 129, 256, 257, 600):
        out = torch.empty((rows, outputs), device=DEVICE)
        product(x[:rows], weight, out)
        assert torch.equal(out, whole[:rows]), rows


@on_gpu
def test_another_order_of_sums_would_be_seen() -> None:
    x, w = drawn(4, 4096), drawn(4096, 4096, seed=1)
    one, two = DeviceWeight(w), DeviceWeight(w)
    one.segments, two.segments = 1, 2
    launch.arrival_counters(DEVICE)
    outs = [torch.empty((4, 4096), device=DEVICE) for _ in range(2)]
    for weight, out in zip((one, two), outs, strict=True):
        product(x, weight, out)
    assert not torch.equal(*outs) and close(*outs)


def _tile_faults(tile: tiles.Tile, outputs: int, inputs: int) -> list[str]:
    """What would make a tile fail on a Hopper GPU."""
    shared = 2 * tile.depth * (tile.outputs * tile.parts + tile.rows) * tile.stages
    faults = {
        "shared memory": shared > 226 << 10,
        "warp groups": tile.warps not in (4, 8) or tile.outputs not in (64, 128, 256),
        "registers": tile.outputs * tile.parts * tile.rows > 128 * tile.warps * 32 * 2,
        "segments of whole steps": tiles.segments(outputs, inputs) > 1
        and inputs // tiles.segments(outputs, inputs) % tile.depth > 0,
        "parts of a segment": tile.parts > 1 and tiles.segments(outputs, inputs) > 1,
    }
    return [name for name, wrong in faults.items() if wrong]


def test_every_tuned_tile_can_run() -> None:
    for (_, outputs, inputs), by_rows in tiles.TUNED.items():
        assert set(by_rows) <= set(tiles.BUCKETS)
        for tile in by_rows.values():
            assert _tile_faults(tile, outputs, inputs) == []


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(1, 4000), st.integers(1, 1000), st.integers(1, 5000))
def test_the_rule_gives_tiles_that_can_run(blocks: int, depth: int, rows: int) -> None:
    outputs, inputs = blocks * 40, depth * 16
    tile = tiles.product_tile("any device", outputs, inputs, rows)
    assert _tile_faults(tile, outputs, inputs) == []
    assert tile.rows >= rows or tile.rows == 128
    assert inputs % tiles.segments(outputs, inputs) == 0


def test_tiles_that_cannot_run_are_found() -> None:
    assert _tile_faults(tiles.Tile(128, 128, 128, 8, 8), 4096, 4096) == ["shared memory"]
    assert _tile_faults(tiles.Tile(64, 64, 16, 4, 2, parts=3), 4096, 12288) == ["parts of a segment"]
