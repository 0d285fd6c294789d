"""``bench serve``: requests on a schedule against OpenAI endpoints, two or more of them in interleaved blocks.

Plans and sends; what the times mean is computed in :mod:`.serve_figures`. Loads no model.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.errors import ConfigError
from .pairs import interleaved
from .serve_client import APIS, CHAT, Answer, Ask, Client, Endpoint, open_client
from .workloads import BUILTIN, read_workload, take_evenly

#: Hears of the stage, the requests answered and the requests to send.
Progress = Callable[[str, int, int], None]

#: Body field that switches drafting off for one request.
PLAIN_FIELDS = {"speculative": False}


@dataclass(frozen=True)
class ServeSettings:
    """What to send where. ``urls``: endpoints, each ``URL`` or ``NAME=URL``; ``plain``: also send every request to the
    first one with speculation off, which is then what all are compared with. ``models``: one per endpoint, one for all,
    or none (the first that each lists).

    ``rate``: requests per second, as a Poisson process whose arrivals wait for nobody (open loop); ``None``: so many
    as ``concurrency`` allows, each sent when one ended (closed loop). ``requests``: per endpoint, cut into ``blocks``
    that alternate between the endpoints. ``extra``: further fields of every body.
    ``target_ttft_ms``, ``target_tpot_ms``: what an answer must keep to count for goodput.
    """

    urls: tuple[str, ...]
    models: tuple[str, ...] = ()
    api: str = CHAT
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    plain: bool = False
    prompts: tuple[str, ...] = BUILTIN
    limit: int | None = None
    requests: int = 64
    rate: float | None = 1.0
    concurrency: int = 8
    blocks: int = 4
    warm_up: int = 2
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    timeout: float = 600.0
    target_ttft_ms: float = 2000.0
    target_tpot_ms: float = 200.0

    def check(self) -> None:
        """Raise :class:`ConfigError` naming the setting that cannot be honoured. Sends nothing."""
        if not self.urls:
            raise ConfigError("url", "is missing; name an endpoint, for example http://localhost:8000")
        for name, least in (("requests", 1), ("concurrency", 1), ("blocks", 1), ("max_tokens", 1), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise ConfigError(name, f"must be at least {least}, not {getattr(self, name)}")
        for name in ("rate", "timeout", "target_ttft_ms", "target_tpot_ms"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(name, f"must be a number above 0, not {value}")
        if self.blocks > self.requests:
            raise ConfigError("blocks", f"must be at most the {self.requests} requests, not {self.blocks}")
        if self.api not in APIS:
            raise ConfigError("api", f"must be one of {', '.join(APIS)}, not {self.api!r}")
        for name, words in (("model", self.models), ("api_key", self.api_keys)):
            if len(words) not in (0, 1, len(self.urls)):
                raise ConfigError(name, f"is given {len(words)} times for {len(self.urls)} endpoints; give 1 or all")

    def options(self, place: int) -> dict[str, Any]:
        """Body fields of one request. Its seed is its own, and the same for every endpoint."""
        chosen: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        chosen["seed"] = self.seed + place
        if self.ignore_eos:
            chosen["ignore_eos"] = True
        return chosen | self.extra

    def document(self) -> dict[str, Any]:
        """Plain JSON, without the keys."""
        return {name: value for name, value in asdict(self).items() if name != "api_keys"}


@dataclass(frozen=True)
class ServeArm:
    """One endpoint under its name."""

    name: str
    endpoint: Endpoint


@dataclass(frozen=True)
class Block:
    """A part of the plan as one endpoint answered it. ``seconds``: from the first request due to the last end."""

    answers: list[Answer]
    seconds: float


@dataclass
class ServeMeasurement:
    """Everything observed. ``version``: what each endpoint says it is, by name, if it says so."""

    settings: ServeSettings
    arms: list[ServeArm]
    versions: dict[str, Any]
    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def answers(self, arm: str) -> list[Answer]:
        return [answer for block in self.blocks[arm] for answer in block.answers]


def measure_serve(settings: ServeSettings, progress: Progress | None = None) -> ServeMeasurement:
    """Send the plan to every endpoint. Raises :class:`ConfigError` for settings and endpoints that cannot be used."""
    settings.check()
    return asyncio.run(_measure(settings, progress or (lambda stage, done, total: None)))


async def _measure(settings: ServeSettings, tell: Progress) -> ServeMeasurement:
    asks = plan_asks(settings)
    async with open_client(settings.timeout) as client:
        arms = [ServeArm(name, endpoint) for name, endpoint in await _endpoints(settings, client)]
        versions = {arm.name: await _version(client, arm.endpoint) for arm in arms}
        found = ServeMeasurement(settings, arms, versions, {arm.name: [] for arm in arms})
        for arm in arms:
            for ask in asks[: settings.warm_up]:
                tell("Warming up", 0, 0)
                await client.ask(arm.endpoint, ask)
        total, done = len(asks) * len(arms), 0
        for number, part in enumerate(cut(asks, settings.blocks)):
            offsets = _offsets(settings, len(part), number)
            for arm in interleaved(arms, number):
                found.blocks[arm.name].append(await _run_block(client, arm.endpoint, part, (settings, offsets)))
                done += len(part)
                tell("Measuring", done, total)
    return found


def plan_asks(settings: ServeSettings) -> list[Ask]:
    """The requests in the order they are sent: the prompts, shuffled by the seed, again and again."""
    prompts = [prompt for name in settings.prompts for prompt in take_evenly(read_workload(name), settings.limit)]
    if not prompts:
        raise ConfigError("prompts", "holds no prompt; name at least one workload")
    generator = random.Random(settings.seed)
    order: list[str] = []
    while len(order) < settings.requests:
        order += [prompt.text for prompt in generator.sample(prompts, len(prompts))]
    return [Ask(place, text, settings.options(place)) for place, text in enumerate(order[: settings.requests])]


def cut(asks: Sequence[Ask], blocks: int) -> list[Sequence[Ask]]:
    """``blocks`` runs of nearly equal length, in order; none is empty."""
    return [asks[k * len(asks) // blocks : (k + 1) * len(asks) // blocks] for k in range(blocks)]


def poisson_offsets(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which ``count`` requests are due: exponential gaps of mean ``1 / rate``, the first at 0."""
    generator = random.Random(seed)
    offsets, now = [], 0.0
    for _ in range(count):
        offsets.append(now)
        now += generator.expovariate(rate)
    return offsets


