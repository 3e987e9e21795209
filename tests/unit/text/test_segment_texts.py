"""Texts, tool calls, half characters and repetition, on the bytes of a small tokenizer."""

from __future__ import annotations

import random

import pytest

from ray_jobs.text.chat import Chat
from ray_jobs.text.repetition import repeats
from ray_jobs.text.segments import Texts, split, texts


@pytest.fixture(scope="module")
def chat(tokenizer):
    return Chat(tokenizer, "tiny")


@pytest.fixture(scope="module")
def qwen(make_tokenizer):
    """Qwen's texts: no section around a call, JSON within it."""
    template = (
        "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    )
    special = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    plain = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    return Chat(make_tokenizer(special, plain, template, "<|im_end|>"), "qwen3")


def read(chat: Chat, output: str | list[int], prompt: str = "<|im_assistant|>assistant<|im_middle|><think>") -> Texts:
    encode = chat.tokenizer.encode
    ids = encode(output, add_special_tokens=False) if isinstance(output, str) else output
    made = split(encode(prompt, add_special_tokens=False), ids, chat.markers)
    return texts(made, ids, chat.decode, chat.markers)


def test_texts_keep_every_byte(chat):
    made = read(chat, "\n a thought \n</think>\n\nThe answer. <|im_end|>")
    assert made.reasoning == "\n a thought \n"
    assert made.content == "\n\nThe answer. "
    assert made.tool_calls is None
    assert made.n_reasoning_tokens == len("\n a thought \n")
    assert made.flags == ()


def test_null_and_empty_reasoning_differ(chat):
    closed = "<|im_assistant|>assistant<|im_middle|><think></think>"
    assert read(chat, "Hi<|im_end|>", closed).reasoning is None
    assert read(chat, "</think>Hi<|im_end|>").reasoning == ""
    assert read(chat, []).reasoning == ""


def test_kept_markers_are_shown_in_content(chat):
    made = read(chat, "t</think>a</think>b<|im_end|>")
    assert made.content == "a</think>b"
    assert made.flags == ("extra_close",)


def test_text_that_looks_like_a_marker_is_none(chat):
    ids = chat.render_ids([{"role": "user", "content": "</think>"}])
    typed = ids[ids.index(chat.markers.header_end[0]) + 1 :][: len("</think>")]
    made = read(chat, [*typed, chat.markers.think_close[0], 65])
    assert made.reasoning == "</think>"


def test_half_a_character_is_flagged_and_kept(chat):
    euro = chat.tokenizer.encode("\u20ac", add_special_tokens=False)
    assert len(euro) == 3
    made = read(chat, [*euro[:2], chat.markers.think_close[0], *euro])
    assert made.flags == ("cut_character",)
    assert made.content == "\u20ac"
    assert read(chat, [chat.markers.think_close[0], euro[2]]).flags == ("cut_character",)


def test_decode_is_called_once_a_segment():
    from dataclasses import replace

    from ray_jobs.text.markers import FAMILIES

    seen: list[list[int]] = []

    def decode(ids):
        seen.append(ids)
        return "x" * len(ids)

    markers = replace(FAMILIES["kimi_k25"])
    output = [1, 2, 163607, 3, 163607, 4, 163586, 9]
    made = texts(split([163606], output, markers), output, decode, markers)
    assert seen == [[1, 2], [3, 163607, 4]]
    assert (made.reasoning, made.content, made.n_reasoning_tokens) == ("xx", "xxx", 2)
    assert made.flags == ("extra_close", "ids_after_stop")


SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"


def test_kimi_calls(chat):
    calls = CALL.format("functions.tide:4", '{"port": "Brest"}') + CALL.format("functions.a.b", "{oops")
    made = read(chat, "t</think>" + SECTION.format(calls) + "<|im_end|>")
    assert made.tool_calls == [
        {"index": 4, "name": "tide", "arguments": '{"port": "Brest"}', "parsed": {"port": "Brest"}},
        {"index": 1, "name": "a.b", "arguments": "{oops", "parsed": None},
    ]
    assert made.content == ""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", []),
        ("what", [(None, "what")]),
        ("<|tool_call_begin|>functions.f:0", [(None, "functions.f:0")]),
        ("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{", [("f", "{")]),
        ("<|tool_call_begin|><|tool_call_argument_begin|>{}<|tool_call_end|>", [(None, "{}")]),
    ],
)
def test_malformed_kimi_sections_lose_no_text(chat, body, expected):
    made = read(chat, "t" + SECTION.format(body))
    assert [(c["name"], c["arguments"]) for c in made.tool_calls or []] == expected
    assert made.tool_calls is not None


def test_indices_go_on_over_sections(chat):
    plain = SECTION.format(CALL.format("f", "{}"))
    made = read(chat, "t</think>" + plain + "and" + plain)
    assert [c["index"] for c in made.tool_calls or []] == [0, 1]
    assert made.content == "and"


def test_qwen_calls(qwen):
    one = '<tool_call>\n{"name": "tide", "arguments": {"port":  "Brest"}}\n</tool_call>'
    two = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    made = read(qwen, f"<think>t</think>{one}\n{two}<tool_call>none</tool_call><|im_end|>", "<|im_start|>assistant\n")
    assert made.tool_calls == [
        {"index": 0, "name": "tide", "arguments": '{"port":  "Brest"}', "parsed": {"port": "Brest"}},
        {"index": 1, "name": "f", "arguments": '{"a": 1}', "parsed": {"a": 1}},
        {"index": 2, "name": None, "arguments": "none", "parsed": None},
    ]


def test_repetition():
    rng = random.Random(5)
    varied = [rng.randrange(5000) for _ in range(600)]
    assert not repeats(varied)
    assert not repeats([7] * 63)
    assert repeats(varied + [7] * 64)
    assert repeats(varied + list(range(30)) * 12)
    assert not repeats(list(range(30)) * 2 + varied[:10])
    assert repeats(varied + [i for n in range(300) for i in (1, 2, 3, 4, 5, 6, 7, 8, 9, 1000 + n // 10)])


def test_repetition_is_flagged_before_the_turn_end(chat):
    made = read(chat, "t</think>" + "so it is. " * 12 + "<|im_end|>")
    assert made.flags == ("repetition",)
    assert read(chat, "t</think>A short answer.<|im_end|>").flags == ()
