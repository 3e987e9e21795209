"""The EAGLE-3 drafter: one Llama layer which reads the target's features and drafts the next tokens.

Shape letters: T packed tokens, R kept chains, H target hidden size, D draft hidden size (= H), V target vocabulary,
W draft vocabulary, L steps, N query heads, K key heads, E head size, P = (N + 2K) E.

For chain s and step i (arXiv 2503.01840; the layer as the serving engines run it):

    g0   = fc(aux[s])
    u    = concat(input_layernorm(embedding[x[s+1+i]]), hidden_norm(g))      the real token, never the drafted one
    a    = g + o_proj(attention(u))                                          the residual is not normed
    g'   = a + mlp(post_attention_layernorm(a))                              nor is the carried state
    logits = lm_head(norm(g'))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_jobs.drafter.attention import chain_attention
from ray_jobs.drafter.batch import Span, chain_spans
from ray_jobs.drafter.rope import RotaryTable, rope_frequencies
from ray_jobs.drafter.shape import DrafterShape

__all__ = ["DrafterShape", "Eagle3Drafter", "initialise"]

_INIT_STD = 0.02  # Llama's


def _linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


class _RmsNorm(nn.Module):
    """Sums in float32 at least; the output keeps the dtype of x, under autocast as well."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden_size))
        self.eps = shape.rms_norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps).to(x.dtype)


