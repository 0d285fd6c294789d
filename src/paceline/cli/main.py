"""The command ``paceline``: its sub-commands, and one line and an exit code for whatever goes wrong in them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Optional

import typer

from .. import __version__
from . import bench
from .chat import chat
from .doctor import doctor
from .failure import BAD_INPUT, FAILURE, INTERRUPTED, OK, report, say
from .generate import generate
from .serve import serve

app = typer.Typer(
    name="paceline",
    help="Decode open-weight language models with speculation: the same tokens in fewer forwards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", short_help="Answer prompts, stream the text, say what speculation gained.")(generate)
app.command("chat", short_help="Talk with a model; piped in, one message per line.")(chat)
app.command("serve", short_help="An OpenAI-compatible server.")(serve)
app.command("doctor", short_help="What this machine can run, and how a model would fit.")(doctor)
app.add_typer(bench.app, name="bench", short_help="Benchmarks; the last line of their output is one JSON document.")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Optional[bool] = typer.Option(  # noqa: UP045 - typer 0.16 reads this spelling
        None, "--version", help="Print the version.", callback=_show_version, is_eager=True
    ),
) -> None:
    """Decode open-weight language models with speculation: the same tokens in fewer forwards."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (``None`` = the process's own) and return the exit code. Never raises."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _command().main(args=words, prog_name="paceline", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has gone; nobody is left to tell
        return FAILURE
    except Exception as error:
        if "--debug" in words:
            raise
        return _report(error)
    if code == INTERRUPTED:  # newer versions of typer return it, older ones raise
        say("interrupted")
    return code if isinstance(code, int) else OK


def _command() -> Any:
    """The command tree. The list of commands is printed plainly: drawing it would double the time that takes."""
    command = typer.main.get_command(app)
    command.rich_markup_mode = None  # type: ignore[attr-defined]
    return command


def _report(error: Exception) -> int:
    """Print one line on an error and return its exit code."""
    usage = getattr(error, "format_message", None)
    if usage is None:
        return report(error)
    message = usage()  # what typer raises for flags it does not know or cannot read
    if message:  # none where the help was shown because no command was given
        say(f"{message} Try 'paceline --help'.")
    return BAD_INPUT


if __name__ == "__main__":
    raise SystemExit(main())
