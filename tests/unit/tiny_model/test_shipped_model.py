"""The folder models/tiny: its size, its tokenizer and template, and how good its answers are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from ray_jobs.target.model_folder import read_facts
from ray_jobs.text.chat import Chat
from tiny_model.conversations import KINDS, draw
from tiny_model.score import Answer, held_out, score
from tiny_model.tokenizer import SPECIAL, TEMPLATE, answer_text, prompt_text

FOLDER = Path(__file__).parents[3] / "models" / "tiny"


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat.load(FOLDER, markers_family="tiny", thinking=True)


def test_sizes() -> None:
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    facts = read_facts(str(FOLDER), None)
    assert facts.n_layers >= 8
    assert facts.vocab_size >= 2048


def test_it_is_a_plain_llama_in_bfloat16() -> None:
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert isinstance(model, LlamaForCausalLM)
    assert model.dtype is torch.bfloat16
    assert model.config.architectures == ["LlamaForCausalLM"]


def test_every_marker_is_one_special_id(chat: Chat) -> None:
    for number, text in enumerate(SPECIAL):
        assert chat.tokenizer.encode(text, add_special_tokens=False) == [number]
    assert len(chat.tokenizer) == 2048
    assert chat.tokenizer.chat_template == TEMPLATE.read_text(encoding="utf-8")


def test_the_generation_prompt_opens_the_thought_and_the_switch_closes_it(chat: Chat) -> None:
    messages = [{"role": "user", "content": "What is 2+2?"}]
    header = "<|im_assistant|>assistant<|im_middle|>"
    assert chat.render_text(messages).endswith(f"{header}<think>")
    off = Chat.load(FOLDER, markers_family="tiny", thinking=False)
    assert off.render_text(messages).endswith(f"{header}<think></think>")


def test_a_thought_of_an_earlier_answer_is_left_out_and_one_of_an_open_call_stays(chat: Chat) -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    history = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "reasoning_content": "old thought"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": None, "reasoning_content": "new thought", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "four"},
    ]
    text = chat.render_text(history, [{"type": "function", "function": {"name": "f"}}])
    assert "old thought" not in text
    assert "<think>new thought</think><|tool_calls_section_begin|>" in text
    assert '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>' in text
    assert "<|im_system|>tool<|im_middle|>## Return of functions.f:0\nfour<|im_end|>" in text
    assert text.startswith('<|im_system|>tool_declare<|im_middle|>[{"type": "function"')


@pytest.mark.parametrize("kind", KINDS)
def test_thoughts_have_20_to_300_ids(chat: Chat, kind: str) -> None:
    rng = random.Random(11)
    for _ in range(40):
        drawn = draw(rng, kind)
        thought = answer_text(chat.tokenizer, drawn).split("</think>")[0]
        assert 18 <= len(chat.tokenizer.encode(thought, add_special_tokens=False)) <= 300
        prompt = prompt_text(chat.tokenizer, drawn)
        ids = chat.render_ids(drawn.prompt, drawn.tools)
        assert chat.tokenizer.encode(prompt, add_special_tokens=False) == ids


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return score(FOLDER, held_out(400))


@pytest.mark.check
@pytest.mark.timeout(900)
def test_400_held_out_prompts(answers: list[Answer]) -> None:
    assert len(answers) == 400
    assert len({answer.conversation.kind for answer in answers}) == len(KINDS)
    well_formed = sum(answer.well_formed for answer in answers) / len(answers)
    right = sum(answer.right for answer in answers) / len(answers)
    lengths = sorted(answer.n_thought for answer in answers)
    print(f"well-formed {well_formed:.1%}, right {right:.1%}, thoughts of {lengths[0]} to {lengths[-1]} ids")
    assert well_formed >= 0.95
    assert right >= 0.90
    assert lengths[-1] >= 200
