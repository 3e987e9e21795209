"""Which drafted tokens the recorded answer would have accepted.

Shape letters: T packed tokens, R kept chains, L steps, W draft vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_jobs.drafter.batch import Batch, rows_inside
from ray_jobs.drafter.model import Eagle3Drafter
from ray_jobs.drafter.vocab import DraftVocab

_LOGIT_ELEMENTS = 1 << 24  # logits of a block: 64 MiB in float32


@torch.no_grad()
def chain_matches(
    model: Eagle3Drafter, batch: Batch, n_steps: int, vocab: DraftVocab | None = None, chains: Tensor | None = None
) -> Tensor:
    """[T, L] bool: step i of chain s drafts the recorded token x[s+2+i]; False beyond the document.

    Earlier tokens of the chain are the recorded ones. Up to its first miss a chain that feeds its own tokens has
    drafted exactly these, so the length of the run of True at the start is what greedy drafting gets accepted.
    `vocab` may be left out where every token can be drafted. `chains` [T] bool limits the work to some starts; the
    others are False. `last` and the masks are not read.
    """
    if vocab is None and model.shape.draft_vocab_size != model.shape.vocab_size:
        raise ValueError("a drafter of a part of the vocabulary needs `vocab`")
    inside_LT = rows_inside(batch, n_steps)
    chains_T = inside_LT[0] if chains is None else inside_LT[0] & chains.bool()
    matches_TL = torch.zeros(len(chains_T), n_steps, dtype=torch.bool, device=chains_T.device)
    chains_R = chains_T.nonzero()[:, 0]
    if not len(chains_R):
        return matches_TL
    hidden = model(batch.input_ids, batch.aux, batch.offsets(), chains_T, n_steps)
    weight = model.lm_head.weight.to(hidden[0].dtype)
    block = max(64, _LOGIT_ELEMENTS // len(weight))
    for step, h_RD in enumerate(hidden):
        drafted = torch.cat([F.linear(h, weight).argmax(-1) for h in h_RD.split(block)])
        wanted = batch.input_ids[(chains_R + 2 + step).clamp(max=len(chains_T) - 1)]
        drafted = drafted if vocab is None else vocab.target_ids(drafted)
        matches_TL[chains_R, step] = (drafted == wanted) & inside_LT[step, chains_R]
    return matches_TL
