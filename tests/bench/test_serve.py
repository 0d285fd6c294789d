"""The load benchmark: its plan, both ways to send, figures by hand, and the command against scripted endpoints."""

from __future__ import annotations

import asyncio
import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.bench.fake_endpoint import Reply, answer, running

from paceline.bench import serve_report
from paceline.bench.serve import (
    Block,
    ServeArm,
    ServeMeasurement,
    ServeSettings,
    closed_loop,
    cut,
    measure_serve,
    open_loop,
    plan_asks,
    poisson_offsets,
)
from paceline.bench.serve_client import Answer, Ask, Endpoint, open_client
from paceline.bench.serve_figures import ServedAcceptance, Spread, served_figures, within_targets
from paceline.cli.main import main
from paceline.core.errors import ConfigError

_LOAD = ((0.1,), (0.2,))


def test_arrivals_are_a_seeded_poisson_process() -> None:
    offsets = poisson_offsets(20_000, rate=4.0, seed=3)
    gaps = [after - before for before, after in pairwise(offsets)]
    assert offsets == poisson_offsets(20_000, rate=4.0, seed=3) != poisson_offsets(20_000, rate=4.0, seed=4)
    assert offsets[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.03)  # exponential: deviation = mean


def test_the_plan_repeats_the_prompts_and_is_the_same_for_a_seed() -> None:
    settings = ServeSettings(urls=("http://x",), prompts=("prose",), limit=3, requests=7, blocks=3, seed=5)
    asks = plan_asks(settings)
    assert asks == plan_asks(settings)
    assert [ask.place for ask in asks] == list(range(7))
    assert len({ask.text for ask in asks[:3]}) == 3
    assert [ask.options["seed"] for ask in asks] == list(range(5, 12))
    parts = cut(asks, 3)
    assert [ask for part in parts for ask in part] == asks
    assert [len(part) for part in parts] == [2, 2, 3]


def _asks(count: int) -> list[Ask]:
    return [Ask(place, f"prompt {place}", {}) for place in range(count)]


def test_open_loop_waits_for_no_answer() -> None:
    async def send(url: str) -> list[Answer]:
        async with open_client(20.0) as client:
            return await open_loop(client, Endpoint(url, "m"), [(ask, 0.01 * ask.place) for ask in _asks(6)])

    with running(lambda body: answer("a", hold=6)) as endpoint:
        answers = asyncio.run(send(endpoint.url))
        assert endpoint.most == 6
    dues = [each.due - answers[0].due for each in answers]
    assert dues == pytest.approx([0.01 * place for place in range(6)])
    assert all(each.first_seconds is not None and each.due <= each.sent < each.deliveries[0] for each in answers)


def test_closed_loop_keeps_its_concurrency() -> None:
    async def send(url: str) -> list[Answer]:
        async with open_client(20.0) as client:
            return await closed_loop(client, Endpoint(url, "m"), _asks(7), 3)

    with running(lambda body: answer("a", hold=3)) as endpoint:
        answers = asyncio.run(send(endpoint.url))
        assert endpoint.most == 3
    assert [each.place for each in answers] == list(range(7))


def test_endpoints_take_turns_on_the_same_requests() -> None:
    order: list[str] = []

    def script(name: str) -> Any:
        def reply(body: dict[str, Any]) -> Reply:
            order.append(name)
            return answer(body["messages"][0]["content"][:5], tokens=4)

        return reply

    with running(script("a")) as a, running(script("b")) as b:
        urls = (f"A={a.url}", f"B={b.url}/v1")
        settings = ServeSettings(urls=urls, requests=8, blocks=4, rate=None, concurrency=1, warm_up=0)
        found = measure_serve(settings)
    assert order == ["a", "a", "b", "b", "b", "b", "a", "a", "b", "b", "a", "a", "a", "a", "b", "b"]
    assert a.seen == b.seen
    assert a.seen[0]["model"] == "the-model"
    ours = served_figures(found)[1]
    assert (ours.arm, ours.completed, ours.compared, ours.same_text) == ("B", 8, 8, 8)