class _SelfAttention(nn.Module):
    """Holds the projections; the arithmetic is in `_Unroll`."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        d, width = shape.hidden_size, shape.head_dim
        self.q_proj = _linear(2 * d, shape.n_heads * width)
        self.k_proj = _linear(2 * d, shape.n_kv_heads * width)
        self.v_proj = _linear(2 * d, shape.n_kv_heads * width)
        self.o_proj = _linear(shape.n_heads * width, d)


class _Mlp(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = _linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = _linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = _linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _MidLayer(nn.Module):
    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = _RmsNorm(shape)
        self.hidden_norm = _RmsNorm(shape)
        self.post_attention_layernorm = _RmsNorm(shape)
        self.self_attn = _SelfAttention(shape)
        self.mlp = _Mlp(shape)


class Eagle3Drafter(nn.Module):
    """The trained weights, and the frozen embedding [V, H] of the target, which is shared and never saved.

    The embedding is neither a parameter nor a buffer: servers use the target's own, data-parallel wrappers must
    not broadcast it, and it keeps its dtype when the drafter is cast. It follows the drafter to another device.
    """

    def __init__(self, shape: DrafterShape, embedding: Tensor) -> None:
        super().__init__()
        if tuple(embedding.shape) != (shape.vocab_size, shape.target_hidden_size):
            raise ValueError(f"the embedding is {tuple(embedding.shape)}, the shape says {shape}")
        self.shape = shape
        self.embedding = embedding.detach()
        self.fc = _linear(len(shape.aux_layers) * shape.target_hidden_size, shape.hidden_size)
        self.midlayer = _MidLayer(shape)
        self.norm = _RmsNorm(shape)
        self.lm_head = _linear(shape.hidden_size, shape.draft_vocab_size)
        self.frequencies = rope_frequencies(shape.head_dim, shape.rope_theta, shape.rope_scaling)
        self._table: RotaryTable | None = None

    def _apply(self, fn: Any, recurse: bool = True) -> Eagle3Drafter:
        moved = super()._apply(fn, recurse)
        # ask for the device only: a cast of the weights must not double a shared embedding
        self.embedding = self.embedding.to(fn(torch.empty(0, device=self.embedding.device)).device)
        return moved

    def rotary_table(self, n_positions: int) -> RotaryTable:
        """cos and sin of at least these positions, kept until a longer document, another device or dtype comes."""
        like = self.fc.weight
        if self._table is None or not self._table.serves(n_positions, like):
            self._table = RotaryTable(self.frequencies, n_positions, like)
        return self._table

    def forward(
        self, input_ids: Tensor, aux: Tensor, starts: Sequence[int], chains: Tensor, n_steps: int
    ) -> list[Tensor]:
        """Unroll the chains in `chains` [T] bool; the result is L tensors [R, D], normed, ready for `lm_head`.

        input_ids [T], aux [T, 3H], starts the document offsets with T at the end.
        """
        return _Unroll(self, input_ids, aux, starts, chains, n_steps).run()


class _Unroll:
    """One pass over a packed batch, with what its steps share."""

    def __init__(
        self, model: Eagle3Drafter, input_ids: Tensor, aux: Tensor, starts: Sequence[int], chains: Tensor, n_steps: int
    ) -> None:
        shape, self.layer, self.model, self.n_steps = model.shape, model.midlayer, model, n_steps
        device, attention = input_ids.device, model.midlayer.self_attn
        self.width, self.n_kv = shape.head_dim, shape.n_kv_heads
        self.kv_size = shape.n_kv_heads * shape.head_dim
        self.q_size = shape.n_heads * shape.head_dim
        self.scale = shape.head_dim**-0.5
        self.aux, self.starts = aux, starts
        self.spans: list[Span] = chain_spans(chains, starts)
        self.chain_R = chains.nonzero()[:, 0]
        edges = torch.tensor(list(starts), device=device)
        self.position_T = torch.arange(len(input_ids), device=device) - edges[:-1].repeat_interleave(edges.diff())
        self.rope = model.rotary_table(int(edges.diff().max()) + n_steps)
        weight = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        self.weight_token, self.weight_hidden = weight.chunk(2, dim=1)
        self.token_TP = self._project_tokens(input_ids)

    def _project_tokens(self, input_ids: Tensor) -> Tensor:
        """The token half of q, k, v for every token, [T, P].

        W concat(e, g) = W_e e + W_g g, and e depends on the token alone, so one product serves all steps.
        """
        embedded = self.model.embedding[input_ids].to(self.model.fc.weight.dtype)
        return F.linear(self.layer.input_layernorm(embedded), self.weight_token)

    def _tokens(self, rows: Tensor) -> Tensor:
        """Rows of the token half; past the end any value will do, no chain that counts attends to it."""
        return self.token_TP.index_select(0, rows.clamp(max=len(self.token_TP) - 1))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.width))

    def _first(self, g_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step 0: q [R, N, E] for the kept chains, k and v [T, K, E] for all tokens."""
        normed = self.layer.hidden_norm(g_TD)
        after_T = torch.arange(1, len(normed) + 1, device=normed.device)
        kv = self._tokens(after_T)[:, self.q_size :] + F.linear(normed, self.weight_hidden[self.q_size :])
        q = F.linear(normed[self.chain_R], self.weight_hidden[: self.q_size])
        q = q + self._tokens(self.chain_R + 1)[:, : self.q_size]
        k, v = self._heads(kv[:, : self.kv_size]), self._heads(kv[:, self.kv_size :]).contiguous()
        position_R = self.position_T[self.chain_R]
        return self.rope.rotate(self._heads(q), position_R), self.rope.rotate(k, self.position_T), v

    def _later(self, g_RD: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Step i > 0: q [R, N, E], k and v [R, K, E] of the kept chains."""
        qkv = self._tokens(self.chain_R + 1 + step) + F.linear(self.layer.hidden_norm(g_RD), self.weight_hidden)
        q, k, v = qkv.split((self.q_size, self.kv_size, self.kv_size), dim=1)
        position_R = self.position_T[self.chain_R] + step
        rotated = self.rope.rotate(self._heads(torch.cat((q, k), dim=1)), position_R)
        # a copy of v lets q, k, v go together: a view would keep all three for the backward pass
        return rotated[:, : -self.n_kv], rotated[:, -self.n_kv :], self._heads(v).contiguous()

    def run(self) -> list[Tensor]:
        """L tensors [R, D] after the final norm."""
        g_TD = self.model.fc(self.aux.to(self.model.fc.weight.dtype))
        g_RD = g_TD[self.chain_R]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        hidden: list[Tensor] = []
        for step in range(self.n_steps):
            q, k, v = self._first(g_TD) if step == 0 else self._later(g_RD, step)
            keys.append(k)
            values.append(v)
            attended = chain_attention(q, keys, values, self.spans, self.scale)
            a_RD = g_RD + self.layer.self_attn.o_proj(attended.flatten(1))
            g_RD = a_RD + self.layer.mlp(self.layer.post_attention_layernorm(a_RD))
            hidden.append(self.model.norm(g_RD))
        return hidden


@torch.no_grad()
def initialise(
    model: Eagle3Drafter, lm_head_rows: Tensor | None = None, final_norm: Tensor | None = None, seed: int = 0
) -> None:
    """Set all weights, equal for equal seeds whatever the device and dtype; call it before a wrapper shards them.

    lm_head_rows [W, H]: the target's output rows of the draft tokens; final_norm [H]: the target's last norm.
    With both, the head starts as the target's own, so the drafter begins from what the target would say of its
    hidden state. So that there is a hidden state to speak of, `fc` starts by passing on the latest captured layer
    alone: its output lies in the residual stream that norm and head read (on a 135M target this halves the first
    loss). The rest as in Llama: normal with std 0.02, norms 1.
    """
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, _INIT_STD, generator=generator))
    model.fc.weight.zero_()
    model.fc.weight[:, -model.shape.target_hidden_size :].fill_diagonal_(1.0)
    if lm_head_rows is not None:
        model.lm_head.weight.copy_(lm_head_rows)
    if final_norm is not None:
        model.norm.weight.copy_(final_norm)
