"""Small random cases for the drafter's tests, and the same case as the reference sees it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from reference import Data, Naive, Sizes
from torch import Tensor

from ray_jobs.drafter.batch import Batch
from ray_jobs.drafter.model import DrafterShape, Eagle3Drafter, initialise
from ray_jobs.drafter.teacher import Teacher
from ray_jobs.drafter.vocab import DraftVocab, vocab_from_ids


def make_shape(
    vocab: int = 19, draft_vocab: int = 11, n_heads: int = 4, n_kv_heads: int = 2, rope: dict | None = None
) -> DrafterShape:
    return DrafterShape(
        hidden_size=12,
        target_hidden_size=12,
        intermediate_size=20,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=6,
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        rms_norm_eps=1e-5,
        rope_theta=500.0,
        rope_scaling=rope,
        max_position_embeddings=256,
        aux_layers=(1, 4, 7),
    )


@dataclass
class Case:
    shape: DrafterShape
    model: Eagle3Drafter
    teacher: Teacher
    vocab: DraftVocab
    batch: Batch
    head: Tensor

    def naive(self) -> tuple[Naive, Data]:
        """The reference's model, on fresh leaf tensors, and its data; float64."""
        z, batch = self.shape, self.batch
        weights = {k: v.detach().double().clone().requires_grad_() for k, v in self.model.state_dict().items()}
        sizes = Sizes(z.n_heads, z.n_kv_heads, z.head_dim, z.rms_norm_eps, z.rope_theta)
        edges = batch.offsets()
        data = Data(
            batch.input_ids.tolist(),
            batch.aux.double(),
            batch.last.double(),
            batch.sampled.tolist(),
            batch.wanted.tolist(),
            list(pairwise(edges)),
        )
        return Naive(weights, self.model.embedding.double(), sizes), data


def spans(n: int, chance: float, generator: torch.Generator) -> Tensor:
    """A random mask of runs, which starts with False: it flips at each position with the given chance."""
    return (torch.rand(n, generator=generator) < chance).long().cumsum(0) % 2 == 1


def make_case(
    seed: int,
    lengths: tuple[int, ...] = (9, 6),
    dtype: torch.dtype = torch.float64,
    shape: DrafterShape | None = None,
    vocab_seed: int = 0,
) -> Case:
    """Weights depend on `vocab_seed` alone, data on `seed`; large weights, so that no term is negligible."""
    shape = shape or make_shape()
    g = torch.Generator().manual_seed(1000 + vocab_seed)
    n_vocab, width = shape.vocab_size, shape.hidden_size
    ids = torch.randperm(n_vocab, generator=g)[: shape.draft_vocab_size].sort().values
    vocab = vocab_from_ids(ids, n_vocab)
    embedding, head = torch.randn(n_vocab, width, generator=g), torch.randn(n_vocab, width, generator=g)
    model = Eagle3Drafter(shape, embedding.to(dtype))
    initialise(model, head[ids], torch.rand(width, generator=g) + 0.5, seed=vocab_seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in ("lm_head.weight", "norm.weight"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=g))
    g = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    batch = Batch(
        input_ids=torch.randint(n_vocab, (n,), generator=g),
        aux=torch.randn(n, 3 * width, generator=g).to(dtype),
        last=torch.randn(n, width, generator=g).to(dtype),
        sampled=torch.cat([spans(length, 0.2, g) for length in lengths]),
        wanted=~spans(n, 0.1, g) if seed % 3 else torch.ones(n, dtype=torch.bool),
        starts=starts,
    )
    return Case(shape, model.to(dtype), Teacher(head.to(dtype), vocab), vocab, batch, head.double())
