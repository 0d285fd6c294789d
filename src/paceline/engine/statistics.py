"""Updates of the speculation statistics (spec 17.2), always when a round is read."""

from __future__ import annotations

from ..core.round import RowResult
from ..core.stats import EngineStats, SpecStats


def count_prefill(stats: SpecStats, generated: int) -> None:
    """Prefill is complete: the target has been called for this row."""
    stats.target_calls += 1
    stats.generated = generated


def count_round(stats: SpecStats, result: RowResult, generated: int) -> None:
    """One delivered round of a row. Acceptance counts before any cut by the consumer (spec 17.3)."""
    stats.target_calls += 1
    stats.generated = generated
    if result.source == "span":
        stats.span_rounds += 1
        return
    drafted = len(result.proposals)
    if not drafted:
        stats.plain_rounds += 1
        return
    stats.rounds += 1
    stats.drafted += drafted
    stats.accepted += result.accepted
    stats.acceptance_lengths.append(result.accepted)
    add_by_position(stats.drafted_by_pos, drafted)
    add_by_position(stats.accepted_by_pos, result.accepted)


def count_group_round(stats: EngineStats, results: list[RowResult], *, on_device: bool, reads: int) -> None:
    """One round of the whole group; rows are counted by what the round was for them."""
    stats.rounds += 1
    stats.host_reads += reads
    stats.device_rounds += on_device
    for result in results:
        depth = 0 if result.source == "span" else len(result.proposals)
        stats.depth_histogram[depth] = stats.depth_histogram.get(depth, 0) + 1
        stats.bad_rows += result.bad
        if result.source == "span":
            stats.span_rounds += 1
            stats.span_tokens += len(result.proposals)
            stats.accepted_span_tokens += result.accepted
        elif not depth:
            stats.plain_rounds += 1
        else:
            stats.num_drafts += 1
            stats.num_draft_tokens += depth
            stats.num_accepted_tokens += result.accepted
            add_by_position(stats.draft_tokens_by_pos, depth)
            add_by_position(stats.accepted_tokens_by_pos, result.accepted)


def add_by_position(counts: list[int], length: int) -> None:
    """Add one to the first ``length`` positions, growing the list as needed."""
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1
