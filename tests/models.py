"""A small random target made on the spot: no download, about a second, the same weights every time.

Random weights with a little help: the rows of the output matrix that end a turn or a thought are larger, so that
greedy answers differ in length and kind (closed, unclosed, cut), which is what the tests of the rows need.
"""

from __future__ import annotations

from pathlib import Path

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

IDS = {text: index for index, text in enumerate(SPECIAL)}
EOS_IDS = (IDS["[EOS]"], IDS["<|im_end|>"])

# The last plain answer in the history is where earlier thoughts stop being shown, as in Kimi's own template.
TEMPLATE = """\
{%- macro text_of(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content is not none -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and not message.get('tool_calls') -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_assistant|>assistant<|im_middle|>
{%- if THINK and loop.index0 > ns.last -%}<think>{{ message.get('reasoning_content') or '' }}</think>
{%- elif THINK -%}<think></think>
{%- endif -%}
{{- text_of(message.content) -}}
{%- if message.get('tool_calls') -%}<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{%- if call.function.arguments is string -%}{{ call.function.arguments }}
{%- else -%}{{ call.function.arguments | tojson }}
{%- endif -%}<|tool_call_end|>
{%- endfor -%}<|tool_calls_section_end|>
{%- endif -%}<|im_end|>
{%- elif message.role == 'tool' -%}
<|im_system|>tool<|im_middle|>## Return of {{ message.tool_call_id }}\n{{ text_of(message.content) }}<|im_end|>
{%- elif message.role == 'system' -%}
<|im_system|>system<|im_middle|>{{ text_of(message.content) }}<|im_end|>
{%- elif message.role == 'user' -%}
<|im_user|>user<|im_middle|>{{ text_of(message.content) }}<|im_end|>
{%- else -%}
{{ raise_exception('unknown role ' ~ message.role) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_assistant|>assistant<|im_middle|>
{%- if THINK -%}{%- if thinking is defined and thinking is false -%}<think></think>{%- else -%}<think>{%- endif -%}
{%- endif -%}
{%- endif -%}
"""

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. What is two plus two? Let me think about it first. "
    "I add the numbers one by one, then I check the answer. The answer is four, because two and two are four. "
    "user assistant system tool function name arguments return value question reason answer number city Paris "
)


def tiny_model(
    folder: Path, *, seed: int = 0, layers: int = 6, hidden: int = 64, vocab: int = 512, think: bool = True
) -> Path:
    """Save a random Llama and a byte-level tokenizer with a Kimi-like chat template; returns `folder`.

    With `think=False` the template knows no thought block. Context length is 2048, both `[EOS]` and `<|im_end|>` end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer(vocab, think).save_pretrained(folder)
    _llama(seed, layers, hidden, vocab).save_pretrained(folder)
    return folder


def _tokenizer(vocab: int, think: bool):
    """A byte-level BPE of exactly `vocab` ids, trained on a few sentences."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator([_CORPUS], trainer)
    _fill(core, vocab)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="[BOS]",
        eos_token="[EOS]",
        pad_token="[PAD]",
        extra_special_tokens=list(SPECIAL[3:]),
        model_max_length=2048,
    )
    made.chat_template = TEMPLATE.replace("THINK", "true" if think else "false")
    return made


def _fill(core, vocab: int) -> None:
    """Add ordinary tokens until every id has a text: a model may produce any id below its vocabulary size."""
    missing = vocab - core.get_vocab_size()
    if missing > 0:
        core.add_tokens([f" filler{index}" for index in range(missing)])


def _llama(seed: int, layers: int, hidden: int, vocab: int):
    """A random Llama whose answers vary and end now and then."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=IDS["[BOS]"],
        eos_token_id=IDS["[EOS]"],
        pad_token_id=IDS["[PAD]"],
    )
    config.architectures = ["LlamaForCausalLM"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        _shape_weights(model)
    model.generation_config = GenerationConfig(
        bos_token_id=IDS["[BOS]"], eos_token_id=list(EOS_IDS), pad_token_id=IDS["[PAD]"]
    )
    return model


def _shape_weights(model) -> None:
    """Larger random weights (a default initialisation repeats one id for ever) and louder end markers."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=1.0 / parameter.shape[1] ** 0.5)
        model.model.embed_tokens.weight.mul_(4.0)
        head = model.lm_head.weight
        head.mul_(2.0)
        # a row k times as long wins the argmax more often, but only where its sign fits: answers of many lengths
        head[IDS["<|im_end|>"]].mul_(1.45)
        head[IDS["</think>"]].mul_(2.0)
        for text in ("[PAD]", "[BOS]", "<think>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"):
            head[IDS[text]].mul_(0.3)
