"""``paceline serve``: an OpenAI-compatible server. Reads flags; :mod:`paceline.server` listens and answers."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Optional

import typer

from .options import CONFIG_FLAG, DEBUG_FLAG, ENGINE_FLAGS, MODEL, MODEL_FLAG, OUTPUT, Flag, given, with_options

if TYPE_CHECKING:
    from ..engine.async_llm import AsyncLLM

SERVER = "Server"

SERVER_FLAGS: tuple[Flag, ...] = (
    Flag("host", str, "Address to listen on; default 127.0.0.1, 0.0.0.0 for all.", SERVER),
    Flag("port", int, "Port to listen on; default 8000, 0 = any.", SERVER),
    Flag("api_key", list[str], "Key that every call must bring; may be repeated.", SERVER),
    Flag("served_model_name", list[str], "Name for the model in requests; may be repeated.", SERVER),
    Flag("max_queue", int, "Requests that may wait; more are refused with 429. Default 1024.", SERVER),
    Flag("max_body_bytes", int, "Largest body of a request; default 16 MiB.", SERVER),
    Flag("drain_timeout", float, "Seconds that running requests get after a stop; default 30.", SERVER),
    Flag("stuck_timeout", float, "Seconds of one engine turn after which /health fails; default 60.", SERVER),
    Flag("allowed_origins", list[str], "Origin that browsers may call from (CORS); may be repeated.", SERVER),
    Flag("tool_call_parser", str, "auto, none, hermes, llama3 or mistral: how calls are written.", SERVER),
    Flag("reasoning_parser", str, "auto, none or think: whether thinking blocks are split off.", SERVER),
    Flag("chat_template", str, "File of a chat template used in place of the model's.", SERVER),
    Flag("log_format", str, "text or json: one object a line.", OUTPUT),
    Flag("log_interval", float, "Seconds between lines on speculation; 0 = none. Default 10.", OUTPUT),
)
#: Not the seed of a request, which ``--seed`` is elsewhere.
_SEED_FLAG = Flag("engine_seed", int, "Makes seeds of requests that bring none reproducible.", MODEL, ("--seed",))


@with_options((MODEL_FLAG, CONFIG_FLAG, *SERVER_FLAGS, *ENGINE_FLAGS, _SEED_FLAG, DEBUG_FLAG))
def serve(
    name: Optional[str] = typer.Argument(None, metavar="MODEL", help="The model, if not by --model."),  # noqa: UP045
    **values: Any,
) -> None:
    """Serve a model to OpenAI's clients: chat, completions and responses, streamed or not.

    The port answers at once; until the model is loaded, requests get 503 and /health says so. Ctrl-C lets running
    requests end (--drain-timeout), a second one does not.
    """
    from ..core.config import EngineConfig
    from ..core.errors import ConfigError
    from .settings import SAMPLING_SECTION, asked_for

    if name is not None and values["model"] not in (None, name):
        raise ConfigError("model", f"is given as {name!r} and as {values['model']!r}; leave one out")
    values["model"] = name if name is not None else values["model"]
    asked = asked_for(values)
    if asked.sampling:
        raise ConfigError(f"{values['config']}: {SAMPLING_SECTION}", "has no place here: requests bring their options")
    engine = asked.engine | ({} if values["engine_seed"] is None else {"seed": values["engine_seed"]})
    config = EngineConfig.build(**engine)
    if config.model.skip_tokenizer_init:
        raise ConfigError("skip_tokenizer_init", "a server reads and writes text, which needs the tokenizer")
    listen, settings = _server(asked.server | given(SERVER_FLAGS, values))
    listen(lambda: _load(engine, settings.log_format), settings)


def _server(values: dict[str, Any]) -> tuple[Any, Any]:
    """The function that listens, and its settings; :class:`ConfigError` where the extra is not installed."""
    from ..core.errors import ConfigError

    try:
        from ..server.run import serve as listen
        from ..server.settings import ServerSettings
    except ImportError as error:
        raise ConfigError("serve", f"needs the extra 'server' ({error}): pip install 'paceline[server]'") from error
    return listen, ServerSettings.build(**values)


def _load(engine: dict[str, Any], log_format: str) -> AsyncLLM:
    """The engine, with bars while it loads; then what runs and every setting, as lines or in the log."""
    from ..engine.async_llm import AsyncLLM
    from ..engine.progress import loading_bars
    from .running import note
    from .summary import setup_lines

    structured = log_format == "json"
    with loading_bars(sys.stderr.isatty() and not structured) as progress:
        llm = AsyncLLM(progress=progress, **engine)
    info, chosen = llm.info(), llm.engine.config.resolved()
    if structured:
        facts = {name: value for name, value in chosen.items() if value is not None}
        logging.getLogger("paceline.server").info("ready", extra={"engine": info, "settings": facts})
    else:
        note(setup_lines(info, chosen))
    return llm
