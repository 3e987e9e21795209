"""What the target would say next, for the rows that training needs.

Shape letters: B rows of a block, H target hidden size, V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ray_jobs.drafter.vocab import DraftVocab

_LOGIT_ELEMENTS = 1 << 25  # logits of a block: 128 MiB in float32


@dataclass(frozen=True, slots=True)
class Targets:
    """For B rows: top [B] the target's first choice in V; in_vocab [B] it can be drafted;
    p [B, W] the target's distribution over the draft columns, renormalised to 1."""

    top: Tensor
    in_vocab: Tensor
    p: Tensor


class Teacher:
    """The target's output head lm_head [V, H], frozen, on the device where it is to work; logits float32 at least.

    On a CPU a half-precision head is held once more in float32: a bfloat16 product would round logits near 20 to
    steps of 0.125, which changes both the distribution and the first choice.
    """

    def __init__(self, lm_head: Tensor, vocab: DraftVocab) -> None:
        if len(lm_head) != len(vocab.t2d):
            raise ValueError(f"lm_head has {len(lm_head)} rows, the vocabulary {len(vocab.t2d)}")
        self.vocab = vocab
        self.lm_head = lm_head.detach()
        if not lm_head.is_cuda:
            self.lm_head = self.lm_head.to(torch.promote_types(lm_head.dtype, torch.float32))
        self.ids = vocab.ids.to(lm_head.device)
        self.t2d = vocab.t2d.to(lm_head.device)

    @property
    def block_rows(self) -> int:
        """Rows to ask for at once, so that [B, V] stays small."""
        return max(64, _LOGIT_ELEMENTS // len(self.lm_head))

    @torch.no_grad()
    def targets(self, last: Tensor) -> Targets:
        """Targets of the rows last [B, H] (after the final norm): one block, see `block_rows`."""
        logits_BV = self._logits(last)
        top = logits_BV.argmax(-1)
        drafted = logits_BV if self.vocab.is_full else logits_BV.index_select(1, self.ids)
        return Targets(top, self.t2d[top], torch.softmax(drafted, dim=-1))

    def _logits(self, last: Tensor) -> Tensor:
        with torch.autocast(last.device.type, enabled=False):
            if self.lm_head.dtype in (torch.float32, torch.float64):
                return last.to(self.lm_head.dtype) @ self.lm_head.t()
            # half precision on a GPU: multiply as stored, keep the float32 sums
            return torch.mm(last.to(self.lm_head.dtype), self.lm_head.t(), out_dtype=torch.float32)
