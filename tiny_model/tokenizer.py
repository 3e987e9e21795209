"""The tokenizer of `tiny`: byte-level BPE over its own conversations, Kimi's markers as single special ids."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiny_model.conversation import Conversation
from tiny_model.conversations import KINDS, draw
from tiny_model.lexicon import CITIES, CUISINES, DAYS, NAMES, NOUNS, PLACES

VOCAB_SIZE = 2048
CONTEXT_LENGTH = 4096

# [BOS] and [EOS] stand apart from the turn end, as in Kimi's tokenizer.
SPECIAL = (
    "[PAD]",
    "[BOS]",
    "[EOS]",
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
"""Each is one id; the ids are 0, 1, 2, ... in this order."""

TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def build(extra_text: Path | None = None) -> Any:
    """The tokenizer, the same every time. `extra_text`: a folder of JSON-lines prompts for common English words."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    # One id a digit, so that a number's places are where its digits are; words with the space before them.
    split = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s")
    core.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[reportAttributeAccessIssue]
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()  # type: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_corpus(extra_text), trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="[BOS]",
        eos_token="[EOS]",
        pad_token="[PAD]",
        extra_special_tokens=list(SPECIAL[3:]),
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return made


def _corpus(extra_text: Path | None) -> Iterator[str]:
    """Conversations of every kind, every word of the lexicon often enough to become one id, and other English."""
    rng = random.Random(0)
    for kind in KINDS:
        for _ in range(400):
            for message in (drawn := draw(rng, kind)).messages:
                yield " ".join(str(message.get(key) or "") for key in ("content", "reasoning_content", "tool_calls"))
            yield json.dumps(drawn.tools) if drawn.tools else ""
    for word in (*NOUNS, *NAMES, *CITIES, *CUISINES, *DAYS, *PLACES, "user", "assistant", "system", "tool_declare"):
        yield from (f"{word}\n {word}," for _ in range(30))
    for path in sorted(extra_text.glob("*.jsonl")) if extra_text else []:
        yield path.read_text(encoding="utf-8")


def prompt_text(tokenizer: Any, drawn: Conversation, thinking: bool = True) -> str:
    """The rendered prompt, up to where the answer begins."""
    return tokenizer.apply_chat_template(
        drawn.prompt, tools=drawn.tools, tokenize=False, add_generation_prompt=True, thinking=thinking
    )


def answer_text(tokenizer: Any, drawn: Conversation, thinking: bool = True) -> str:
    """What the model is to say after the prompt: thought, answer, calls, turn end."""
    question = {"role": "user", "content": ""}
    rendered = tokenizer.apply_chat_template([question, drawn.messages[-1]], tokenize=False)
    thought_and_answer = rendered.split("<think>", 1)[1]
    return thought_and_answer if thinking else thought_and_answer.split("</think>", 1)[1]
