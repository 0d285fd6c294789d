"""A conversation on its way to the engine: messages, tools and template variables to a prompt, a tool choice to a
grammar, and the reader of its answer. Knows the model by its profile; the chat and responses routes share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine.async_llm import AsyncLLM
from ..engine.frontend import ChatOptions, Prompt
from .answers import AnswerReader
from .errors import bad_field
from .messages import template_tools
from .profile import ChatProfile
from .reasoning import ReasoningSplitter
from .schemas_chat import Tool
from .tools.dialects import Dialect, Function
from .translate import Wanted


@dataclass(frozen=True)
class ToolUse:
    """What a request says of tools. ``choice``: none, auto, required, or ``named`` with the function's ``name``."""

    tools: Sequence[Tool] = ()
    choice: str = "auto"
    name: str | None = None
    parallel: bool = True

    @property
    def forced(self) -> bool:
        return self.choice in ("required", "named")

    @property
    def shown(self) -> Sequence[Tool]:
        """Tools the model is told of."""
        return () if self.choice == "none" else self.tools

    def functions(self) -> list[Function]:
        """Those that may be called."""
        found = [tool.function for tool in self.tools if self.name in (None, tool.function.name)]
        return [Function(function.name, function.parameters) for function in found]

    def check(self) -> None:
        """400 for a choice that the tools do not allow."""
        if self.forced and not self.tools:
            raise bad_field("tool_choice", "needs tools")
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise bad_field("tools", "hold two functions of the same name")
        if self.name is not None and self.name not in names:
            raise bad_field("tool_choice", f"names {self.name!r:.80}, which is not among the tools")


@dataclass(frozen=True)
class Conversation:
    """One conversation, ready to be encoded. ``dialect`` is set where the answer may hold calls."""

    profile: ChatProfile
    messages: Sequence[Mapping[str, Any]]
    use: ToolUse
    wanted: Wanted
    variables: Mapping[str, Any] = field(default_factory=dict)
    opens_turn: bool = True
    dialect: Dialect | None = None

    def prepared(self) -> Conversation:
        """With everything that its tools ask for: the dialect, and the grammar of a forced call."""
        self.use.check()
        if not self.use.shown:
            return self
        dialect = self.profile.dialect_for("tools")
        options = dict(self.wanted.options)
        if not self.use.forced:
            if "structured_outputs" in options:
                field = self.wanted.spelt.get("structured_outputs", "structured_outputs").split(".")[0]
                raise bad_field(field, "cannot be combined with tools; leave one out, or set tool_choice to none")
            return replace(self, dialect=dialect)
        if "structured_outputs" in options:
            raise bad_field("tool_choice", "forces a call, which response_format or structured_outputs would forbid")
        several = self.use.choice == "required" and self.use.parallel
        options["structured_outputs"] = {"grammar": dialect.grammar(self.use.functions(), several)}
        wanted = Wanted(options, {**self.wanted.spelt, "structured_outputs": "tools"})
        return replace(self, dialect=dialect, wanted=wanted)

    def encode(self, llm: AsyncLLM) -> Prompt:
        """Through the chat template. May take long."""
        variables = dict(self.variables)
        if self.use.shown:
            variables["tools"] = template_tools(self.use.shown)
        return llm.frontend.encode_chat(self.messages, ChatOptions(self.profile.given, self.opens_turn, variables))

    @property
    def markers(self) -> dict[int, str]:
        """Special tokens that the reader must see."""
        return dict(self.profile.marker_ids) if self.dialect or self.profile.thinking else {}

    @property
    def thinks(self) -> bool:
        """Whether the answer may start with a thinking block: a grammar leaves no place for one."""
        return self.profile.thinking is not None and "structured_outputs" not in self.wanted.options

    def opened(self, prompt: Prompt) -> bool:
        """Whether the prompt ends inside a thinking block."""
        thinking = self.profile.thinking
        return thinking is not None and self.thinks and (prompt.text or "").rstrip().endswith(thinking.start)

    def reader(self, prompt: Prompt) -> AnswerReader:
        """A reader for one sample's answer."""
        splitter = None
        if self.thinks and self.profile.thinking is not None:
            splitter = ReasoningSplitter(self.profile.thinking, self.opened(prompt))
        parser = None
        if self.dialect is not None:
            names = [function.name for function in self.use.functions()]
            parser = self.dialect.parser(names, self.use.forced)
        return AnswerReader(splitter, parser, None if self.use.parallel else 1)

    def reasoning_tokens(self, tokens: Sequence[int], prompt: Prompt) -> int | None:
        """Tokens of the thinking block of one answer."""
        return self.profile.reasoning_tokens(tokens, self.opened(prompt)) if self.thinks else None
