"""``python -m paceline.bench.serve_bare``: tokens per second of the engine alone, kept busy by as many requests as a
server would be given. No HTTP, no event loop. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import time
from collections.abc import Sequence
from typing import Any

from ..core import env

env.use_passive_waiting()

from ..core.config import EngineConfig  # noqa: E402
from ..core.request import SamplingParams  # noqa: E402
from ..engine.consumer import ResultConsumer  # noqa: E402
from ..engine.engine import Engine  # noqa: E402
from ..engine.frontend import ChatOptions, Frontend  # noqa: E402
from ..engine.outputs import RequestOutput  # noqa: E402
from .workloads import read_workload  # noqa: E402


def bare_rate(
    engine: Engine, prompts: Sequence[str], options: dict[str, Any], load: tuple[int, float]
) -> dict[str, Any]:
    """Keep ``load[0]`` requests in flight for ``load[1]`` seconds behind a first round of them; what came out.

    ``options``: of every request. Text is made of the tokens, as a server does.
    """
    streams, seconds = load
    frontend = Frontend(engine)
    params = SamplingParams(**options)
    ready = [frontend.encode_chat([{"role": "user", "content": text}], ChatOptions()) for text in prompts]
    ended: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
    turns = itertools.count()

    def start() -> None:
        prompt = ready[next(turns) % len(ready)]
        frontend.submit(prompt, frontend.submission(prompt, params), lambda each: ResultConsumer(each, ended.put))

    def go_on() -> None:
        output = ended.get()
        if output.error is not None:
            raise output.error
        start()

    for _ in range(streams):
        start()
    for _ in range(streams):
        go_on()
    began, before, done = time.monotonic(), engine.stats().generation_tokens, 0
    while time.monotonic() < began + seconds:
        go_on()
        done += 1
    spent, tokens = time.monotonic() - began, engine.stats().generation_tokens - before
    return {"seconds": spent, "requests": done, "tokens": tokens, "tokens_per_second": tokens / spent}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m paceline.bench.serve_bare", description=__doc__)
    parser.add_argument("--settings", default="{}", help="engine settings as JSON")
    parser.add_argument("--prompts", default="copy")
    parser.add_argument("--options", default='{"max_tokens": 64, "temperature": 0.0}', help="request options as JSON")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args(arguments)
    engine = Engine.build(EngineConfig.build(**json.loads(chosen.settings)))
    try:
        prompts = [prompt.text for prompt in read_workload(chosen.prompts)]
        found = bare_rate(engine, prompts, json.loads(chosen.options), (chosen.streams, chosen.seconds))
    finally:
        engine.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
