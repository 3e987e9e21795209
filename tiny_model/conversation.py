"""What every kind of conversation is made of."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One question with the thought and answer that are right for it."""

    question: str
    thought: str
    answer: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """(function, arguments) of the answer's tool calls."""


@dataclass(frozen=True)
class Conversation:
    """Messages in OpenAI's form; the last one is the assistant's and has the thought."""

    kind: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    spoken: tuple[str, ...] = field(default=(), compare=False)
    """The questions as they were drawn: what the held-out side is decided by."""

    @property
    def prompt(self) -> list[Message]:
        """Everything before the last answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The text of the right answer; empty where it is a tool call alone."""
        return self.messages[-1]["content"] or ""

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """(function, parsed arguments) of the right answer."""
        calls = self.messages[-1].get("tool_calls") or []
        return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def answer_message(turn: Turn, *, first_call: int = 0, thought: bool = True) -> Message:
    """The assistant's message of a turn. Call ids count on through the conversation, as Kimi's do."""
    message: Message = {"role": "assistant", "content": turn.answer or None}
    if thought:
        message["reasoning_content"] = turn.thought
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"functions.{name}:{first_call + i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, (name, arguments) in enumerate(turn.calls)
        ]
    return message


def conversation(kind: str, turns: Sequence[Turn], *, system: str | None = None) -> Conversation:
    """Turns without tools as messages; earlier thoughts stay in, and the chat template leaves them out."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += [{"role": "user", "content": turn.question}, answer_message(turn)]
    return Conversation(kind, messages, spoken=tuple(turn.question for turn in turns))


Draw = Callable[[random.Random], Turn]


def listed(rng: random.Random, items: Sequence[object]) -> str:
    """A list as people write it. Words stay free of brackets: a word has one id only behind a space."""
    form = rng.choice(("{}", "{}", "[{}]")) if isinstance(items[0], int) else "{}"
    joined = rng.choice((", ", ", ", " ")).join(str(item) for item in items)
    return form.format(joined)