def test_the_plain_arm_switches_speculation_off() -> None:
    with running(lambda body: answer("x")) as endpoint:
        settings = ServeSettings(
            urls=(endpoint.url,), plain=True, requests=2, blocks=1, rate=None, concurrency=1, warm_up=1
        )
        found = measure_serve(settings)
    assert [arm.name for arm in found.arms] == [f"{endpoint.url} plain", endpoint.url]
    assert [body.get("speculative") for body in endpoint.seen] == [False, None, False, False, None, None]


def _answer(place: int, times: tuple[float, ...], tokens: int | None, **more: Any) -> Answer:
    """Due at 10 s, text at ``times`` behind that, ended with the last."""
    deliveries = [10.0 + time for time in times]
    return Answer(place, 10.0, 10.001, deliveries[-1] if deliveries else 10.5, deliveries, "t", tokens, 2, **more)


def _measurement() -> ServeMeasurement:
    settings = ServeSettings(urls=("http://a", "http://b"), target_ttft_ms=500.0, target_tpot_ms=100.0)
    spec = {"num_spec_steps": 4, "num_draft_tokens": 12, "num_accepted_draft_tokens": 6, "forwards": 5}
    spec["tokens_per_forward"] = 2.0  # type: ignore[assignment]
    base = [
        _answer(0, (0.4, 0.8, 1.2), 9),  # 0.1 s per token: just in the targets
        _answer(1, (0.6, 1.0), 11),  # first token late
        _answer(2, (0.2, 1.0), 5),  # 0.2 s per token
        _answer(3, (), None, error="status 429", message="full"),
    ]
    fast = [_answer(place, (0.2, 0.4), tokens, spec=spec) for place, tokens in ((0, 9), (1, 11), (2, 5))]
    fast.append(_answer(3, (0.2,), 1))
    arms = [ServeArm("a", Endpoint("http://a", "m")), ServeArm("b", Endpoint("http://b", "m"))]
    blocks = {"a": [Block(base, 2.0)], "b": [Block(fast[:2], 0.5), Block(fast[2:], 0.5)]}
    return ServeMeasurement(settings, arms, {"a": None, "b": {"version": "1"}}, blocks)


def test_figures_of_one_endpoint() -> None:
    a = served_figures(_measurement())[0]
    assert (a.requests, a.completed, a.errors, a.examples) == (4, 3, {"status 429": 1}, {"status 429": "full"})
    assert (a.output_tokens, a.output_tokens_per_second, a.prompt_tokens) == (25, 12.5, 6)
    assert (a.goodput, a.within_targets) == (0.5, 0.25)
    assert a.ttft_ms is not None and a.itl_ms is not None and a.tpot_ms is not None and a.latency_ms is not None
    assert a.ttft_ms.p50 == pytest.approx(400.0)
    assert (a.itl_ms.count, a.itl_ms.max) == (4, pytest.approx(800.0))
    assert a.tpot_ms.mean == pytest.approx((100.0 + 40.0 + 200.0) / 3)
    assert a.latency_ms.max == pytest.approx(1200.0)
    assert a.lag_ms == pytest.approx(1.0)
    assert (a.against, a.compared, a.acceptance) == (None, 0, None)


def test_figures_against_the_first_endpoint() -> None:
    b = served_figures(_measurement())[1]
    assert b.against is not None
    # per token: 0.1, 0.04, 0.2 against 0.025, 0.02, 0.05
    assert b.against.value == pytest.approx((4.0 * 2.0 * 4.0) ** (1 / 3))
    assert (b.compared, b.same_text, b.seconds, b.within_targets) == (3, 3, 1.0, 1.0)
    assert b.acceptance == ServedAcceptance(3, 2.5, 0.5, 12, 36, 18, 2.0)


