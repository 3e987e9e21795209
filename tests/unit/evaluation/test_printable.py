"""Hostile text becomes text: nothing acts, hides or reorders."""

from __future__ import annotations

import html
import unicodedata

import pytest

from ray_jobs.evaluation.printable import Excerpt, excerpt, visible


def plain(shown: str) -> str:
    """What a browser shows of it."""
    return html.unescape(shown.replace('<span class="ctl">', "").replace("</span>", ""))


def test_markup_is_text() -> None:
    bad = '</style><script>alert("1")</script>&lt;\'{{ 7 * 7 }}'
    assert "<" not in str(visible(bad))
    assert '"' not in str(visible(bad))
    assert plain(str(visible(bad))) == bad


@pytest.mark.parametrize("char", ["\0", "\x07", "\x1b", "\r", "\x7f", "\x85", "\u202e", "\u2066", "\u200f", "\ufeff"])
def test_a_character_that_controls_or_hides_is_shown_by_its_number(char: str) -> None:
    shown = str(visible(f"a{char}b"))
    assert char not in shown
    assert plain(shown) == f"aU+{ord(char):04X}b"


def test_a_lone_surrogate_can_be_written() -> None:
    assert plain(visible("x\ud800y").encode().decode()) == "xU+D800y"


def test_ordinary_text_of_all_scripts_stays() -> None:
    kept = "tab\tline\nend \u05e9\u05dc \u0915\u094d\u200d\u0937 \U0001f469\u200d\U0001f4bb \u65e5\u672c e\u0301 \ufffd"
    assert str(visible(kept)) == kept


def test_piled_marks_are_thinned() -> None:
    shown = str(visible("z" + "\u0301" * 50 + "a\u0301"))
    assert shown == "z" + "\u0301" * 4 + "a\u0301"
    assert unicodedata.category("\u0301") == "Mn"


def test_an_excerpt_loses_only_its_middle() -> None:
    text = "0123456789" * 10
    cut = excerpt(text, 30, 20)
    assert (cut.head, cut.tail) == (text[:30], text[-20:])
    assert len(cut.head) + cut.left_out + len(cut.tail) == len(text)
    assert excerpt(text, 80, 20) == Excerpt(text)
    assert excerpt(text, 30) == Excerpt(text[:30], 70, "")
