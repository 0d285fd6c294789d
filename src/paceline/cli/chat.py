"""``paceline chat``: reads messages and commands, shows answers as they come. What is said is kept by
:mod:`.conversation`; how it is answered is the engine's."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from .failure import OK, report
from .options import CONFIG_FLAG, DEBUG_FLAG, ENGINE_FLAGS, INPUT, MODEL_FLAG, QUIET_FLAG, Flag, with_options
from .running import load, note, write
from .sampling import SAMPLING_FLAGS

if TYPE_CHECKING:
    from .conversation import Conversation

_SYSTEM_FLAG = Flag("system", str, "System message.", INPUT)
_FENCE = '"""'
_HELP = """\
/help              this list
/reset             forget the conversation; system message and options stay
/undo              take back the last message and its answer
/system TEXT       set the system message; without TEXT take it out
/set NAME VALUE    set an option of the answers to come; without VALUE take it back; alone show what is set
/stats             what speculation gained so far
/exit              leave, as Ctrl-D does
A line that ends in \\ goes on in the next one; \"\"\" before and after makes a message of all lines between.
A message that starts with / is written with //. Ctrl-C stops an answer, which stays as far as it came."""


@with_options((MODEL_FLAG, CONFIG_FLAG, _SYSTEM_FLAG, *SAMPLING_FLAGS, *ENGINE_FLAGS, QUIET_FLAG, DEBUG_FLAG))
def chat(**values: Any) -> None:
    """Talk with a model through its chat template; /help lists the commands.

    With a pipe as standard input every line is a message, answers go to standard output, and the exit code tells
    whether one of them failed.
    """
    from .conversation import Conversation
    from .settings import asked_for
    from .summary import setup_lines

    asked = asked_for(values)
    terminal = sys.stdin.isatty()
    with load(asked, values["quiet"]) as llm:
        conversation = Conversation(llm, values["system"], asked.sampling)
        if not values["quiet"]:
            note(setup_lines(llm.info(), llm.config.resolved()))
        if terminal:
            note(["[/help lists the commands, Ctrl-D leaves]"])
        code = _Chat(conversation, terminal, values["quiet"], values["debug"]).run()
    if code != OK:
        raise typer.Exit(code)


class _Chat:
    """The loop: one message or command per turn. Errors are told and end neither the loop nor the conversation."""

    def __init__(self, conversation: Conversation, terminal: bool, quiet: bool, debug: bool) -> None:
        self._conversation = conversation
        self._reader = MessageReader(terminal)
        self._terminal = terminal
        self._quiet = quiet
        self._debug = debug
        self._code = OK
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda rest: note(_HELP.splitlines()),
            "reset": self._reset,
            "undo": self._undo,
            "system": self._system,
            "set": self._set,
            "stats": self._stats,
        }

    def run(self) -> int:
        """Until the end of input or ``/exit``. The exit code: that of the first error of piped input, else 0."""
        from ..core.errors import EngineClosed

        while True:
            try:
                message = self._reader.read()
                if message is None or message.strip() in ("/exit", "/quit"):
                    return OK if self._terminal else self._code
                self._turn(message)
            except KeyboardInterrupt:
                if not self._terminal:
                    raise
                note([""])  # what was typed is dropped
            except EngineClosed:
                raise
            except Exception as error:
                self._tell(error)

    def _turn(self, message: str) -> None:
        if message.startswith("/") and not message.startswith("//"):
            word, _, rest = message[1:].partition(" ")
            self._command(word.strip())(rest.strip())
        elif message.strip():
            self._ask(message.removeprefix("/") if message.startswith("//") else message)

    def _ask(self, message: str) -> None:
        from .summary import answer_line, score_lines

        shown: list[str] = []

        def show(piece: str) -> None:
            shown.append(piece)
            write(piece)

        try:
            output = self._conversation.ask(message, show)
        except KeyboardInterrupt:
            if not self._terminal:
                raise
            note(["", "[stopped; what was said of the answer stays]"])
            return
        except Exception:
            write("\n" if any(shown) else "")
            raise
        write("\n")
        if not self._quiet:
            note([*score_lines(output), answer_line(output)])
        if output.finish_reason == "length" and self._terminal:
            note([f"[cut after {output.metrics.completion_tokens} tokens; /set max_tokens N changes the limit]"])

    def _command(self, word: str) -> Callable[[str], None]:
        from ..core.errors import RequestError

        if word not in self._commands:
            close = difflib.get_close_matches(word, [*self._commands, "exit"], n=1)
            hint = f"did you mean /{close[0]}? " if close else ""
            raise RequestError(f"/{word}", f"unknown command; {hint}/help lists them, // starts a message with /")
        return self._commands[word]

    def _reset(self, rest: str) -> None:
        self._conversation.reset()
        self._say("the conversation starts over")

    def _undo(self, rest: str) -> None:
        self._say(f"taken back: {self._conversation.undo()}")

    def _system(self, rest: str) -> None:
        self._conversation.system = rest or None
        self._say(f"system message: {rest or 'none'}")

    def _set(self, rest: str) -> None:
        from .settings import read_value

        if not rest:
            options = self._conversation.options
            self._say(", ".join(f"{name} = {value!r}" for name, value in options.items()) or "no option is set")
            return
        word, _, text = rest.partition(" ")
        name = self._conversation.set_option(word, read_value(text.strip()) if text.strip() else None)
        value = self._conversation.options.get(name)
        self._say(f"{name} is the model's default" if value is None else f"{name} = {value!r}")

    def _stats(self, rest: str) -> None:
        from .summary import conversation_lines

        outputs = self._conversation.outputs
        note(conversation_lines(outputs) if outputs else ["[no complete answer yet]"])

    def _say(self, text: str) -> None:
        note([f"[{text}]"])

    def _tell(self, error: Exception) -> None:
        from ..core.errors import PacelineError, RequestError

        if self._debug and not isinstance(error, PacelineError):
            traceback.print_exception(error)
        code = report(error)
        self._code = self._code or code
        if isinstance(error, RequestError) and error.field in ("message", "max_tokens"):
            self._say("/undo takes back the last exchange, /reset starts over, /set max_tokens N changes the length")


class MessageReader:
    """Messages from a terminal (with a prompt and line editing) or from a pipe."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        if terminal:
            with suppress(ImportError):  # not every system has it; lines are then read without editing
                importlib.import_module("readline")

    def read(self) -> str | None:
        """The next message, of one or several lines; ``None`` at the end of input."""
        line = self._line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(_FENCE):
            return self._block(line.lstrip().removeprefix(_FENCE))
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{self._line('. ') or ''}"
        return line

    def _block(self, line: str) -> str:
        from ..core.errors import RequestError

        lines: list[str] = []
        while not line.rstrip().endswith(_FENCE):
            lines.append(line)
            following = self._line(". ")
            if following is None:
                raise RequestError("message", f"the lines after {_FENCE} are not closed by {_FENCE}; nothing was sent")
            line = following
        return "\n".join([*lines, line.rstrip().removesuffix(_FENCE)]).strip("\n")

    def _line(self, prompt: str) -> str | None:
        if not self._terminal:
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        try:
            if sys.stdout.isatty():
                return input(prompt)
            print(prompt, end="", file=sys.stderr, flush=True)  # answers alone go where standard output leads
            return input()
        except EOFError:
            note([""])  # the shell's prompt starts on a line of its own
            return None