def _offsets(settings: ServeSettings, count: int, number: int) -> list[float] | None:
    """The same for every endpoint within a block; ``None``: closed loop."""
    if settings.rate is None:
        return None
    return poisson_offsets(count, settings.rate, settings.seed * 7919 + number)


async def _run_block(
    client: Client, endpoint: Endpoint, asks: Sequence[Ask], how: tuple[ServeSettings, list[float] | None]
) -> Block:
    settings, offsets = how
    start = time.monotonic()
    if offsets is None:
        answers = await closed_loop(client, endpoint, asks, settings.concurrency)
    else:
        answers = await open_loop(client, endpoint, list(zip(asks, offsets, strict=True)))
    return Block(answers, max(answer.end for answer in answers) - start)


async def open_loop(client: Client, endpoint: Endpoint, schedule: Sequence[tuple[Ask, float]]) -> list[Answer]:
    """Send every request at its time, whether or not earlier ones have ended; times count from when it was due."""
    start = time.monotonic()

    async def send(ask: Ask, offset: float) -> Answer:
        await asyncio.sleep(start + offset - time.monotonic())
        return await client.ask(endpoint, ask, due=start + offset)

    return list(await asyncio.gather(*(send(ask, offset) for ask, offset in schedule)))


async def closed_loop(client: Client, endpoint: Endpoint, asks: Sequence[Ask], concurrency: int) -> list[Answer]:
    """Keep ``concurrency`` requests in flight; answers in the order of ``asks``."""
    waiting = iter(asks)
    answers: list[Answer] = []

    async def work() -> None:
        for ask in waiting:
            answers.append(await client.ask(endpoint, ask))

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(asks)))))
    return sorted(answers, key=lambda answer: answer.place)


async def _endpoints(settings: ServeSettings, client: Client) -> list[tuple[str, Endpoint]]:
    found: list[tuple[str, Endpoint]] = []
    for place, word in enumerate(settings.urls):
        name, url = _named(word)
        key = _of(settings.api_keys, place)
        endpoint = Endpoint(url, _of(settings.models, place) or "", settings.api, key)
        if not endpoint.model:
            endpoint = Endpoint(url, await _first_model(client, endpoint), settings.api, key)
        if settings.plain and place == 0:
            plain = Endpoint(url, endpoint.model, settings.api, key, PLAIN_FIELDS)
            found.append((f"{name or url} plain", plain))
        found.append((name or url, endpoint))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise ConfigError("url", f"names the same endpoint twice: {', '.join(names)}; call them NAME=URL")
    return found


def _named(word: str) -> tuple[str, str]:
    name, sign, url = word.partition("=")
    if sign and "/" not in name:
        word = url
    else:
        name = ""
    if not word.startswith(("http://", "https://")):
        raise ConfigError("url", f"must start with http:// or https://, not {word!r}")
    return name, word


def _of(words: Sequence[str], place: int) -> str | None:
    return None if not words else words[place if len(words) > 1 else 0]


async def _first_model(client: Client, endpoint: Endpoint) -> str:
    listed = await client.get(endpoint, "/v1/models")
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not entries:
        raise ConfigError("model", f"{endpoint.root} lists no model; name one")
    return str(entries[0]["id"])


async def _version(client: Client, endpoint: Endpoint) -> Any:
    """What the endpoint says at ``/version``; not every kind of server has that."""
    try:
        return await client.get(endpoint, "/version")
    except ConfigError:
        return None
