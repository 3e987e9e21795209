"""The split rules, one by one and in the worked cases, on synthetic ids under Kimi's numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.text.markers import FAMILIES
from ray_jobs.text.segments import Split, split

KIMI = FAMILIES["kimi_k25"]
QWEN = FAMILIES["qwen3"]
NAMES = {
    "O": 163606,
    "C": 163607,
    "SB": 163595,
    "SE": 163596,
    "CB": 163597,
    "AB": 163598,
    "CE": 163599,
    "END": 163586,
    "EOS": 163585,
    "HS": 163588,
    "HE": 163601,
    "USER": 163587,
}
HEADER = "HS role HE"
IN = f"{HEADER} O"
OFF = f"{HEADER} O C"


def ids(text: str) -> list[int]:
    """Ids of a line of names; every word that is no marker's name is an ordinary id of its own."""
    return [NAMES.get(word, 1000 + i) for i, word in enumerate(text.split())]


def run(prompt: str, output: str, finish_reason: str = "stop", markers=KIMI) -> Split:
    return split(ids(prompt), ids(output), markers, finish_reason=finish_reason)


def shown(made: Split) -> str:
    return " ".join(f"{s.kind}:{s.start}:{s.stop}" for s in made.segments)


CASES = [
    # prompt, output, finish, segments, closed, flags
    (IN, "r1 r2 C a1 END", "stop", "reasoning:0:2 marker:2:3 content:3:4 stop:4:5", "explicit", ()),
    (
        HEADER,
        "O r1 C a1 END",
        "stop",
        "marker:0:1 reasoning:1:2 marker:2:3 content:3:4 stop:4:5",
        "explicit",
        (),
    ),
    (IN, "r1 r2 r3", "length", "reasoning:0:3", "never", ("truncated",)),
    (IN, "a1 a2 END", "stop", "reasoning:0:2 stop:2:3", "never", ("unclosed_stop",)),
    (OFF, "a1 END", "stop", "content:0:1 stop:1:2", "absent", ()),
    (IN, "C a1 END", "stop", "marker:0:1 content:1:2 stop:2:3", "explicit", ()),
    (
        IN,
        "r1 SB CB f AB j CE SE END",
        "stop",
        "reasoning:0:1 tool_call:1:8 stop:8:9",
        "implicit_tool",
        (),
    ),
    (
        IN,
        "r1 C a1 SB CB f AB j CE SE a2 END",
        "stop",
        "reasoning:0:1 marker:1:2 content:2:3 tool_call:3:10 content:10:11 stop:11:12",
        "explicit",
        (),
    ),
    (f"{HEADER} O C h1 END {IN}", "r1 C a1", "stop", "reasoning:0:1 marker:1:2 content:2:3", "explicit", ()),
    (
        IN,
        "nl r1 nl C nlnl a1 END",
        "stop",
        "reasoning:0:3 marker:3:4 content:4:6 stop:6:7",
        "explicit",
        (),
    ),
]


@pytest.mark.parametrize(("prompt", "output", "finish", "segments", "closed", "flags"), CASES)
def test_worked_case(prompt, output, finish, segments, closed, flags):
    made = run(prompt, output, finish)
    assert (shown(made), made.closed, made.flags) == (segments, closed, flags)


