"""A Llama in few large products: what a step of a small model costs is calls, not arithmetic.

Queries, keys and values are one product, gate and up another; weights lie as [in, out], which a CPU multiplies fastest.

P rows of a step (running ones first, then padding)   b running rows   T tokens of one prompt   L keys looked at
H hidden size   V vocabulary   N = K * G heads: K key-value heads, each read by G   D head width   I intermediate size
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ray_jobs.target.embedded.cache import SlotCache, SlotLayer
from ray_jobs.target.in_process import decoder_layers

VALUE_CHUNK = 256
"""Keys whose values are summed in one product. Longer sums are cut in two by the library at a place that depends on
the longest row, and a row's answer would then depend on its neighbours."""

LOWEST = torch.finfo(torch.float32).min

_STEADY_ROPE = {"default", "linear", "llama3", "yarn"}
"""Rotary frequencies that do not change with the length of the text."""


def fits(model: Any) -> bool:
    """Whether this transformers model computes what `FusedLlama` does."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    return bool(
        type(model).__name__ == "LlamaForCausalLM"
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        and rope.get("rope_type", "default") in _STEADY_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def _fused(linears: Sequence[nn.Linear]) -> torch.Tensor:
    """One [in, out] matrix of several layers; the layers keep views of it, so that nothing is held twice."""
    whole = torch.cat([linear.weight for linear in linears]).t().contiguous()
    start = 0
    for linear in linears:
        stop = start + linear.weight.shape[0]
        linear.weight = nn.Parameter(whole[:, start:stop].t(), requires_grad=False)
        start = stop
    return whole


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows `start` to `stop` of a step."""

    start: int
    stop: int
    longest: int
    """Keys that they look at, L."""
    mask: torch.Tensor
    """[rows * K, G, L], added to the scores."""


class _Layer:
    """The matrices of one decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm_in, self.norm_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self.eps: float = layer.input_layernorm.variance_epsilon
        self.qkv = _fused([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = _fused([attention.o_proj])
        self.gate_up = _fused([mlp.gate_proj, mlp.up_proj])
        self.down = _fused([mlp.down_proj])

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """x [P, H] with this layer's MLP added."""
        both = torch.mm(_norm(x, self.norm_mlp, self.eps), self.gate_up)
        half = both.shape[1] // 2
        return torch.addmm(x, nn.functional.silu(both[:, :half]).mul_(both[:, half:]), self.down)


