"""A stuck engine is noticed by its health, and by nothing else: it goes on when it can."""

from __future__ import annotations

import threading
import time

from tests.server.kit import SPEC, answer, in_process, post, toy_engine

from paceline.testing.toy import ToyTarget

PATH = "/v1/completions"


def test_a_forward_that_hangs_fails_the_health_until_it_is_through() -> None:
    target = ToyTarget(SPEC)
    goes_on = threading.Event()
    goes_on.set()
    target.before = lambda call: goes_on.wait(20) and None
    with toy_engine(target=target) as engine, in_process(engine, stuck_timeout=1.0) as client:
        assert answer(client, PATH, prompt="a", max_tokens=2)["choices"] and engine.turn_seconds() == 0
        goes_on.clear()
        worker = threading.Thread(target=post, args=(client, PATH), kwargs={"prompt": "a", "max_tokens": 2})
        worker.start()
        while engine.turn_seconds() < 1.05:
            time.sleep(0.01)
        stuck = client.get("/health")
        assert (stuck.status_code, stuck.json()["status"]) == (503, "stuck")
        goes_on.set()
        worker.join(10)
        while engine.turn_seconds():
            time.sleep(0.001)
        assert client.get("/health").status_code == 200


def test_a_turn_that_is_quick_is_no_stuck_engine_however_long_the_work() -> None:
    with toy_engine() as engine, in_process(engine, stuck_timeout=1.0) as client:
        bodies = [{"prompt": "a", "max_tokens": 200, "seed": seed, "ignore_eos": True} for seed in range(20)]
        workers = [threading.Thread(target=post, args=(client, PATH), kwargs=body) for body in bodies]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            assert client.get("/health").status_code == 200
            time.sleep(0.05)
