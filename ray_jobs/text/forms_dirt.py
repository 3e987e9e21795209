"""Dirt that whole sets share and that no turn shows alone: pages pasted as HTML, leaked templates, absent figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from ray_jobs.text.forms_json import Message, Row, RowError

_LEAKED = re.compile(r"<\|start_header_id\|>|<\|im_start\|>|<start_of_turn>|\[/INST\]")
_LEAKED_END = re.compile(r"(?:\s*(?:<\|eot_id\|>|<\|im_end\|>|<\|endoftext\|>|<\|end_of_text\|>|<end_of_turn>))+\s*\Z")
_PICTURE = re.compile(r"!\[[^\]\n]*\]\(|<img\b|\\includegraphics")
_FIGURE = re.compile(r"\b(?:in|from|see|by|to) the (?:\w+ )?(?:figure|diagram)\b", re.IGNORECASE)
_DRAWN = re.compile(r"\[asy\]|\\begin\{tikzpicture\}")
_PAGE = re.compile(r'\s*(?:<div class="[^"]*markdown[^"]*">.*</div>|<p>.*</p>)\s*', re.DOTALL)


def clean_turns(row: Row, messages: list[Message]) -> list[Message]:
    """The turns without the dirt of the set that the row's columns show. Raises RowError where it cannot be mended.

    Magpie (`instruction` beside `conversations`): text of the chat template that wrote the row. NuminaMath
    (`problem`): figures that the text refers to. ShareGPT (`conversations`): turns that are a page's HTML.
    """
    if row.get("conversations"):
        messages = [_with_text(m, page_text(m["content"] or "")) for m in messages]
        if isinstance(row.get("instruction"), str):
            messages = [_with_text(m, _LEAKED_END.sub("", m["content"] or "")) for m in messages]
            _refuse_leaks(messages)
    if isinstance(row.get("problem"), str):
        _refuse_absent_figures(messages)
    return messages


def _with_text(message: Message, text: str) -> Message:
    return message if text == (message["content"] or "") else message | {"content": text}


def _refuse_leaks(messages: list[Message]) -> None:
    for message in messages:
        leaked = _LEAKED.search(message["content"] or "") if message["role"] == "user" else None
        if leaked is not None:
            raise RowError(f"template text in a user turn: {leaked[0]}")


def _refuse_absent_figures(messages: list[Message]) -> None:
    for message in messages:
        text = (message["content"] or "") if message["role"] == "user" else ""
        if _PICTURE.search(text) or (_FIGURE.search(text) and not _DRAWN.search(text)):
            raise RowError("refers to a figure that is not there: only text can be asked")


def page_text(text: str) -> str:
    """The text of a turn that was saved as a page's HTML; a text that only mentions HTML stays as it is."""
    if not _PAGE.fullmatch(text):
        return text
    page = _Page()
    try:
        page.feed(text)
        page.close()
    except AssertionError:  # The standard parser's word for a marked section that it does not know.
        return text
    return re.sub(r"\n{3,}", "\n\n", page.text).strip()


class _Page(HTMLParser):
    """Paragraphs, list items and code of a page as plain text."""

    _BEFORE = {"li": "\n- ", "br": "\n", "pre": "\n\n```\n", "p": "\n\n", "tr": "\n", "td": " "}
    _AFTER = {"pre": "\n```\n\n", "p": "\n\n", "ul": "\n\n", "ol": "\n\n"}

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.text += self._BEFORE.get(tag, "")

    def handle_endtag(self, tag: str) -> None:
        self.text += self._AFTER.get(tag, "")

    def handle_data(self, data: str) -> None:
        self.text += data
