"""A GPU measurement as tables and as a Markdown page. Formats the document; computes nothing but names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..sheets import Sheet, markdown_page

Document = Mapping[str, Any]


def sheets(document: Document) -> list[Sheet]:
    """A table for every part that was measured, then what failed."""
    parts = document["parts"]
    makers = {
        "bandwidth": _bandwidth,
        "forward": _forward,
        "plain": _plain,
        "table": _table,
        "draft": _draft,
        "grid": _grid,
        "idle": _idle,
        "null": _null,
        "peers": _peers,
    }
    found = [makers[name](part) for name, part in parts.items() if "failure" not in part]
    found += _kernels(parts.get("idle", {}))
    found += _memory({name: part["memory"] for name, part in parts.items() if "memory" in part})
    broken = [(name, part["failure"]) for name, part in parts.items() if "failure" in part]
    if broken:
        found.append(Sheet("Not measured", ("part", "reason"), broken))
    return found


def lead(document: Document) -> list[str]:
    """Machine, model and settings in a few lines."""
    machine, model, settings = document["machine"], document["model"], document["settings"]
    where = machine.get("gpu", machine["device"])
    what = (
        f"{where}, torch {machine['torch']}, triton {machine.get('triton', 'none')}; random weights of the shape "
        f"{model['shape']}, {model['dtype']}, exactness {model['exactness']}."
    )
    how = (
        f"A step streams {model['step_bytes'] / 1e9:.2f} GB of weights and {model['kv_bytes_per_token'] / 1e3:.0f} kB "
        f"for each position of each row. Prompts of {settings['prompt_tokens']} tokens, {settings['tokens']} tokens "
        f"per stream, at most {settings['depth']} proposals a round. {document.get('seconds', 0.0):.0f} seconds."
    )
    return [what, how]


def markdown(document: Document) -> str:
    return markdown_page("Decode benchmark on a GPU", lead(document), sheets(document))


def worst(document: Document) -> dict[str, str]:
    """Part -> its worst cell in words, for parts that have cells to compare."""
    found = {}
    parts = {name: part for name, part in document["parts"].items() if "failure" not in part}
    if "forward" in parts:
        cell = max(
            (cell for cell in parts["forward"]["cells"] if cell["limit"]), key=lambda c: c["over_one"] / c["limit"]
        )
        found["forward"] = (
            f"B={cell['rows']} T={cell['width']}: {cell['over_one']:.3f} of T=1, may be {cell['limit']:.2f}"
        )
    for name in ("table", "grid"):
        if name in parts:
            cell = min(parts[name]["cells"], key=lambda c: c["speedup"])
            rate = f", acceptance {cell['rate']}" if "rate" in cell else ""
            found[name] = f"B={cell['rows']}{rate}: {cell['speedup']:.3f}x plain"
    return found


def _bandwidth(part: Document) -> Sheet:
    row = (f"{part['reads'] / 1e12:.3f}", f"{part['copies'] / 1e12:.3f}", part["launch"])
    note = "A kernel that only reads, over 5 GB; a plain copy counts bytes read and written."
    return Sheet("Bandwidth of the memory", ("reads TB/s", "copy TB/s", "fastest launch"), [row], note)


def _forward(part: Document) -> Sheet:
    rows = [
        (
            f"{cell['rows']}",
            f"{cell['width']}",
            f"{cell['rows'] * cell['width']}",
            f"{cell['ms']:.3f}",
            f"{cell['floor_ms']:.3f}",
            f"{cell['ms'] / cell['floor_ms']:.2f}",
            f"{cell['over_one']:.3f}",
            "–" if cell["limit"] is None else f"{cell['limit']:.2f}",
            "yes" if cell["same"] else "NO",
        )
        for cell in part["cells"]
    ]
    headings = ("B", "T", "B·T", "ms", "floor ms", "over floor", "over T=1", "may be", "row 0 bitwise")
    note = (
        f"One verify forward with all logits as a graph, {part['context']} positions behind each row; floor: bytes of "
        "weights, keys and values over the bandwidth above."
    )
    return Sheet("Verify forward", headings, rows, note)


def _plain(part: Document) -> Sheet:
    rows = [
        (
            f"{cell['rows']}",
            f"{cell['ms_per_token']:.3f}",
            f"{cell['tokens_per_second']:.0f}",
            f"{cell['floor_ms']:.3f}",
            f"{cell['of_bandwidth']:.2f}",
        )
        for cell in part["cells"]
    ]
    headings = ("B", "ms a token", "tokens/s", "floor ms", "of bandwidth")
    return Sheet("Plain decoding", headings, rows, "Through the whole engine, per token and stream.")


def _compared_rows(cells: Sequence[Document], rate: bool) -> list[tuple[str, ...]]:
    return [
        (
            f"{cell['rows']}",
            *((f"{cell['rate']:.2f}",) if rate else ()),
            f"{cell['plain_ms_per_token']:.3f}",
            f"{cell['ms_per_token']:.3f}",
            f"{cell['speedup']:.2f}x",
            f"{cell['acceptance_length']:.2f}",
            f"{cell['depth']:.2f}",
            f"{cell['efficiency']:.2f}",
        )
        for cell in cells
    ]


_COMPARED = ("plain ms a token", "ms a token", "speed-up", "tokens a round", "proposals", "efficiency")


def _table(part: Document) -> Sheet:
    note = (
        f"Depth {part['depth']}, acceptance forced to a mean length of {part['length']}; per token and stream, plain: "
        "an engine without a drafter. Efficiency: speed-up over tokens a round."
    )
    return Sheet("Speculative decoding at a fixed depth", ("B", *_COMPARED), _compared_rows(part["cells"], False), note)


def _grid(part: Document) -> Sheet:
    note = f"Adaptive depth up to {part['depth']}, forced acceptance of each proposal; per token and stream."
    headings = ("B", "acceptance", *_COMPARED)
    return Sheet("Adaptive depth against plain decoding", headings, _compared_rows(part["cells"], True), note)


def _draft(part: Document) -> Sheet:
    floor = part["step_floor_ms"]
    rows = [
        (
            f"{cell['rows']}",
            f"{cell['depth']}",
            f"{cell['round_ms']:.3f}",
            f"{cell['verify_ms']:.3f}",
            f"{cell['draft_ms_per_token']:.3f}" if cell["depth"] else "–",
            f"{cell['draft_ms_per_token'] / floor:.2f}" if cell["depth"] else "–",
        )
        for cell in part["cells"]
    ]
    note = (
        f"A drafted token must read {part['step_bytes'] / 1e6:.0f} MB, {floor:.3f} ms. Its cost: the round less the "
        "verify forward of that width and what a round without proposals adds to its own."
    )
    headings = ("B", "depth", "round ms", "verify ms", "ms a drafted token", "over its bytes")
    return Sheet("Cost of drafting", headings, rows, note)


def _idle(part: Document) -> Sheet:
    rows = [
        (name, f"{cell['round_ms']:.3f}", f"{cell['between']:.1%}", f"{cell['within']:.1%}", f"{cell['events']}")
        for name, cell in part.items()
        if isinstance(cell, dict)
    ]
    headings = ("rounds at B = 1", "round ms", "idle between rounds", "gaps between kernels", "operations seen")
    note = "Shares of the profiler's trace; tracing itself lengthens the gaps. Round ms: without the profiler."
    return Sheet("Idle GPU", headings, rows, note)


def _kernels(part: Document) -> list[Sheet]:
    """Where the time of a round goes, for every kind of round that was traced."""
    headings = ("operation", "per round", "µs a round", "share of busy time")
    return [
        Sheet(
            f"Operations of a round: {name}",
            headings,
            [
                (
                    entry["name"][:60],
                    f"{entry['per_round']:.1f}",
                    f"{entry['us_per_round']:.1f}",
                    f"{entry['share']:.1%}",
                )
                for entry in cell["kernels"]
            ],
            "From the profiler's trace at B = 1.",
        )
        for name, cell in part.items()
        if isinstance(cell, dict)
    ]


def _memory(engines: Mapping[str, Document]) -> list[Sheet]:
    """What the engines of some parts planned to hold, and what was in use on the device."""
    purposes = ("base", "weights", "kv_cache", "graphs", "transient", "total")
    rows = [
        (
            name,
            *(f"{memory['planned'][purpose] / 1e9:.2f}" for purpose in purposes),
            f"{memory['held'] / 1e9:.2f}",
            f"{memory['of_planned']:.3f}",
            f"{memory['graphs']['captured']}",
        )
        for name, memory in engines.items()
    ]
    note = "GB. Base: what was in use before the model. In use: by everybody on the device, at most."
    headings = ("engine of the part", *purposes, "in use", "of the plan", "captured rounds")
    return [Sheet("Memory", headings, rows, note)] if rows else []


def _null(part: Document) -> Sheet:
    rows = [
        (name, f"{cell['round_ms']:.3f}", f"{cell['rounds']}") for name, cell in part.items() if isinstance(cell, dict)
    ]
    return Sheet("Rounds of a model that costs nothing", ("rounds at B = 1", "round ms", "rounds"), rows)


def _peers(part: Document) -> Sheet:
    row = (f"transformers {part['transformers']}", f"{part['ms_per_token']:.3f}", f"{part['compile_seconds']:.0f}")
    return Sheet("Peers", ("library", "ms a token", "seconds to compile"), [row], part["settings"])
