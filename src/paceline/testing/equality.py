"""``python -m paceline.testing.equality``: runs the equality grid, whole or pairwise, and says what broke."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from .grid import FACTORS, WHOLE_GRID, Cell, CellResult, run_cell
from .pairwise import full_grid, pairwise


def pairwise_cells() -> list[Cell]:
    """A small set of cells in which every pair of factor values occurs: what continuous integration runs."""
    return [Cell(**values) for values in pairwise(FACTORS)]


def all_cells() -> list[Cell]:
    """Every cell of the grid, of the values that the whole grid is run with."""
    return [Cell(**values) for values in full_grid(WHOLE_GRID)]


def run_cells(cells: Sequence[Cell]) -> list[CellResult]:
    """Run cells one after another, showing progress on stderr and each broken cell at once."""
    results = []
    for number, cell in enumerate(cells, 1):
        result = run_cell(cell)
        results.append(result)
        if result.problems:
            print(f"\n{result}", file=sys.stderr)
        print(f"\r{number}/{len(cells)} cells", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if all cells are equal to plain decoding, else 1."""
    parser = argparse.ArgumentParser(prog="python -m paceline.testing.equality", description=__doc__)
    parser.add_argument("--pairwise", action="store_true", help="only the covering set that CI runs")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="run every N-th cell, starting with number I")
    for name, values in FACTORS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"only this value (of {', '.join(map(str, values))})")
    options = parser.parse_args(arguments)
    wanted = {name: value for name in FACTORS if (value := getattr(options, name)) is not None}
    cells = pairwise_cells() if options.pairwise else all_cells()
    cells = [cell for cell in cells if all(str(getattr(cell, name)) == value for name, value in wanted.items())]
    first, step = (int(part) for part in options.shard.split("/"))
    start = time.perf_counter()
    results = run_cells(cells[first::step])
    broken = [result for result in results if result.problems]
    drafted, accepted = sum(r.drafted for r in results), sum(r.accepted for r in results)
    print(
        f"{len(results) - len(broken)} of {len(results)} cells equal to plain decoding, "
        f"{sum(r.tokens for r in results)} tokens, {accepted} of {drafted} proposals accepted, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return 1 if broken or not results else 0


if __name__ == "__main__":
    sys.exit(main())
