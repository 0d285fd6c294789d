"""Times the device kernels of one model shape: memory ceiling, products over tiles, whole forwards, bitwise checks.

Run ``python -m paceline.bench.kernels --help`` on a machine with a GPU. Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

import torch

from ..cache.store import KVStore
from ..core.batch import ForwardBatch
from ..kernels.triton import attend as attention
from ..kernels.triton.launch import DeviceWeight, product
from ..kernels.triton.tiles import Tile
from ..models.binding import TargetBinding
from ..models.config import decoder_config
from ..models.device_graph import DeviceGraph
from ..models.random import SHAPES, random_target
from .kernel_sites import SITES, Site, candidates, read_ceiling, timed

Record = dict[str, Any]
GRID = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (8, 1), (8, 4), (8, 8), (32, 4), (32, 8), (64, 5))


def _compile(job: tuple[Site, int, Tile]) -> str | None:
    site, rows, tile = job
    weight = DeviceWeight(
        torch.empty((site.outputs, site.inputs), dtype=torch.bfloat16, device="cuda"), gated=site.name == "gate_up"
    )
    try:
        site.call([weight], rows, tile)[0]()
        torch.cuda.synchronize()
    except Exception as error:  # a tile that does not fit is a result, not a fault
        return f"{site.name} {rows} {tile}: {error!r}"[:160]
    return None


def compile_all(jobs: Sequence[tuple[Site, int, Tile]], workers: int) -> list[str]:
    """Compile in parallel into Triton's cache on disk; returns what failed."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [fault for fault in pool.map(_compile, jobs, chunksize=4) if fault]


def sweep(binding: TargetBinding, jobs: Iterable[tuple[Site, int, Tile]]) -> list[Record]:
    """Time every tile, and check that all give the same bits."""
    records: list[Record] = []
    first: dict[str, torch.Tensor] = {}
    for site, rows, tile in jobs:
        weights = weights_of(binding, site.name)
        try:
            run, out = site.call(weights, rows, tile)
            ms = timed(run)
        except Exception as error:
            records.append({"site": site.name, "rows": rows, "tile": asdict(tile), "fault": repr(error)[:120]})
            continue
        known = first.setdefault(site.name, out.clone())
        same = bool(torch.equal(known[: min(len(known), rows)], out[: min(len(known), rows)]))
        speed = site.outputs * site.inputs * 2 * len(weights) / ms / 1e9
        records.append(
            {
                "site": site.name,
                "rows": rows,
                "tile": asdict(tile),
                "us": 1e3 * ms / len(weights),
                "TB/s": speed,
                "same": same,
            }
        )
    for weight in (w for name in SITES for w in weights_of(binding, name)):
        weight.tiles.clear()
    return records


def weights_of(binding: TargetBinding, name: str) -> list[DeviceWeight]:
    graph = binding._graph
    assert isinstance(graph, DeviceGraph)
    return [graph.head] if name == "head" else [getattr(layer, name) for layer in graph.layers]


