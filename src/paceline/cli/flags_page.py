"""Every flag as a Markdown page, read from the commands themselves:
``python -m paceline.cli.flags_page > docs/flags.md``.

Knows the commands by their parameters; what a setting means is said where it is defined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import typer

from ..core.config import EngineConfig, setting_names
from ..core.env import PREFIX
from ..core.params import SamplingParams
from ..server.settings import ServerSettings, server_settings
from .main import app
from .options import ENGINE_FLAGS, MODEL_FLAG, Flag
from .sampling import SAMPLING_FLAGS

_LEAD = """# Flags

Made from the code by `python -m paceline.cli.flags_page > docs/flags.md`; do not edit.

A setting has one name everywhere: `--spec-tokens 4` on the command line, `spec_tokens: 4` in the file that
`--config` names, `PACELINE_SPEC_TOKENS=4` in the environment, `spec_tokens=4` in Python. In a file, request options
stand in a section `sampling`, settings of the server in a section `server`. Flags win over the file, the file over the
environment. An unknown name, a value that cannot be honoured and a setting given twice with different values are errors
that name it. Where no default is shown, it depends on the model or the machine; `paceline doctor` and the lines printed
at start say what was chosen."""


@dataclass(frozen=True)
class _Group:
    """Flags that several ``commands`` share."""

    title: str
    note: str
    commands: tuple[str, ...]
    flags: tuple[Flag, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(flag.name for flag in self.flags)


_GROUPS = (
    _Group(
        "Engine settings",
        "Of `generate`, `chat` and `serve`.",
        ("generate", "chat", "serve"),
        (MODEL_FLAG, *ENGINE_FLAGS),
    ),
    _Group(
        "Request options",
        "Of `generate` and `chat`; in a file they stand in the section `sampling`. Requests to a server have them as "
        "fields.",
        ("generate", "chat"),
        tuple(SAMPLING_FLAGS),
    ),
)


def page() -> str:
    """The whole page."""
    commands = dict(_commands(typer.main.get_command(app), ()))
    options = {name: {option.name: option for option in _options(command)} for name, command in commands.items()}
    parts = [_LEAD]
    for group in _GROUPS:
        known = options[group.commands[0]]
        parts += [f"## {group.title}", group.note, _table(known[name] for name in group.names if name in known)]
    for name, found in options.items():
        shared = {each for group in _GROUPS if name in group.commands for each in group.names}
        own = [option for option in found.values() if option.name not in shared]
        summary = " ".join((commands[name].help or "").split("\n\n")[0].split())
        parts += [f"## paceline {name}", summary, _table(own, settings=not name.startswith("bench "))]
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Commands that do something, under the words that call them."""
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children:
        yield " ".join(path), command
    for name, child in children.items():
        yield from _commands(child, (*path, name))


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option" and not each.hidden and each.help]


def _table(options: Iterable[Any], *, settings: bool = True) -> str:
    """``settings``: the options stand for settings, which have variables and defaults of their own."""
    rows = [
        (
            ", ".join(_spellings(option)),
            *([_variable(option.name)] if settings else []),
            _default(option, settings),
            str(option.help).strip(),
        )
        for option in options
        if option.name != "help"
    ]
    headings = ("flag", *(["variable"] if settings else []), "default", "meaning")
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _spellings(option: Any) -> list[str]:
    return [f"`{word}`" for word in (*option.opts, *option.secondary_opts)]


def _variable(name: str) -> str:
    name = "seed" if name == "engine_seed" else name
    known = name in setting_names() or name in server_settings()
    return f"`{PREFIX}{name.upper()}`" if known else ""


def _default(option: Any, settings: bool) -> str:
    value = _setting_default(option.name) if option.default is None and settings else option.default
    if value is None or value in ((), [], ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _setting_default(name: str) -> Any:
    """The default of the setting or request option that a flag stands for."""
    if name in setting_names():
        return EngineConfig().resolved()[name]
    for record in (ServerSettings, SamplingParams):
        for each in fields(record):
            if each.name == name and each.default is not MISSING:
                return each.default
    return None


if __name__ == "__main__":
    print(page(), end="")
