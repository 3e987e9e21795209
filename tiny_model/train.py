"""Train `tiny` from nothing: `python -m tiny_model.train --folder models/tiny`; about an hour on two idle cores.

Fresh conversations all the time, never one of the held-out side; loss on what the assistant says; Muon for the
matrices and AdamW for the rest, one linear decay to zero. Weights are saved in bfloat16. The budget is a number of
ids, not of minutes, so a busy machine takes longer and trains the same model.

Shape letters: B conversations of a batch, T ids of the longest.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tiny_model.conversation import Conversation
from tiny_model.conversations import draw_any, is_held_out
from tiny_model.tokenizer import CONTEXT_LENGTH, VOCAB_SIZE, answer_text, build, prompt_text

EXTRA_TEXT = Path(__file__).parents[1] / "data" / "prompts"
"""Other English that the tokenizer sees."""

WITHOUT_THOUGHT = ("greeting", "who_are_you", "names_after", "restaurants", "call", "spelling", "first_letters")
"""Kinds that need no thought to be right; some of them are shown with thinking off."""


@dataclass(frozen=True)
class Example:
    """A conversation as ids; the first `n_prompt` are not trained on."""

    ids: list[int]
    n_prompt: int


def llama() -> Any:
    """The untrained model: 12 layers, so that the three captured ones lie apart."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=CONTEXT_LENGTH,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config.architectures = ["LlamaForCausalLM"]
    # On a CPU the plain products train almost twice as fast as the fused attention, whose backward pass is slow.
    return LlamaForCausalLM._from_config(config, attn_implementation="eager")


def load(folder: Path) -> Any:
    """A model to train further."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def examples(tokenizer: Any, seed: int) -> Iterator[Example]:
    """Conversations without end, none of the held-out side."""
    rng = random.Random(seed)
    while True:
        drawn = draw_any(rng)
        if not is_held_out(drawn):
            yield example(tokenizer, drawn, thinking=drawn.kind not in WITHOUT_THOUGHT or rng.random() < 0.8)


def example(tokenizer: Any, drawn: Conversation, *, thinking: bool) -> Example:
    """One conversation as ids."""
    prompt = tokenizer(prompt_text(tokenizer, drawn, thinking), add_special_tokens=False).input_ids
    answer = tokenizer(answer_text(tokenizer, drawn, thinking), add_special_tokens=False).input_ids
    return Example(prompt + answer, len(prompt))


def batches(stream: Iterator[Example], tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(ids [B, T], labels [B, T]) of about `tokens` ids: like lengths together, so that little is padding."""
    while True:
        pool = sorted((next(stream) for _ in range(1024)), key=lambda e: len(e.ids))
        groups: list[list[Example]] = [[]]
        for one in pool:
            if (len(groups[-1]) + 1) * len(one.ids) > tokens:
                groups.append([])
            groups[-1].append(one)
        random.Random(len(groups[0])).shuffle(groups)
        yield from map(_padded, groups)


def _padded(group: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(e.ids) for e in group)
    ids = torch.zeros(len(group), longest, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, one in enumerate(group):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        labels[row, one.n_prompt : len(one.ids)] = torch.tensor(one.ids[one.n_prompt :])
    return ids, labels


def optimisers(model: Any, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=rate, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(model: Any, tokenizer: Any, folder: Path, *, budget: int, tokens: int, rate: float, seed: int) -> None:
    """Train on `budget` ids, padding included, in batches of `tokens`; the rate falls with the ids that are left.

    Writes a line of `training.jsonl` every 20 steps, and a copy of the model in `unfinished/` every 500.
    """
    stream = batches(examples(tokenizer, seed), tokens)
    optims = optimisers(model, rate)
    peaks = [group["lr"] for optim in optims for group in optim.param_groups]
    started, step, seen = time.monotonic(), 0, 0
    model.train()
    while (done := seen / budget) < 1:
        ids, labels = next(stream)
        factor = min(1.0, (step + 1) / 50) * (1 - done)
        for group, peak in zip((g for o in optims for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * factor
        loss = _loss(model, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + ids.numel()
        if step % 20 == 0:
            minutes = round((time.monotonic() - started) / 60, 2)
            line = {"step": step, "loss": round(loss.item(), 4), "tokens": seen, "minutes": minutes}
            with (folder / "training.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        if step % 500 == 0:
            save(copy.deepcopy(model), tokenizer, folder / "unfinished")


def _loss(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over the answers' ids. The head runs on those positions alone: half of all are prompts."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
        hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state
        wanted = labels[:, 1:]
        logits = model.lm_head(hidden[wanted != -100])
    return torch.nn.functional.cross_entropy(logits.float(), wanted[wanted != -100])


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """The folder that transformers and SGLang load; weights in bfloat16."""
    from transformers import GenerationConfig

    turn_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, turn_end], pad_token_id=0)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--budget", type=int, default=24_000_000, help="ids to train on")
    parser.add_argument("--tokens", type=int, default=6144, help="ids of a batch")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="go on from the model of this folder instead of from nothing")
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler; twice as fast")
    args = parser.parse_args()
    from transformers import AutoTokenizer

    torch.manual_seed(args.seed)
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(args.start) if args.start else build(EXTRA_TEXT)
    model = load(args.start) if args.start else llama()
    if args.compile:
        model.model.compile(dynamic=True)
    (args.folder / "training.jsonl").unlink(missing_ok=True)
    train(model, tokenizer, args.folder, budget=args.budget, tokens=args.tokens, rate=args.rate, seed=args.seed)
    save(model, tokenizer, args.folder)


if __name__ == "__main__":
    main()
