"""``paceline generate``: prompts from an argument, a file or standard input; text as it comes, then a summary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer

from .options import ENGINE_FLAGS, INPUT, MODEL, OUTPUT, OUTPUT_FLAGS, SAMPLING_FLAGS, Flag, given, with_options

if TYPE_CHECKING:
    from ..core.request import SamplingParams
    from ..engine.frontend import Prompt
    from ..engine.llm import LLM
    from ..engine.outputs import RequestOutput

DEFAULT_MAX_TOKENS = 512

_OWN_FLAGS = (
    Flag("model", str, "demo, a directory, a .gguf file or a hub id.", MODEL, ("--model", "-m")),
    Flag("file", str, "Prompt from a file, '-' = standard input; .jsonl: one prompt a line.", INPUT, ("--file", "-f")),
    Flag("system", str, "System message of the chat.", INPUT),
    Flag("chat", bool, "Use the model's chat template; on if it has one.", INPUT),
    Flag("quiet", bool, "Print the text only.", OUTPUT, ("--quiet", "-q"), default=False),
)


@with_options((*_OWN_FLAGS, *SAMPLING_FLAGS, *ENGINE_FLAGS, *OUTPUT_FLAGS))
def generate(
    prompt: Optional[str] = typer.Argument(  # noqa: UP045
        None, help="The prompt; with --file, an instruction put before the text."
    ),
    **values: Any,
) -> None:
    """Answer one prompt, or each line of a .jsonl file, and say what speculation gained.

    A .jsonl line is {"prompt": "..."} or {"messages": [{"role": ..., "content": ...}, ...]}.
    """
    asked = read_prompts(prompt, values["file"])
    from ..core.request import SamplingParams
    from ..engine.llm import LLM
    from ..engine.progress import loading_bars

    chosen = given(SAMPLING_FLAGS, values)
    SamplingParams(**chosen)  # what is wrong with the options is said before a model is loaded
    bars = sys.stderr.isatty() and not values["quiet"]
    with loading_bars(bars) as progress:
        llm = LLM(values["model"], progress=progress, **given(ENGINE_FLAGS, values))
    with llm:
        _check_chat(llm, values["chat"], values["system"])
        prompts = [_encode(llm, item, values["chat"], values["system"]) for item in asked]
        params = [_params(llm, item, chosen) for item in prompts]
        if values["as_json"]:
            outputs = llm.generate(prompts, params)
            print(json.dumps(_document(llm, outputs), ensure_ascii=False))
        else:
            outputs = _show(llm, prompts, params, values["quiet"])
        _raise_first_failure(outputs)


def _show(llm: LLM, prompts: list[Prompt], params: list[SamplingParams], quiet: bool) -> list[RequestOutput]:
    """Texts on standard output, everything else on standard error. One prompt is streamed."""
    from .summary import setup_lines, summary_lines

    if not quiet:
        _note(setup_lines(llm.info(), llm.config.resolved()))
    if len(prompts) == 1:
        outputs = [_stream(llm, prompts[0], params[0])]
    else:
        outputs = llm.generate(prompts, params, progress=sys.stderr.isatty() and not quiet)
        for number, output in enumerate(outputs, 1):
            print(f"--- {number} ---\n{output.text}")
    if not quiet:
        _note(summary_lines(outputs))
    return outputs


def _note(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


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


def _has_template(llm: LLM) -> bool:
    return bool(llm.tokenizer.chat_template)


def _check_chat(llm: LLM, chat: bool | None, system: str | None) -> None:
    from ..core.errors import RequestError

    if system is not None and not (_has_template(llm) if chat is None else chat):
        raise RequestError("system", "needs the chat template; leave --system or --no-chat out")


def _encode(llm: LLM, prompt: Any, chat: bool | None, system: str | None) -> Prompt:
    """Messages, or text as one user message, through the chat template; text as it is without one."""
    if isinstance(prompt, str):
        if not (_has_template(llm) if chat is None else chat):
            return llm.encode(prompt)
        prompt = [{"role": "user", "content": prompt}]
    if system is not None:
        prompt = [{"role": "system", "content": system}, *prompt]
    return llm.encode_chat(prompt)


def _params(llm: LLM, prompt: Prompt, chosen: dict[str, Any]) -> SamplingParams:
    """The model's defaults, then the flags. The default length is cut to what fits; one that was asked for is not."""
    if "max_tokens" not in chosen:
        info = llm.info()
        room = min(info["max_model_len"], info["kv_cache_tokens"]) - len(prompt.ids)
        chosen = chosen | {"max_tokens": max(1, min(DEFAULT_MAX_TOKENS, room))}
    return llm.get_default_sampling_params(**chosen)


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams) -> RequestOutput:
    output: RequestOutput | None = None
    for delta in llm.stream(prompt, params):
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        output = delta.output
    print()
    assert output is not None, "a stream ends with its result"
    return output


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
        "results": [output.to_dict() for output in outputs],
        "summary": totals(outputs),
    }
