"""A conversation with a loaded model: its messages, its options, its answers. Knows no terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.errors import RequestError
from .running import context_tokens, has_template, request_params, stream_text
from .sampling import option_name

if TYPE_CHECKING:
    from ..engine.llm import LLM
    from ..engine.outputs import RequestOutput


class Conversation:
    """``messages`` without the system message; ``options``: what was chosen beyond the model's defaults; ``outputs``:
    every complete answer so far, those that were taken back included."""

    def __init__(self, llm: LLM, system: str | None, options: dict[str, Any]) -> None:
        if not has_template(llm):
            raise RequestError("model", "has no chat template; use paceline generate")
        self._llm = llm
        self.system = system
        self.options: dict[str, Any] = {}
        self.messages: list[dict[str, str]] = []
        self.outputs: list[RequestOutput] = []
        self._choose(options)

    def ask(self, text: str, show: Callable[[str], None]) -> RequestOutput:
        """Send a message and show the answer as it comes; both join the conversation.

        A message that is refused, or whose answer fails, changes nothing. An interrupted answer stays as far as it
        came, and the interrupt is raised again.
        """
        question = {"role": "user", "content": text}
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        prompt = self._llm.encode_chat([*system, *self.messages, question])
        self._check_room(len(prompt.ids))
        params = request_params(self._llm, prompt, self.options)
        pieces: list[str] = []

        def read(piece: str) -> None:
            pieces.append(piece)
            show(piece)

        try:
            output = stream_text(self._llm.stream(prompt, params), read)
        except KeyboardInterrupt:
            if any(pieces):
                self._keep(question, "".join(pieces))
            raise
        if output.error is not None:
            raise output.error
        self._keep(question, output.text)
        self.outputs.append(output)
        return output

    def reset(self) -> None:
        """Forget all messages; the system message and the options stay."""
        self.messages.clear()

    def undo(self) -> str:
        """Take back the last message and its answer; returns the message."""
        if not self.messages:
            raise RequestError("undo", "there is no message to take back")
        question = self.messages[-2]["content"]
        del self.messages[-2:]
        return question

    def set_option(self, word: str, value: Any) -> str:
        """Choose an option of the answers to come, ``None`` = the model's default again. Returns its field's name."""
        name = option_name(word)
        chosen = {key: item for key, item in self.options.items() if key != name}
        self._choose(chosen if value is None else chosen | {name: value})
        return name

    def _choose(self, options: dict[str, Any]) -> None:
        params = self._llm.get_default_sampling_params(**options)
        if params.n != 1:
            raise RequestError("n", f"must be 1 in a chat, which keeps one answer per message, not {params.n}")
        self.options = options

    def _keep(self, question: dict[str, str], answer: str) -> None:
        self.messages += [question, {"role": "assistant", "content": answer}]

    def _check_room(self, tokens: int) -> None:
        limit = context_tokens(self._llm)
        if tokens >= limit:
            raise RequestError(
                "message",
                f"does not fit: with it the conversation has {tokens} tokens and the context holds {limit}, answer "
                "included; nothing was sent",
            )
