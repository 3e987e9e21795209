"""The drafter written a second time: chain by chain, key by key, from the formulas, for small cases.

It shares no code with the package: weights come in as a dict of named tensors, data as plain lists and tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Sizes:
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    theta: float


@dataclass
class Data:
    ids: list[int]
    aux: Tensor
    last: Tensor
    sampled: list[bool]
    wanted: list[bool]
    documents: list[tuple[int, int]]  # [first, stop)


@dataclass
class Result:
    ce: list[Tensor]
    rows: list[int]
    in_vocab: list[int]
    correct: list[int]
    prefix_correct: list[int]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turn(x: Tensor, position: int, theta: float) -> Tensor:
    """One head, one position: pairs (j, j + d/2) turned by position * theta^(-2j/d)."""
    half = len(x) // 2
    parts: list[Tensor] = [torch.zeros(())] * len(x)
    for j in range(half):
        angle = position * theta ** (-2 * j / len(x))
        parts[j] = x[j] * math.cos(angle) - x[j + half] * math.sin(angle)
        parts[j + half] = x[j + half] * math.cos(angle) + x[j] * math.sin(angle)
    return torch.stack(parts)


class Naive:
    def __init__(self, weights: dict[str, Tensor], embedding: Tensor, sizes: Sizes) -> None:
        self.w, self.embedding, self.z = weights, embedding, sizes

    def project(self, token: int, g: Tensor, position: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Query, key and value heads of one input."""
        w, z, mid = self.w, self.z, "midlayer."
        e = rms(self.embedding[token], w[mid + "input_layernorm.weight"], z.eps)
        u = torch.cat([e, rms(g, w[mid + "hidden_norm.weight"], z.eps)])
        q = (w[mid + "self_attn.q_proj.weight"] @ u).view(z.n_heads, z.head_dim)
        k = (w[mid + "self_attn.k_proj.weight"] @ u).view(z.n_kv_heads, z.head_dim)
        v = (w[mid + "self_attn.v_proj.weight"] @ u).view(z.n_kv_heads, z.head_dim)
        return [turn(x, position, z.theta) for x in q], [turn(x, position, z.theta) for x in k], list(v)

    def attend(self, q: list[Tensor], keys: list[list[Tensor]], values: list[list[Tensor]]) -> Tensor:
        z = self.z
        outs = []
        for head in range(z.n_heads):
            kv = head // (z.n_heads // z.n_kv_heads)
            scores = torch.stack([(q[head] * k[kv]).sum() / math.sqrt(z.head_dim) for k in keys])
            weights = torch.exp(scores - scores.max())
            weights = weights / weights.sum()
            outs.append(sum((weights[j] * v[kv] for j, v in enumerate(values)), torch.zeros_like(q[head])))
        return torch.cat(outs)

    def layer(self, g: Tensor, attended: Tensor) -> Tensor:
        w, mid = self.w, "midlayer."
        a = g + w[mid + "self_attn.o_proj.weight"] @ attended
        x = rms(a, w[mid + "post_attention_layernorm.weight"], self.z.eps)
        gate = w[mid + "mlp.gate_proj.weight"] @ x
        return a + w[mid + "mlp.down_proj.weight"] @ (
            gate / (1 + torch.exp(-gate)) * (w[mid + "mlp.up_proj.weight"] @ x)
        )

    def chain(self, data: Data, first: int, s: int, tokens: list[int]) -> list[Tensor]:
        """Logits of the steps of chain s of the document that begins at `first`, fed with `tokens`."""
        fc, z = self.w["fc.weight"], self.z
        keys, values = [], []
        for j in range(first, s):
            _, k, v = self.project(data.ids[j + 1], fc @ data.aux[j], j - first)
            keys.append(k)
            values.append(v)
        g = fc @ data.aux[s]
        logits = []
        for i, token in enumerate(tokens):
            q, k, v = self.project(token, g, s - first + i)
            keys.append(k)
            values.append(v)
            g = self.layer(g, self.attend(q, keys, values))
            logits.append(self.w["lm_head.weight"] @ rms(g, self.w["norm.weight"], z.eps))
        return logits


def losses(model: Naive, data: Data, target_head: Tensor, draft_ids: list[int], n_steps: int) -> Result:
    """Sums over all rows that train; the rule is written out for each row."""
    zero = torch.zeros((), dtype=torch.float64)
    out = Result([zero] * n_steps, [0] * n_steps, [0] * n_steps, [0] * n_steps, [0] * n_steps)
    for first, stop in data.documents:
        for s in range(first, stop):
            tokens = data.ids[s + 1 : min(s + 1 + n_steps, stop - 1)]
            if not tokens or not data.sampled[s + 1]:
                continue
            all_correct = True
            for i, logits in enumerate(model.chain(data, first, s, tokens)):
                trains = all(data.sampled[s + 1 : s + 3 + i]) and data.wanted[s + 2 + i]
                if not trains:
                    all_correct = False
                    continue
                z = target_head @ data.last[s + 1 + i]
                top = int(z.argmax())
                correct = draft_ids[int(logits.argmax())] == top
                all_correct = all_correct and correct
                out.rows[i] += 1
                out.correct[i] += correct
                out.prefix_correct[i] += all_correct
                if top in draft_ids:
                    p = torch.softmax(z[draft_ids], 0)
                    out.in_vocab[i] += 1
                    out.ce[i] = out.ce[i] - (p * torch.log_softmax(logits, 0)).sum()
    return out


def draft(model: Naive, data: Data, first: int, s: int, draft_ids: list[int], n_steps: int) -> list[int]:
    """Greedy drafting from chain s as a server does it: each step is fed the token drafted before."""
    drafted: list[int] = []
    for _ in range(n_steps):
        logits = model.chain(data, first, s, [data.ids[s + 1], *drafted])
        drafted.append(draft_ids[int(logits[-1].argmax())])
    return drafted
