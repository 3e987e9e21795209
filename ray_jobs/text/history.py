"""Earlier assistant turns: the thought in `reasoning_content`, the answer in `content`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def split_thoughts(message: Mapping[str, Any], openers: Sequence[str], closers: Sequence[str]) -> dict[str, Any]:
    """A copy of the message in the form that chat templates read.

    `reasoning` is renamed to `reasoning_content`. An assistant's content `thought</think>answer` is cut at the first
    closer, if it begins with the opener or has none before the closer: an answer that merely mentions the pair of
    tags stays whole. Nothing is stripped from either part.
    """
    made = {key: value for key, value in message.items() if key != "reasoning"}
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        made["reasoning_content"] = thought
    content = made.get("content")
    if made.get("role") == "assistant" and isinstance(content, str) and not made.get("reasoning_content"):
        parts = _cut(content, openers, closers)
        if parts is not None:
            made["reasoning_content"], made["content"] = parts
    return made


def _cut(content: str, openers: Sequence[str], closers: Sequence[str]) -> tuple[str, str] | None:
    """(thought, answer), or None where the content is an answer only."""
    found = [(content.find(closer), closer) for closer in closers if closer in content]
    if not found:
        return None
    at, closer = min(found)
    thought, answer = content[:at], content[at + len(closer) :]
    begun = next((o for o in openers if thought.lstrip().startswith(o)), None)
    if begun is not None:
        return thought.lstrip()[len(begun) :], answer
    return None if any(opener in thought for opener in openers) else (thought, answer)