def test_an_answer_that_failed_or_said_nothing_keeps_no_target() -> None:
    settings = _measurement().settings
    assert within_targets(_answer(0, (0.1,), 1), settings)
    assert not within_targets(_answer(0, (), 0), settings)
    assert not within_targets(_answer(0, (0.1, 0.2), 3, error="cut"), settings)
    assert not within_targets(_answer(0, (0.1, 0.2), 3, left=True), settings)


def test_spread() -> None:
    assert Spread.of([None]) is None
    found = Spread.of([0.001 * value for value in range(1, 102)])
    assert found is not None
    assert (found.count, found.max) == (101, pytest.approx(101.0))
    assert (found.p50, found.p90, found.p99) == pytest.approx((51.0, 91.0, 100.0))


def test_the_report_shows_rates_latencies_acceptance_and_errors() -> None:
    found = _measurement()
    text = serve_report.markdown(found, _LOAD)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Serve benchmark",
        "## Rates",
        "## Latency",
        "## Acceptance",
        "## Errors",
    ]
    assert "| a | status 429 | 1 | full |" in text
    document = serve_report.document(found, _LOAD)
    assert json.loads(json.dumps(document))["figures"][1]["acceptance"]["mean_acceptance_length"] == 2.5
    assert document["arms"][1]["server"] == {"version": "1"}


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plot'")
    serve_report.draw(_measurement(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"urls": ()}, "url"),
        ({"requests": 0}, "requests"),
        ({"rate": 0.0}, "rate"),
        ({"requests": 2, "blocks": 3}, "blocks"),
        ({"api": "soap"}, "api"),
        ({"models": ("a", "b")}, "model"),
        ({"urls": ("ftp://x",)}, "url"),
        ({"urls": ("http://127.0.0.1:9",)}, "url"),
        ({"urls": ("http://x", "http://x"), "models": ("m",)}, "url"),
        ({"prompts": ("nowhere.jsonl",)}, "prompts"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Exception, match=rf"^{field}: "):
        measure_serve(ServeSettings(**({"urls": ("http://x",)} | settings)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--requests", "4", "--blocks", "2", "--rate", "200", "--prompts", "copy", "--limit", "2"]
    with running(lambda body: answer("a", "b", tokens=6)) as endpoint:
        named = ["--url", endpoint.url, "--api-key", "k1"]
        code = main(["bench", "serve", *named, *sizes, "--report", str(tmp_path / "r.md")])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    shown = captured.out
    document = json.loads(shown.splitlines()[-1])
    assert document["figures"][0]["output_tokens"] == 24
    assert document["settings"]["rate"] == 200.0
    assert "k1" not in shown
    assert "## Latency" in (tmp_path / "r.md").read_text("utf-8")


def test_an_endpoint_that_answers_nothing_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "serve", "--requests", "2", "--blocks", "1", "--concurrency", "1", "--warm-up", "0"]
    with running(lambda body: Reply(status=429)) as endpoint:
        assert main([*arguments, "--url", endpoint.url]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["figures"][0]["errors"] == {"status 429": 2}
    assert "answered no request: status 429" in captured.err


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--rate", "1", "--concurrency", "2"], "concurrency"),
        (["--extra", "{"], "extra"),
        (["--extra", "[1]"], "extra"),
        (["--report", "nowhere/x.md"], "report"),
        ([], "url"),
    ],
)
def test_bad_flags(more: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--url", "http://127.0.0.1:9"] if more else []
    assert main(["bench", "serve", *url, *more]) == 2
    assert f"paceline: {word}: " in capsys.readouterr().err


def test_settings_hold_no_key() -> None:
    settings = ServeSettings(urls=("http://x",), api_keys=("secret",))
    assert "secret" not in json.dumps(settings.document()) + repr(settings) + repr(Endpoint("u", "m", api_key="secret"))
    with pytest.raises(ConfigError):
        ServeSettings(urls=("http://x",), api_keys=("a", "b")).check()