RULES = {
    "2 an earlier turn's open block says nothing": (
        f"{IN} x END {HEADER}",
        "a1 END",
        "content:0:1 stop:1:2",
        "absent",
        (),
    ),
    "2 a prefix that closed a block": (f"{HEADER} C", "a1", "content:0:1", "absent", ()),
    "2 a thought begun in the prompt": (
        f"{IN} p1 p2",
        "r1 C a1",
        "reasoning:0:1 marker:1:2 content:2:3",
        "explicit",
        (),
    ),
    "2 a header without its end": ("O x HS role", "a1", "content:0:1", "absent", ()),
    "2 no header at all: after the last turn end": ("O x END y", "a1", "content:0:1", "absent", ()),
    "2 neither header nor turn end: the whole prompt": ("x O", "r1", "reasoning:0:1", "never", ("unclosed_stop",)),
    "3 no opener: all content": (HEADER, "a1 a2 END", "content:0:2 stop:2:3", "absent", ()),
    "3 ids before the opener are content": (
        HEADER,
        "nl O r1 C a1",
        "content:0:1 marker:1:2 reasoning:2:3 marker:3:4 content:4:5",
        "explicit",
        (),
    ),
    "3 a tool call does not decide": (
        HEADER,
        "SB CB f AB j CE SE O r1 C",
        "tool_call:0:7 marker:7:8 reasoning:8:9 marker:9:10",
        "explicit",
        (),
    ),
    "4 openers at the start are markers": (
        HEADER,
        "O O r1 C a1",
        "marker:0:2 reasoning:2:3 marker:3:4 content:4:5",
        "explicit",
        ("extra_open",),
    ),
    "4 prompt and output both open": (
        IN,
        "O r1 C a1",
        "marker:0:1 reasoning:1:2 marker:2:3 content:3:4",
        "explicit",
        ("extra_open",),
    ),
    "4 also after the template's own newline": (
        f"{IN} nl",
        "O r1 C",
        "marker:0:1 reasoning:1:2 marker:2:3",
        "explicit",
        ("extra_open",),
    ),
    "4 the prompt opens twice": (f"{HEADER} O O", "r1 C", "reasoning:0:1 marker:1:2", "explicit", ("extra_open",)),
    "4 an opener within a thought is thought": (
        IN,
        "r1 O r2 C a1",
        "reasoning:0:3 marker:3:4 content:4:5",
        "explicit",
        ("extra_open",),
    ),
    "5 a bare call ends the thought": (
        IN,
        "r1 CB f AB j CE END",
        "reasoning:0:1 tool_call:1:6 stop:6:7",
        "implicit_tool",
        ("malformed_tool",),
    ),
    "5 other tool markers do not end it": (
        IN,
        "r1 SE CE AB C a1",
        "reasoning:0:4 marker:4:5 content:5:6",
        "explicit",
        (),
    ),
    "6 a second closer is content": (
        IN,
        "r1 C a1 C a2",
        "reasoning:0:1 marker:1:2 content:2:5",
        "explicit",
        ("extra_close",),
    ),
    "6 a closer after an implicit end": (
        IN,
        "r1 SB CB f AB j CE SE C a1 END",
        "reasoning:0:1 tool_call:1:8 content:8:10 stop:10:11",
        "implicit_tool",
        ("late_close",),
    ),
    "6 an opener after the block is content": (
        IN,
        "r1 C a1 O a2 END",
        "reasoning:0:1 marker:1:2 content:2:5 stop:5:6",
        "explicit",
        ("late_open",),
    ),
    "6 opener and closer where there was no block": (
        OFF,
        "a1 O a2 C a3",
        "content:0:5",
        "absent",
        ("late_open", "extra_close"),
    ),
    "7 a closer as the first id of an answer": (
        OFF,
        "C a1 C",
        "marker:0:1 content:1:3",
        "absent",
        ("extra_close", "stray_close"),
    ),
    "7 undecided: the first closer wherever it stands": (
        HEADER,
        "a1 a2 C a3 END",
        "content:0:2 marker:2:3 content:3:4 stop:4:5",
        "absent",
        ("stray_close",),
    ),
    "7 no block begins after a stray closer": (
        HEADER,
        "C a1 O a2 C",
        "marker:0:1 content:1:5",
        "absent",
        ("late_open", "extra_close", "stray_close"),
    ),
    "8 two sections stay two": (
        OFF,
        "SB CB f AB j CE SE SB CB f AB j CE SE END",
        "tool_call:0:7 tool_call:7:14 stop:14:15",
        "absent",
        (),
    ),
    "8 a section that never ends": (OFF, "a1 SB CB f AB j", "content:0:1 tool_call:1:6", "absent", ("malformed_tool",)),
    "8 a turn end within a section ends both": (
        OFF,
        "SB CB f END x",
        "tool_call:0:3 stop:3:4 excess:4:5",
        "absent",
        ("malformed_tool", "ids_after_stop"),
    ),
    "8 thought markers within a section": (OFF, "SB C O SE a1", "tool_call:0:4 content:4:5", "absent", ()),
    "8 bare calls, one segment each": (
        OFF,
        "CB f AB j CE CB f AB j CE",
        "tool_call:0:5 tool_call:5:10",
        "absent",
        ("malformed_tool",),
    ),
    "9 the other turn end": (IN, "r1 C a1 EOS", "reasoning:0:1 marker:1:2 content:2:3 stop:3:4", "explicit", ()),
    "9 ids after the turn end": (
        IN,
        "r1 C a1 END EOS O x C",
        "reasoning:0:1 marker:1:2 content:2:3 stop:3:4 excess:4:8",
        "explicit",
        ("ids_after_stop",),
    ),
    "10 the last id opens": (HEADER, "a1 O", "content:0:1 marker:1:2", "never", ("unclosed_stop",)),
    "12 nothing came": (IN, "", "", "never", ("unclosed_stop",)),
    "12 nothing came, no block": (OFF, "", "", "absent", ()),
}


@pytest.mark.parametrize(("prompt", "output", "segments", "closed", "flags"), RULES.values(), ids=RULES.keys())
def test_rule(prompt, output, segments, closed, flags):
    made = run(prompt, output)
    assert (shown(made), made.closed, made.flags) == (segments, closed, flags)


@pytest.mark.parametrize(
    ("prompt", "output", "closed"),
    [(IN, "r1 C a1", "explicit"), (OFF, "a1", "absent"), (IN, "r1 SB x", "implicit_tool"), (IN, "r1", "never")],
)
def test_length_is_truncated_in_every_state(prompt, output, closed):
    made = run(prompt, output, "length")
    assert made.closed == closed
    assert "truncated" in made.flags
    assert "unclosed_stop" not in made.flags


def test_family_without_sections_has_well_formed_bare_calls():
    think, close, call, end, stop = 151667, 151668, 151657, 151658, 151645
    made = split([151644, 7], [think, 1, call, 2, end, call, 3, end, stop], QWEN)
    assert shown(made) == "marker:0:1 reasoning:1:2 tool_call:2:5 tool_call:5:8 stop:8:9"
    assert (made.closed, made.flags) == ("implicit_tool", ())
    assert split([151644, 7, think, close], [call, 2], QWEN).flags == ("malformed_tool",)


def test_header_of_one_id_and_turn_ends_that_are_roles():
    glm = FAMILIES["glm45"]
    made = split([151336, 5, 151350, 151351, 151337], [9, 151336], glm)
    assert shown(made) == "content:0:1 stop:1:2"
    off = split([151336, 5, 151337, 151350, 151351], [151351, 9], glm)
    assert off.flags == ("stray_close",)


def test_none_family_is_all_content():
    none = replace(FAMILIES["none"], turn_end=(2,))
    made = split([1, 163606], [5, 6, 2, 7], none)
    assert shown(made) == "content:0:2 stop:2:3 excess:3:4"
    assert made.closed == "absent"


def test_entry_without_ids_is_refused():
    with pytest.raises(ConfigError, match=r"^target.markers=tiny: the ids of <think>"):
        split([1], [2], FAMILIES["tiny"])
