"""The matrix product kernel for Hopper: weights come through the tensor copy engine, the first of them before the
launch that this one waits for has ended.

The same sums in the same order for every tile and number of rows, like :mod:`.product`; only for bfloat16.
"""

# mypy: ignore-errors
# device code: its types are those of Triton's own compiler

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def wait_for_launch_before():
    """Until every program of the launch before has ended and its writes can be read."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def let_next_launch_start():
    """The next launch may take free places on the device and run up to its own wait."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def row_scale(
    sums, tile_m, rows, width, eps, TILES: gl.constexpr, PADDED: gl.constexpr, mma: gl.constexpr, BM: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """1 / rms of the rows of a tile [BM] from their sums of squares per 64 features (ones if TILES is 0).

    A row is summed inside one warp, in one order.
    """
    scale = gl.full((BM,), 1.0, gl.float32, gl.SliceLayout(0, mma))
    if TILES:
        vector: gl.constexpr = 4 if PADDED >= 4 else PADDED
        lanes: gl.constexpr = PADDED // vector if PADDED // vector < 32 else 32
        by_row: gl.constexpr = gl.BlockedLayout([1, vector], [32 // lanes, lanes], [WARPS, 1], [1, 0])
        row = tile_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, by_row))
        tile = gl.arange(0, PADDED, layout=gl.SliceLayout(0, by_row))
        held = (row < rows)[:, None] & (tile < TILES)[None, :]
        parts = gl.load(sums + row[:, None] * TILES + tile[None, :], mask=held, other=0.0)
        scale = gl.convert_layout(gl.rsqrt(gl.sum(parts, 1) / width + eps), gl.SliceLayout(0, mma))
    return scale


@gluon.jit
def issue(weight, x, w_mem, x_mem, full, n, m, k, place, pred, PARTS: gl.constexpr, BN: gl.constexpr):
    """Send for one step's boxes: PARTS of the weights, one of the rows."""
    bytes: gl.constexpr = PARTS * weight.block_type.nbytes + x.block_type.nbytes
    mbarrier.expect(full.index(place), bytes, pred=pred)
    for part in gl.static_range(PARTS):
        at = w_mem.index(place * PARTS + part)
        tma.async_copy_global_to_shared(weight, [n + part * BN, k], full.index(place), at, pred=pred)
    tma.async_copy_global_to_shared(x, [m, k], full.index(place), x_mem.index(place), pred=pred)


