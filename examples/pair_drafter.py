"""A drafter of one's own: the successors of word pairs, counted in the request's own text.

For every token, and for every pair of neighbouring tokens, it remembers what came next and how often. A proposal is a
walk: the most frequent successor of the last two tokens, or of the last one where the pair is new, then the same again
from there. Among equally frequent successors the newest wins. Memory is bounded: the contexts seen longest ago are
forgotten, and of each context the rarest successors.

    python examples/pair_drafter.py          # the equality check on a tiny model; exit code 1 if it finds anything
    python examples/pair_drafter.py --demo   # one answer of the demo model, and how much of it was accepted
"""

import sys
from collections.abc import Sequence

from paceline import LLM, SamplingParams
from paceline.draft.base import TokenDrafter
from paceline.testing.conformance import check_provider

Context = tuple[int, ...]


class Successors:
    """What one request has taught: counts by context, the context seen longest ago first."""

    def __init__(self) -> None:
        self.seen = 0
        self.counts: dict[Context, dict[int, int]] = {}


class PairDrafter(TokenDrafter):
    """Proposes the most frequent successors of the last two tokens, falling back to those of the last one."""

    id = "pairs"

    def __init__(self, max_contexts: int = 16384, max_successors: int = 8) -> None:
        self.max_contexts = max_contexts
        self.max_successors = max_successors

    def new_state(self, prompt: Sequence[int]) -> Successors:
        return Successors()  # the first propose brings the prompt as well

    def propose(self, state: Successors, tokens: Sequence[int], max_tokens: int) -> list[int]:
        for at in range(max(state.seen, 1), len(tokens)):
            self._count(state, (tokens[at - 1],), tokens[at])
            if at > 1:
                self._count(state, (tokens[at - 2], tokens[at - 1]), tokens[at])
        state.seen = len(tokens)
        text = list(tokens[-2:])
        start = len(text)
        while len(text) - start < max_tokens:
            successors = state.counts.get(tuple(text[-2:])) or state.counts.get((text[-1],))
            if not successors:
                break
            text.append(max(reversed(successors), key=successors.__getitem__))  # the last key is the newest
        return text[start:]

    def _count(self, state: Successors, context: Context, token: int) -> None:
        successors = state.counts.pop(context, {})
        count = successors.pop(token, 0) + 1
        if len(successors) >= self.max_successors:
            del successors[min(successors, key=successors.__getitem__)]
        successors[token] = count
        state.counts[context] = successors
        if len(state.counts) > self.max_contexts:
            del state.counts[next(iter(state.counts))]


def main(arguments: Sequence[str]) -> int:
    if "--demo" in arguments:
        prompt = "Repeat after me: the red fox, the red hen, the red fox, the red hen, the red fox,"
        with LLM("demo", drafter=PairDrafter(), spec_tokens=4) as llm:
            (out,) = llm.generate(prompt, SamplingParams(max_tokens=48, temperature=0.0))
        print(out.text)
        print(f"accepted {out.metrics.speculative_decoding.draft_acceptance_rate:.0%} of the proposals")
        return 0
    report = check_provider(PairDrafter)
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