def rectangle(binding: TargetBinding, rows: int, width: int, context: int) -> ForwardBatch:
    """A device-laid batch over the binding's KV memory: every row its own blocks, random tokens."""
    device = binding.device
    per_row = -(-(context + width) // 16)
    table = 1 + torch.arange(rows * per_row, device=device).view(rows, per_row)
    positions = context + torch.arange(width, device=device).repeat(rows)
    owner = torch.arange(rows, device=device).repeat_interleave(width)
    slots = table[owner, positions // 16] * 16 + positions % 16
    tokens = torch.randint(0, binding.vocab_size, (rows * width,), generator=torch.Generator().manual_seed(3)).to(
        device
    )
    group = binding.kv_groups[0].name
    return ForwardBatch(
        tokens=tokens,
        positions=positions,
        indices=torch.arange(rows, device=device),
        query_lens=[width] * rows,
        context_lens=[context] * rows,
        slots={group: slots},
        block_tables={group: table},
        width=width,
    )


def attach_store(binding: TargetBinding, tokens: int) -> None:
    blocks = 2 + tokens // 16
    store = KVStore(
        binding.kv_groups, {g.name: blocks for g in binding.kv_groups}, 16, binding.kv_dtype, binding.device
    )
    for layer in range(binding.num_layers):
        store.keys(layer).normal_()
        store.values(layer).normal_()
    binding.attach(store)


def forwards(binding: TargetBinding, grid: Sequence[tuple[int, int]], context: int) -> list[Record]:
    """Milliseconds of forward plus head per (rows, width)."""
    records = []
    for rows, width in grid:
        batch = rectangle(binding, rows, width, context)
        ms = timed(lambda batch=batch: binding.logits(binding.forward(batch).hidden))  # type: ignore[misc]
        records.append({"rows": rows, "width": width, "context": context, "ms": ms})
    return records


def parts(binding: TargetBinding, rows: int, width: int, context: int) -> Record:
    """Milliseconds of each kind of kernel over all layers, alone in a graph."""
    graph = binding._graph
    assert isinstance(graph, DeviceGraph)
    batch = rectangle(binding, rows, width, context)
    count = rows * width
    found: Record = {"rows": rows, "width": width, "context": context}
    for name in SITES:
        weights = weights_of(binding, name)
        found[name] = timed(Site.of(binding.config, name).call(weights, count, None)[0])
    qkv = torch.randn((count, graph.shape.width), device=binding.device, dtype=torch.bfloat16)
    sums = torch.ones((count, graph.shape.sums), device=binding.device) if graph.shape.norm else None
    plan = attention.plan_device(batch, graph.layers[0].group, graph.shape, (16, graph.split), None)
    space = attention.Workspace(graph.arrivals)

    def attend() -> None:
        for layer in graph.layers:
            assert layer.paged is not None
            attention.attend(plan, graph.shape, layer.paged, qkv, sums, space)

    found["attention"] = timed(attend)
    return found


def invariance_grid(binding: TargetBinding, context: int) -> list[str]:
    """Cells (rows, width) where a row's logits differ from those of the row alone, token by token."""
    faults = []
    for rows, width in ((1, 2), (1, 5), (1, 8), (1, 16), (2, 1), (4, 4), (8, 8), (16, 16), (64, 1), (64, 5), (3, 33)):
        batch = rectangle(binding, rows, width, context)
        together = binding.logits(binding.forward(batch).hidden)
        for row in {0, rows - 1}:
            for at in range(width):
                single = _token(batch, row, at, width, context)
                alone = binding.logits(binding.forward(single).hidden)
                if not torch.equal(alone[0], together[row * width + at]):
                    faults.append(f"{rows}x{width} row {row} token {at}")
    return faults


def _token(batch: ForwardBatch, row: int, at: int, width: int, context: int) -> ForwardBatch:
    flat = slice(row * width + at, row * width + at + 1)
    group = next(iter(batch.slots))
    return ForwardBatch(
        tokens=batch.tokens[flat],
        positions=batch.positions[flat],
        indices=batch.indices[row : row + 1],
        query_lens=[1],
        context_lens=[context + at],
        slots={group: batch.slots[group][flat]},
        block_tables={group: batch.block_tables[group][row : row + 1]},
        width=1,
    )


def prompt_speed(binding: TargetBinding, length: int) -> Record:
    """Milliseconds of one prompt chunk, eagerly, as the engine runs it."""
    batch = rectangle(binding, 1, length, 0)
    ragged = ForwardBatch(
        batch.tokens, batch.positions, batch.indices, [length], [0], batch.slots, batch.block_tables, None
    )
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        binding.forward(ragged)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return {"prompt": length, "ms": min(times)}


def library(binding: TargetBinding, rows_list: Sequence[int]) -> list[Record]:
    """cuBLAS beside our product on the layer shapes: time, and whether its bits are the same."""
    records = []
    for name in SITES[:4]:
        site = Site.of(binding.config, name)
        weights = [DeviceWeight(w.matrix) for w in weights_of(binding, name)]
        for rows in rows_list:
            x = torch.randn((rows, site.inputs), device="cuda", dtype=torch.bfloat16)
            ours = torch.empty((rows, site.outputs), device="cuda", dtype=torch.float32)
            product(x, weights[0], ours)
            theirs = torch.mm(x, weights[0].matrix.t(), out_dtype=torch.float32)
            out = torch.empty((rows, site.outputs), device="cuda", dtype=torch.bfloat16)

            def run(x: torch.Tensor = x, out: torch.Tensor = out, weights: list[DeviceWeight] = weights) -> None:
                for weight in weights:
                    torch.mm(x, weight.matrix.t(), out=out)

            us = 1e3 * timed(run) / len(weights)
            records.append({"site": name, "rows": rows, "us": us, "same": bool(torch.equal(ours, theirs))})
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-8b")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--do", default="check,forward,parts", help="of check, sweep, forward, parts, prompt, library")
    parser.add_argument("--sweep-rows", default="1,32,64,128,256")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--json", default="")
    options = parser.parse_args(arguments)
    report = run(options)
    line = json.dumps(report)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(line)
    else:
        print(line)


def run(options: argparse.Namespace) -> Record:
    """Everything asked for; a section that fails is reported and the others still run."""
    config = decoder_config(SHAPES[options.shape], options.shape)
    rows_list = [int(rows) for rows in options.sweep_rows.split(",")]
    sites = [Site.of(config, name) for name in SITES]
    jobs = [(site, rows, tile) for site in sites for rows in rows_list for tile in candidates(site, rows)]
    wanted = options.do.split(",")
    report: Record = {"shape": options.shape}
    begin = time.perf_counter()
    if "sweep" in wanted:
        report["faults"] = compile_all(jobs, options.workers)
        _say(begin, f"compiled {len(jobs)} tiles, {len(report['faults'])} failed: {report['faults'][:2]}")
    report["device"] = torch.cuda.get_device_name()
    report["read_TB/s"] = read_ceiling() / 1e12
    binding = random_target(options.shape, max_model_len=8192)
    attach_store(binding, 1 << 18)
    report |= {"weight_bytes": binding.weight_bytes, "exactness": binding.exactness}
    _say(begin, f"read {report['read_TB/s']:.2f} TB/s, loaded, {binding.exactness}, chunks {binding.chunk_invariant}")
    context = options.context
    sections: dict[str, Callable[[], Any]] = {
        "check": lambda: invariance_grid(binding, context),
        "sweep": lambda: sweep(binding, jobs),
        "forward": lambda: forwards(binding, GRID, context),
        "parts": lambda: [parts(binding, rows, width, context) for rows, width in ((1, 1), (8, 4), (32, 8))],
        "prompt": lambda: [prompt_speed(binding, length) for length in (128, 512, 2048)],
        "library": lambda: library(binding, [16, 64, 128, 256, 2048]),
    }
    for name in wanted:
        try:
            report[name] = sections[name]()
        except Exception as error:
            report[name] = traceback.format_exception(error)[-3:]
        _say(begin, f"-- {name}")
        _show_sweep(report[name]) if name == "sweep" else _show(report[name])
    return report


def _show(found: Any) -> None:
    for one in found if isinstance(found, list) else [found]:
        shown = ", ".join(f"{k} {_short(v)}" for k, v in one.items()) if isinstance(one, dict) else one
        print(f"  {shown}", flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(begin: float, text: str) -> None:
    print(f"[{time.perf_counter() - begin:6.1f} s] {text}", flush=True)


def _show_sweep(records: Sequence[Record]) -> None:
    """The best three tiles per site and number of rows."""
    cells = dict.fromkeys((one["site"], one["rows"]) for one in records)
    for site, rows in cells:
        found = [one for one in records if (one["site"], one["rows"]) == (site, rows) and "us" in one]
        different = sum(not one["same"] for one in found)
        best = sorted(found, key=lambda one: float(one["us"]))[:4]
        shown = "; ".join(f"{'x'.join(map(str, one['tile'].values()))} {one['us']:.1f}us" for one in best)
        print(
            f"{site} rows {rows} ({best[0]['TB/s']:.2f} TB/s, {different} of {len(found)} differ): {shown}", flush=True
        )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