@gluon.jit
def finish(
    acc,
    tile_n,
    tile_m,
    scale,
    out,
    bias,
    residual,
    sums_out,
    rows,
    outputs,
    out_stride,
    residual_stride,
    factor,
    EPILOGUE: gl.constexpr,
    NORM: gl.constexpr,
    BIAS: gl.constexpr,
    SUMS: gl.constexpr,
    BN: gl.constexpr,
    BM: gl.constexpr,
    mma: gl.constexpr,
    WARPS: gl.constexpr,
):
    """Scale, bias, epilogue and stores of one tile of sums [BN, BM]."""
    if NORM:
        acc = acc * scale[None, :]
    if BIAS:
        n = tile_n * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, mma))
        acc += gl.load(bias + n, mask=n < outputs, other=0.0).to(gl.float32)[:, None]
    if EPILOGUE == 2:
        turns = gl.permute(gl.reshape(acc, (BN // 16, 2, 8, BM)), (0, 2, 3, 1))
        gate, up = gl.split(turns)
        acc = gl.reshape(gate / (1.0 + gl.exp(-gate)) * up, (BN // 2, BM))
    WIDTH: gl.constexpr = BN // 2 if EPILOGUE == 2 else BN
    across: gl.constexpr = WIDTH // 8 if WIDTH // 8 < 32 else 32
    flat: gl.constexpr = gl.BlockedLayout([8, 1], [across, 32 // across], [1, WARPS], [0, 1])
    acc = gl.convert_layout(acc, flat)
    n = tile_n * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(1, flat))
    m = tile_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(0, flat))
    kept = (n < (outputs // 2 if EPILOGUE == 2 else outputs))[:, None] & (m < rows)[None, :]
    if EPILOGUE == 1:
        at = residual + m[None, :].to(gl.int64) * residual_stride + n[:, None]
        acc = gl.load(at, mask=kept, other=0.0).to(gl.float32) + acc * factor
    stored = acc.to(out.dtype.element_ty)
    gl.store(out + m[None, :].to(gl.int64) * out_stride + n[:, None], stored, mask=kept)
    if SUMS:
        wide = stored.to(gl.float32)
        parts = gl.sum(gl.reshape(wide * wide, (BN // 64, 64, BM)), 1)
        single: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, WARPS], [1, 0])
        parts = gl.convert_layout(parts, single)
        part = tile_n * (BN // 64) + gl.arange(0, BN // 64, layout=gl.SliceLayout(1, single))
        row = tile_m * BM + gl.arange(0, BM, layout=gl.SliceLayout(0, single))
        held = (part < SUMS)[:, None] & (row < rows)[None, :]
        gl.store(sums_out + row[None, :] * SUMS + part[:, None], parts, mask=held)


@gluon.jit
def join_segments(acc, partial, arrivals, tile, segment, SEGMENTS: gl.constexpr, size: gl.constexpr, mma: gl.constexpr):
    """Store this program's sums; the last program of a tile to arrive adds those of all segments, in order.

    Returns the whole sums (its own, for the others) and whether this program was the last.
    """
    BN: gl.constexpr = acc.shape[0]
    BM: gl.constexpr = acc.shape[1]
    n = gl.arange(0, BN, layout=gl.SliceLayout(1, mma))
    m = gl.arange(0, BM, layout=gl.SliceLayout(0, mma))
    base = partial + tile.to(gl.int64) * (SEGMENTS * size) + n[:, None] * BM + m[None, :]
    gl.store(base + segment * size, acc)
    gl.thread_barrier()
    last = gl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SEGMENTS - 1
    gl.thread_barrier()
    if last:
        # other programs wrote these: the first-level cache is not to be asked
        acc = gl.load(base, cache_modifier=".cg")
        for other in gl.static_range(1, SEGMENTS):
            acc += gl.load(base + other * size, cache_modifier=".cg")
        gl.store(arrivals + tile, 0)
    return acc, last


@gluon.jit(do_not_specialize=["rows"])
def hopper_kernel(
    weight,
    x,
    out,
    bias,
    residual,
    sums_in,
    sums_out,
    partial,
    arrivals,
    rows,
    outputs,
    out_stride,
    residual_stride,
    eps,
    factor,
    K: gl.constexpr,
    NORM: gl.constexpr,
    PADDED: gl.constexpr,
    EPILOGUE: gl.constexpr,
    BIAS: gl.constexpr,
    SUMS: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    BM: gl.constexpr,
    PARTS: gl.constexpr,
    SEGMENTS: gl.constexpr,
    STAGES: gl.constexpr,
    EARLY: gl.constexpr,
    num_warps: gl.constexpr,
):
    """out [rows, outputs] = epilogue(factor * rms(x) [rows, K] @ weight [outputs, K]^T + bias), see ``product_kernel``.

    ``weight`` and ``x`` are tensor descriptors with boxes [BN, BK] and [BM, BK]; what lies outside them reads as zero.
    ``PARTS``: boxes of weights per program, up to three. ``SEGMENTS``: stretches of K that are summed by themselves,
    each by a program, and then added in order; part of what a weight's sums are. ``EARLY``: when the next launch may
    start: at once, or with the last step.
    """
    tiles_m = gl.cdiv(rows, BM)
    tile = gl.program_id(0) // SEGMENTS
    segment = gl.program_id(0) % SEGMENTS
    tile_n, tile_m = tile // tiles_m, tile % tiles_m
    n = tile_n * (PARTS * BN)
    steps: gl.constexpr = (K // SEGMENTS + BK - 1) // BK
    first = segment * (K // SEGMENTS)
    w_mem = gl.allocate_shared_memory(weight.dtype, [STAGES * PARTS, BN, BK], weight.layout)
    x_mem = gl.allocate_shared_memory(x.dtype, [STAGES, BM, BK], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    fence_async_shared()
    if EARLY:
        let_next_launch_start()
    # weights do not depend on the launch before: they are on their way while it ends
    for stage in gl.static_range(STAGES):
        mbarrier.expect(full.index(stage), PARTS * weight.block_type.nbytes + x.block_type.nbytes)
        for part in gl.static_range(PARTS):
            at = w_mem.index(stage * PARTS + part)
            k = first + stage * BK
            tma.async_copy_global_to_shared(weight, [n + part * BN, k], full.index(stage), at)
    wait_for_launch_before()
    for stage in gl.static_range(STAGES):
        k = first + stage * BK
        tma.async_copy_global_to_shared(x, [tile_m * BM, k], full.index(stage), x_mem.index(stage))

    # a warp group takes 64 outputs; if there are more groups than that, they share the rows
    across: gl.constexpr = num_warps * 16 // BN if num_warps * 16 > BN else 1
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps // across, across], instr_shape=[16, BM // across, 16]
    )
    acc = gl.zeros((BN, BM), gl.float32, mma)
    acc1 = gl.zeros((BN, BM), gl.float32, mma)
    acc2 = gl.zeros((BN, BM), gl.float32, mma)
    for step in range(steps):
        place = step % STAGES
        mbarrier.wait(full.index(place), (step // STAGES) & 1)
        b = x_mem.index(place).permute((1, 0))
        acc = warpgroup_mma(w_mem.index(place * PARTS), b, acc, is_async=True)
        if PARTS > 1:
            acc1 = warpgroup_mma(w_mem.index(place * PARTS + 1), b, acc1, is_async=True)
        if PARTS > 2:
            acc2 = warpgroup_mma(w_mem.index(place * PARTS + 2), b, acc2, is_async=True)
        if PARTS == 1:
            acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        elif PARTS == 2:
            acc, acc1 = warpgroup_mma_wait(num_outstanding=2, deps=(acc, acc1))
        else:
            acc, acc1, acc2 = warpgroup_mma_wait(num_outstanding=3, deps=(acc, acc1, acc2))
        # the step before has been multiplied: its buffers take the step that lies STAGES further
        gl.thread_barrier()
        later = step - 1 + STAGES
        free = (step + STAGES - 1) % STAGES
        more = (step > 0) & (later < steps)
        issue(weight, x, w_mem, x_mem, full, n, tile_m * BM, first + later * BK, free, more, PARTS, BN)
    acc, acc1, acc2 = warpgroup_mma_wait(num_outstanding=0, deps=(acc, acc1, acc2))
    # the buffers are used again below, also by warps that are ahead of others
    gl.thread_barrier()
    if not EARLY:
        let_next_launch_start()

    scale = row_scale(sums_in, tile_m, rows, K, eps, NORM, PADDED, mma, BM, num_warps)
    last = True
    if SEGMENTS > 1:
        acc, last = join_segments(acc, partial, arrivals, tile, segment, SEGMENTS, BN * BM, mma)
    if last:
        finish(
            acc, tile_n * PARTS, tile_m, scale, out, bias, residual, sums_out, rows, outputs, out_stride,
            residual_stride, factor, EPILOGUE, NORM, BIAS, SUMS, BN, BM, mma, num_warps,
        )  # fmt: skip
        if PARTS > 1:
            finish(
                acc1, tile_n * PARTS + 1, tile_m, scale, out, bias, residual, sums_out, rows, outputs, out_stride,
                residual_stride, factor, EPILOGUE, NORM, BIAS, SUMS, BN, BM, mma, num_warps,
            )  # fmt: skip
        if PARTS > 2:
            finish(
                acc2, tile_n * PARTS + 2, tile_m, scale, out, bias, residual, sums_out, rows, outputs, out_stride,
                residual_stride, factor, EPILOGUE, NORM, BIAS, SUMS, BN, BM, mma, num_warps,
            )  # fmt: skip
