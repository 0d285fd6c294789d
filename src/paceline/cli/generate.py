"""``paceline generate``: prompts from an argument, a file or standard input; text as it comes, then a summary."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer

from .options import CONFIG_FLAG, DEBUG_FLAG, ENGINE_FLAGS, INPUT, JSON_FLAG, MODEL_FLAG, QUIET_FLAG, Flag, with_options
from .running import has_template, load, note, request_params, stream_text, write
from .sampling import SAMPLING_FLAGS

if TYPE_CHECKING:
    from ..core.request import SamplingParams
    from ..engine.frontend import Prompt
    from ..engine.llm import LLM
    from ..engine.outputs import RequestOutput

_OWN_FLAGS = (
    MODEL_FLAG,
    CONFIG_FLAG,
    Flag("file", str, "Prompt from a file, '-' = standard input; .jsonl: one prompt a line.", INPUT, ("--file", "-f")),
    Flag("system", str, "System message of the chat.", INPUT),
    Flag("chat", bool, "Use the model's chat template; on if it has one.", INPUT),
)


@with_options((*_OWN_FLAGS, *SAMPLING_FLAGS, *ENGINE_FLAGS, QUIET_FLAG, JSON_FLAG, DEBUG_FLAG))
def generate(
    prompt: Optional[str] = typer.Argument(  # noqa: UP045
        None, help="The prompt; with --file, an instruction put before the text."
    ),
    **values: Any,
) -> None:
    """Answer one prompt, or each line of a .jsonl file, and say what speculation gained.

    A .jsonl line is {"prompt": "..."} or {"messages": [{"role": ..., "content": ...}, ...]}.
    """
    from .settings import asked_for

    asked = asked_for(values)
    _check_reports(asked.sampling, values)
    contents = read_prompts(prompt, values["file"])
    with load(asked, values["quiet"]) as llm:
        _check_chat(llm, values["chat"], values["system"])
        prompts = [_encode(llm, item, values["chat"], values["system"]) for item in contents]
        params = [request_params(llm, item, asked.sampling) for item in prompts]
        if values["as_json"]:
            outputs = llm.generate(prompts, params)
            print(json.dumps(_document(llm, outputs), ensure_ascii=False))
        else:
            outputs = _show(llm, prompts, params, values["quiet"])
        _raise_first_failure(outputs)


def _check_reports(chosen: dict[str, Any], values: dict[str, Any]) -> None:
    """What is asked for must be shown somewhere."""
    from ..core.errors import RequestError

    for name in ("logprobs", "prompt_logprobs"):
        if values["quiet"] and not values["as_json"] and chosen.get(name) is not None:
            raise RequestError(name, "is not shown with --quiet; use --json, or leave one of them out")


def _show(llm: LLM, prompts: list[Prompt], params: list[SamplingParams], quiet: bool) -> list[RequestOutput]:
    """Texts on standard output, everything else on standard error. One sample of one prompt is streamed."""
    from .summary import score_lines, setup_lines, summary_lines

    if not quiet:
        note(setup_lines(llm.info(), llm.config.resolved()))
    if len(prompts) == 1 and params[0].n == 1:
        outputs = [stream_text(llm.stream(prompts[0], params[0]), write)]
        if outputs[0].text:
            print()
    else:
        outputs = llm.generate(prompts, params, progress=sys.stderr.isatty() and not quiet)
        for number, output in enumerate(outputs, 1):
            _print_samples(f"{number}" if len(prompts) > 1 else "", output)
    if not quiet and any(output.error is None for output in outputs):
        for output in outputs:
            note(score_lines(output))
        note(summary_lines(outputs))
    return outputs


def _print_samples(number: str, output: RequestOutput) -> None:
    for choice in output.outputs:
        sample = f"sample {choice.index + 1}" if len(output.outputs) > 1 else ""
        print(f"--- {', '.join(filter(None, (number, sample)))} ---\n{choice.text}")


def read_prompts(prompt: str | None, file: str | None) -> list[Any]:
    """Prompts as text or lists of messages. ``RequestError`` names what is wrong, before anything is loaded."""
    from ..core.errors import RequestError

    if file is None:
        if prompt is None and sys.stdin.isatty():
            raise RequestError("prompt", "is missing; give it as an argument, by --file, or on standard input")
        return [_not_empty(sys.stdin.read() if prompt is None else prompt)]
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("file", f"{file} cannot be read: {error}") from error
    if file.endswith(".jsonl"):
        if prompt is not None:
            raise RequestError("prompt", "a .jsonl file brings its own prompts; leave the argument out")
        return _read_lines(file, text)
    return [_not_empty(text if prompt is None else f"{prompt}\n\n{text}")]


def _not_empty(text: str) -> str:
    from ..core.errors import RequestError

    if not text:
        raise RequestError("prompt", "is empty")
    return text


def _read_lines(file: str, text: str) -> list[Any]:
    from ..core.errors import RequestError

    prompts: list[Any] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise RequestError("file", f"{file}, line {number} is not JSON: {error}") from error
        content = entry.get("prompt", entry.get("messages")) if isinstance(entry, dict) else None
        if not content:
            raise RequestError("file", f"{file}, line {number} holds no prompt and no messages")
        prompts.append(content)
    if not prompts:
        raise RequestError("file", f"{file} holds no prompt")
    return prompts


def _check_chat(llm: LLM, chat: bool | None, system: str | None) -> None:
    from ..core.errors import RequestError

    if system is not None and not (has_template(llm) if chat is None else chat):
        raise RequestError("system", "needs the chat template; leave --system or --no-chat out")


def _encode(llm: LLM, prompt: Any, chat: bool | None, system: str | None) -> Prompt:
    """Messages, or text as one user message, through the chat template; text as it is without one."""
    if isinstance(prompt, str):
        if not (has_template(llm) if chat is None else chat):
            return llm.encode(prompt)
        prompt = [{"role": "user", "content": prompt}]
    if system is not None:
        prompt = [{"role": "system", "content": system}, *prompt]
    return llm.encode_chat(prompt)


def _raise_first_failure(outputs: list[RequestOutput]) -> None:
    """A request that failed is no result: its error ends the command."""
    for output in outputs:
        if output.error is not None:
            raise output.error


def _document(llm: LLM, outputs: list[RequestOutput]) -> dict[str, Any]:
    from .summary import totals

    return {
        "engine": llm.info(),
        "settings": llm.config.resolved(),
        "results": [_plain(output.to_dict()) for output in outputs],
        "summary": totals(outputs),
    }


def _plain(value: Any) -> Any:
    """JSON has no infinity: the log-probability of what is impossible is null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
