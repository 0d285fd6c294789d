"""Logs of the server: text or one JSON object a line, and a periodic line on what speculation does. No prompt, no
answer and no key is ever logged."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from ..core.stats import EngineStats
from .state import ServerState

_LOG = logging.getLogger("paceline.speculation")
_USUAL = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and what the record carries beside them."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _USUAL}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """A record for people: time, level, message, then the rest as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{key}={value}" for key, value in record.__dict__.items() if key not in _USUAL)
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{stamp} {record.levelname.lower()} {record.getMessage()}{' ' if facts else ''}{facts}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure_logging(log_format: str) -> None:
    """Send the logs of paceline and of the HTTP server to standard error in one format."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    for name in ("paceline", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


async def report_speculation(state: ServerState) -> None:
    """Every ``log_interval`` seconds, if anything was generated in it, one line on speed and speculation."""
    interval = state.settings.log_interval
    if not interval:
        return
    before, began = EngineStats(), time.monotonic()
    while True:
        await asyncio.sleep(interval)
        now = state.stats()
        if now is None:
            continue
        if now.generation_tokens > before.generation_tokens:
            facts = speculation_facts(before, now, time.monotonic() - began)
            info = state.info()
            facts |= {"running": info["num_requests_running"], "waiting": info["num_requests_waiting"]}
            _LOG.info("speculation", extra=facts)
        before, began = now, time.monotonic()


def speculation_facts(before: EngineStats, now: EngineStats, seconds: float) -> dict[str, Any]:
    """Figures of the time between two states of the engine. Definitions: docs/server.md."""
    drafts = now.num_drafts - before.num_drafts
    drafted = now.num_draft_tokens - before.num_draft_tokens
    accepted = now.num_accepted_tokens - before.num_accepted_tokens
    facts: dict[str, Any] = {
        "tokens_per_second": round((now.generation_tokens - before.generation_tokens) / seconds, 1),
        "drafts": drafts,
        "drafted": drafted,
        "accepted": accepted,
    }
    if drafts:
        facts["mean_acceptance_length"] = round(1 + accepted / drafts, 3)
        facts["draft_acceptance_rate"] = round(accepted / drafted, 3)
    return facts