class FusedLlama:
    """The decoder of a loaded `LlamaForCausalLM` in float32, over the rows of a `SlotCache`.

    With `rows` above 0 every step has that many rows, the ones behind the running ones being padding. The library
    chooses its order of summing by the shapes, so that equal shapes mean that a row's answer does not depend on which
    others run. Prompts are run one by one for the same reason.
    """

    def __init__(self, model: Any, *, rows: int) -> None:
        config = model.config
        self.rows = rows
        self.n_heads: int = config.num_attention_heads
        self.n_kv: int = config.num_key_value_heads
        self.depth: int = getattr(config, "head_dim", None) or config.hidden_size // self.n_heads
        self.embed: torch.Tensor = model.get_input_embeddings().weight
        head = model.get_output_embeddings()
        # tied weights stay [V, H] for looking up and are copied for multiplying
        self.head = head.weight.t().contiguous() if head.weight is self.embed else _fused([head])
        self.norm, self.eps = model.model.norm.weight, model.model.norm.variance_epsilon
        self.layers = [_Layer(layer) for layer in decoder_layers(model)]
        places = torch.arange(config.max_position_embeddings)[None]
        cos, sin = model.model.rotary_emb(self.embed[:1], places)
        half = self.depth // 2
        self.cos = cos[0].clone()
        # the sign of the turned half is in the table
        self.sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[S, V] of normed states [S, H]."""
        return torch.mm(states, self.head)

    def decode(
        self, tokens: Sequence[int], positions: torch.Tensor, cache: SlotCache, aux: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token of each running row: normed states [P, H], and the outputs of the layers `aux` [b, A]."""
        b = len(tokens)
        padding = max(self.rows - b, 0)
        x = self.embed[torch.tensor([*tokens, *[0] * padding])]
        places = nn.functional.pad(positions, (0, padding))
        turn = self.cos[places, None], self.sin[places, None]
        spans = self._spans(cache)
        rest = x.new_zeros(padding, self.n_heads * self.depth)
        kept: dict[int, torch.Tensor] = {}
        for index, (layer, store) in enumerate(zip(self.layers, cache.layers, strict=True)):
            q, k, v = self._qkv(layer, x, turn)
            assert isinstance(store, SlotLayer)
            keys, values = store.update(k[:b, :, None], v[:b, :, None])
            parts = [_attend(q, keys, values, span) for span in spans]
            out = torch.cat([*parts, rest]) if padding else torch.cat(parts)
            x = layer.mlp(torch.addmm(x, out, layer.out))
            if index in aux:
                kept[index] = x[:b]
        return _norm(x, self.norm, self.eps), _beside(kept, aux, x[:b])

    def prefill(self, prompt: Sequence[int], cache: SlotCache, aux: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """One new row behind the running ones: normed states [T, H] and the outputs of the layers `aux` [T, A]."""
        cache.begin_prefill([len(prompt)])
        x = self.embed[torch.tensor(prompt)]
        turn = self.cos[: len(prompt), None], self.sin[: len(prompt), None]
        kept: dict[int, torch.Tensor] = {}
        for index, (layer, store) in enumerate(zip(self.layers, cache.layers, strict=True)):
            q, k, v = (part.transpose(0, 1)[None] for part in self._qkv(layer, x, turn))
            assert isinstance(store, SlotLayer)
            store.update(k, v)
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = layer.mlp(torch.addmm(x, out[0].transpose(0, 1).reshape(len(prompt), -1), layer.out))
            if index in aux:
                kept[index] = x
        return _norm(x, self.norm, self.eps), _beside(kept, aux, x)

    def _qkv(self, layer: _Layer, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Turned queries [P, N, D], turned keys and values [P, K, D] of x [P, H]."""
        parts = torch.mm(_norm(x, layer.norm_in, layer.eps), layer.qkv).view(len(x), -1, self.depth)
        turning, half = parts[:, : self.n_heads + self.n_kv], self.depth // 2
        swapped = torch.cat((turning[..., half:], turning[..., :half]), dim=-1)
        turned = torch.addcmul(turning * turn[0], swapped, turn[1])
        return turned[:, : self.n_heads], turned[:, self.n_heads :], parts[:, self.n_heads + self.n_kv :]

    def _spans(self, cache: SlotCache) -> list[_Span]:
        """Neighbouring rows that look at equally many keys, as long as the longest of them."""
        groups = self.n_heads // self.n_kv
        spans: list[_Span] = []
        for start, stop, longest in cache.spans():
            last = torch.tensor(cache.lengths[start:stop])[:, None]
            # each row sees its own tokens and not the leftovers behind them
            mask = torch.zeros(stop - start, longest).masked_fill_(torch.arange(longest) >= last, LOWEST)
            wide = mask[:, None, None].expand(stop - start, self.n_kv, groups, longest)
            spans.append(_Span(start, stop, longest, wide.reshape(-1, groups, longest)))
        return spans


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: _Span) -> torch.Tensor:
    """[rows, N * D] of a span's rows of query [P, N, D], keys and values [b, K, L, D].

    One query of G lines a key-value head: no key is copied or read twice.
    """
    rows, depth = slice(span.start, span.stop), keys.shape[3]
    grouped = query[rows].reshape(len(span.mask), -1, depth)
    flat = keys[rows, :, : span.longest].reshape(len(span.mask), span.longest, depth)
    weights = torch.baddbmm(span.mask, grouped, flat.transpose(1, 2), alpha=depth**-0.5).softmax(-1)
    flat = values[rows, :, : span.longest].reshape(len(span.mask), span.longest, depth)
    out = torch.bmm(weights[..., :VALUE_CHUNK], flat[:, :VALUE_CHUNK])
    for start in range(VALUE_CHUNK, span.longest, VALUE_CHUNK):
        stop = start + VALUE_CHUNK
        out += torch.bmm(weights[..., start:stop], flat[:, start:stop])
    return out.view(span.stop - span.start, -1)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    # by the length of the vector: the mean of squares is four calls on a CPU
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.rsqrt(length.square_().div_(x.shape[-1]).add_(eps)) * weight


def _beside(kept: dict[int, torch.Tensor], aux: Sequence[int], x: torch.Tensor) -> torch.Tensor:
    """The kept outputs beside each other in the order of `aux`; an empty [rows, 0] where none are."""
    return torch.cat([kept[index] for index in aux], dim=-1) if aux else x[:, :0]
