"""The entries as data, and their check against a tokenizer and its template."""

from __future__ import annotations

import pickle

import pytest

from ray_jobs.core.errors import ConfigError
from ray_jobs.text.chat import Chat
from ray_jobs.text.markers import FAMILIES, ROLES, resolve

NAMES = {
    "deepseek_r1",
    "deepseek_v31",
    "glm45",
    "kimi_k2_thinking",
    "kimi_k25",
    "minimax_m2",
    "none",
    "qwen3",
    "qwen3_thinking",
    "seed_oss",
    "tiny",
}


def test_every_family_is_there_and_whole():
    assert set(FAMILIES) >= NAMES
    for name, entry in FAMILIES.items():
        assert entry.family == name
        assert set(entry.texts) <= set(ROLES)
        ids = [i for role in ROLES for i in getattr(entry, role)]
        assert len(ids) == len(set(ids))
        assert len(entry.all_texts) == len(set(entry.all_texts))
        assert pickle.loads(pickle.dumps(entry)) == entry


def test_known_numbers():
    kimi = FAMILIES["kimi_k25"]
    assert (kimi.think_open, kimi.think_close, kimi.turn_end) == ((163606,), (163607,), (163586, 163585))
    assert (kimi.header_start, kimi.header_end) == ((163588,), (163601,))
    tools = (kimi.section_begin, kimi.section_end, kimi.call_begin, kimi.call_argument, kimi.call_end)
    assert tools == ((163595,), (163596,), (163597,), (163598,), (163599,))
    assert FAMILIES["qwen3"].think_open == (151667,)
    assert FAMILIES["deepseek_r1"].think_close == (128799,)
    assert FAMILIES["tiny"].all_texts == kimi.all_texts


def test_switches():
    assert FAMILIES["kimi_k25"].template_kwargs(False) == {"thinking": False}
    assert FAMILIES["qwen3"].template_kwargs(True) == {"enable_thinking": True}
    assert FAMILIES["seed_oss"].template_kwargs(True) == {}
    assert FAMILIES["seed_oss"].template_kwargs(False) == {"thinking_budget": 0}
    assert FAMILIES["kimi_k25"].template_kwargs(None) == {}
    with pytest.raises(ConfigError, match=r"^target.thinking=False: .*kimi_k2_thinking has no thinking switch"):
        FAMILIES["kimi_k2_thinking"].template_kwargs(False)


def test_ids_come_from_the_tokenizer(tokenizer):
    markers = Chat(tokenizer, "tiny").markers
    assert not markers.unresolved
    for role in ROLES:
        assert [tokenizer.decode([i]) for i in getattr(markers, role)] == list(markers.texts[role])


def test_another_familys_numbers_give_way(tokenizer):
    """Kimi's entry on a tokenizer that differs from it in nothing but numbers."""
    made, tiny = Chat(tokenizer, "kimi_k25").markers, Chat(tokenizer, "tiny").markers
    assert made.think_open == tiny.think_open != FAMILIES["kimi_k25"].think_open


def test_turn_ends_of_none_are_the_tokenizers(make_tokenizer):
    template = "<|im_start|>assistant\n"
    made = make_tokenizer(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), (), template, "<|im_end|>")
    chat = Chat(made, "none", eos_ids=[256, 258])
    assert chat.markers.turn_end == chat.eos_ids == (258, 256)
    with pytest.raises(ConfigError, match="no end-of-sequence id"):
        Chat(make_tokenizer(("<|im_start|>",), (), template, None), "none")


@pytest.mark.parametrize("missing", ["</think>", "<|tool_call_argument_begin|>", "[EOS]", "<|im_middle|>"])
def test_marker_that_is_not_one_id_is_named(make_tokenizer, missing):
    special = tuple(t for t in ("[BOS]", *FAMILIES["tiny"].all_texts) if t != missing)
    with pytest.raises(ConfigError, match=r"^target.markers=tiny: .*must be exactly one id") as caught:
        Chat(make_tokenizer(special, (), "x", "[BOS]"), "tiny")
    assert f"the marker {missing} " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_markers_that_share_an_id_are_refused():
    class OneId:
        eos_token_id = 0

        def encode(self, text, add_special_tokens):
            self.last = text
            return [3]

        def decode(self, ids, skip_special_tokens):
            return self.last

    with pytest.raises(ConfigError, match=r"<think> and </think> have one id 3"):
        resolve("tiny", OneId(), lambda on: [])


TAILS = {
    "kimi_k2_thinking": (("", ""), ("<think>", "<think>")),
    "tiny": (("<think>", "<think></think>"), ("", "<think></think>")),
    "kimi_k25": (("<think>", "<think>\n\n</think>"), ("<think>", "<think>")),
}


@pytest.mark.parametrize("family", TAILS)
def test_tail_must_be_as_the_entry_says(make_tokenizer, family):
    (on, off), wrong = TAILS[family]

    def build(a: str, b: str) -> Chat:
        tail = f"{{{{ {a!r} if thinking is not defined or thinking else {b!r} }}}}"
        return Chat(make_tokenizer(template="<|im_assistant|>assistant<|im_middle|>" + tail), family)

    build(on, off)
    with pytest.raises(ConfigError, match=rf"^target.markers={family}: the rendered prompt.*<think> \.\.\. </think>"):
        build(*wrong)


def test_bare_closer_closes(make_tokenizer):
    made = make_tokenizer(template="<|im_assistant|>a<|im_middle|>{{ '<think>' if thinking else '</think>' }}")
    assert Chat(made, "tiny", thinking=False).markers.switch == "thinking"


def test_ignored_switch_is_refused(make_tokenizer):
    """A template with another name for the switch renders on and off alike."""
    made = make_tokenizer(template="<|im_assistant|>a<|im_middle|><think>{{ '</think>' if not enable_thinking }}")
    with pytest.raises(ConfigError, match=r"with \{'thinking': True\} closes a block"):
        Chat(made, "tiny")


def test_unknown_family(tokenizer):
    with pytest.raises(ConfigError, match=r"^target.markers=kimi: no such family of markers. Choose one of: deepseek"):
        Chat(tokenizer, "kimi")
