"""A small byte-level tokenizer with Kimi's control texts and a chat template in Kimi's shape, made on the spot."""

from __future__ import annotations

from typing import Any

import pytest

KIMI_TEXTS = (
    "[BOS]",
    "[EOS]",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
THINK_TEXTS = ("<think>", "</think>")

KIMI_TEMPLATE = """
{%- if tools -%}
<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|im_user|>user<|im_middle|>{{ m.content }}<|im_end|>
{%- elif m.role == 'system' -%}<|im_system|>system<|im_middle|>{{ m.content }}<|im_end|>
{%- elif m.role == 'tool' -%}
<|im_system|>tool<|im_middle|>## Return of {{ m.tool_call_id }}{{ '\\n' }}{{ m.content }}<|im_end|>
{%- elif m.role == 'assistant' -%}
<|im_assistant|>assistant<|im_middle|><think>{{ m.reasoning_content or '' }}</think>{{ m.content or '' }}
{%- if m.tool_calls -%}
<|tool_calls_section_begin|>
{%- for c in m.tool_calls -%}
<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments }}<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>
{%- endif -%}
<|im_end|>
{%- else -%}{{ raise_exception('role ' + m.role + ' is not known') }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_assistant|>assistant<|im_middle|>{{ '<think>' if thinking is not defined or thinking else '<think></think>' }}
{%- endif -%}
""".strip()


def build_tokenizer(
    texts: tuple[str, ...] = KIMI_TEXTS,
    plain_texts: tuple[str, ...] = THINK_TEXTS,
    template: str | None = KIMI_TEMPLATE,
    eos: str | None = "[EOS]",
) -> Any:
    """256 bytes, then special tokens `texts`, then added tokens that are no special ones (`plain_texts`)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # type: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain_texts])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The tokenizer of the family `tiny`; do not change it in a test."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def make_tokenizer() -> Any:
    """`build_tokenizer`, for tokenizers with something missing or different."""
    return build_tokenizer
