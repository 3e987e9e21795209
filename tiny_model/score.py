"""How good `tiny` is on conversations that it never saw: `python -m tiny_model.score --folder models/tiny`.

Every prompt is answered at temperature 0 by transformers. Well-formed: a closed thought, an answer or a call, the turn
end. Right: the text is exactly the expected one, and calls have the expected function and arguments.

Shape letters: B prompts of a batch, T ids so far.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ray_jobs.text.chat import Chat
from ray_jobs.text.segments import split
from ray_jobs.text.tool_calls import read_calls
from tiny_model.conversation import Conversation
from tiny_model.conversations import KINDS, draw, is_held_out

MAX_NEW_TOKENS = 384


@dataclass(frozen=True)
class Answer:
    """One answer and what it is worth."""

    conversation: Conversation
    text: str
    n_thought: int
    well_formed: bool
    right: bool


def held_out(n: int, seed: int = 0) -> list[Conversation]:
    """`n` different conversations of the held-out side, the kinds in turn."""
    rng = random.Random(seed)
    found: dict[tuple[str, ...], Conversation] = {}
    for turn in range(200 * n):
        drawn = draw(rng, KINDS[turn % len(KINDS)])
        if is_held_out(drawn):
            found.setdefault(drawn.spoken, drawn)
        if len(found) == n:
            break
    return list(found.values())


def score(folder: Path, conversations: Sequence[Conversation], batch: int = 64) -> list[Answer]:
    """Answer and judge every conversation."""
    from transformers import AutoModelForCausalLM

    chat = Chat.load(folder, markers_family="tiny", thinking=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ordered = sorted(conversations, key=lambda c: len(chat.render_ids(c.prompt, c.tools)))
    answers: list[Answer] = []
    for first in range(0, len(ordered), batch):
        group = ordered[first : first + batch]
        prompts = [chat.render_ids(c.prompt, c.tools) for c in group]
        outputs = _greedy(model, prompts, chat.markers.turn_end)
        answers += [_judge(chat, *case) for case in zip(group, prompts, outputs, strict=True)]
    return answers


@torch.inference_mode()
def _greedy(model: Any, prompts: list[list[int]], ends: Sequence[int]) -> list[list[int]]:
    """Greedy answers of one batch, each up to its turn end."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    made = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=list(ends),
        pad_token_id=0,
    )
    return [_until_end(row[longest:].tolist(), ends) for row in made]


def _until_end(ids: list[int], ends: Sequence[int]) -> list[int]:
    stop = next((at for at, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: stop + 1]


def _judge(chat: Chat, wanted: Conversation, prompt: list[int], output: list[int]) -> Answer:
    made = split(prompt, output, chat.markers)
    texts: dict[str, str] = {"reasoning": "", "content": ""}
    calls: list[tuple[str | None, Any]] = []
    for segment in made.segments:
        ids = output[segment.start : segment.stop]
        if segment.kind in texts:
            texts[segment.kind] += chat.decode(ids)
        if segment.kind == "tool_call":
            calls += [(c["name"], c["parsed"]) for c in read_calls(ids, chat.markers, chat.decode)]
    ended = output[-1] in chat.markers.turn_end
    well_formed = ended and made.closed == "explicit" and not made.flags and bool(texts["content"] or calls)
    right = texts["content"] == wanted.answer and calls == wanted.calls
    n_thought = sum(s.stop - s.start for s in made.segments if s.kind == "reasoning")
    return Answer(wanted, chat.decode(output), n_thought, well_formed and bool(texts["reasoning"]), right)


def table(answers: Sequence[Answer]) -> Iterator[str]:
    """One line a kind, then the whole."""
    kinds = Counter(a.conversation.kind for a in answers)
    for kind, n in kinds.items():
        of_kind = [a for a in answers if a.conversation.kind == kind]
        yield f"{kind:14} {n:4} well-formed {_share(of_kind, 'well_formed')}  right {_share(of_kind, 'right')}"
    yield f"{'all':14} {len(answers):4} well-formed {_share(answers, 'well_formed')}  right {_share(answers, 'right')}"


def _share(answers: Sequence[Answer], name: str) -> str:
    return f"{100 * sum(getattr(a, name) for a in answers) / len(answers):5.1f} %"


def main() -> None:
    """Print the table, and the wrong answers if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "models" / "tiny")
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", action="store_true", help="show the wrong answers")
    args = parser.parse_args()
    answers = score(args.folder, held_out(args.prompts, args.seed))
    for answer in answers if args.wrong else []:
        if not answer.right or not answer.well_formed:
            print(answer.conversation.kind, "|", answer.conversation.spoken, "|", answer.text)
    print("\n".join(table(answers)))


if __name__ == "__main__":
    main()
