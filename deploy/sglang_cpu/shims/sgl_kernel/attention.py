"""Attention over the paged cache, for prefill, verification and decoding.

Shape letters: N ids of the batch, B requests, H query heads, G key/value heads, D head size, C cache slots,
L ids of the longest request of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

GROUP_IDS = 65536
"""Cached ids that are gathered at once: padding to the longest of a group must not fill the memory."""


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    extend_starts: Tensor,
    max_extend_len: int,
    scale: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Each request's last `extend_lens` ids attend to all of it, causally; q [N, H, D], caches [C, G, D].

    The new keys and values are in the cache already.
    """
    del k, v, max_extend_len, encoder_lens
    _refuse_others(k_scale, v_scale, logit_cap, is_cross, window, sinks)
    if tree_mask is not None or not is_causal:
        raise NotImplementedError("attention with a tree mask or without causal order")
    spans = zip(req_pool_indices.tolist(), seq_lens.tolist(), extend_lens.tolist(), extend_starts.tolist(), strict=True)
    for row, length, new, start in spans:
        slots = req_to_token[row, :length].long()
        seen = torch.arange(length) <= torch.arange(length - new, length)[:, None]
        out[start : start + new] = scaled_dot_product_attention(
            q[start : start + new].transpose(0, 1)[None],
            _read(k_cache, slots, q.dtype).transpose(0, 1)[None],
            _read(v_cache, slots, q.dtype).transpose(0, 1)[None],
            attn_mask=seen,
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)


def decode_attention_cpu(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
    out: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_loc: Tensor,
    attention_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scale: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One new id a request attends to all of it; q [B, H, D]. The new key and value are written to the cache here."""
    del attention_logits, encoder_lens
    _refuse_others(k_scale, v_scale, logit_cap, is_cross, window, sinks)
    if k is not None and v is not None:
        k_cache[cache_loc] = k.reshape(-1, *k_cache.shape[1:]).to(k_cache.dtype)
        v_cache[cache_loc] = v.reshape(-1, *v_cache.shape[1:]).to(v_cache.dtype)
    for group in _groups(seq_lens.tolist()):
        lengths = seq_lens[group]
        longest = int(lengths.max())
        slots = req_to_token[req_pool_indices[group], :longest].long()
        seen = torch.arange(longest) < lengths[:, None]
        # behind a request's end its row holds what an earlier one left there
        slots = slots.where(seen, 0)
        out[group] = scaled_dot_product_attention(
            q[group].unsqueeze(2),
            _read(k_cache, slots, q.dtype).transpose(1, 2),
            _read(v_cache, slots, q.dtype).transpose(1, 2),
            attn_mask=seen[:, None, None],
            scale=scale,
            enable_gqa=True,
        ).squeeze(2)


def _read(cache: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    return cache[slots].to(dtype)


def _groups(lengths: list[int]) -> Iterator[slice]:
    """Runs of requests whose ids, each padded to the longest of its run, are few enough; at least one request."""
    first, longest = 0, 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > first and longest * (i + 1 - first) > GROUP_IDS:
            yield slice(first, i)
            first, longest = i, length
    if lengths:
        yield slice(first, len(lengths))


def _refuse_others(k_scale: float, v_scale: float, logit_cap: float, is_cross: bool, window: int, sinks: Any) -> None:
    """Say what this stand-in does not do, before it does something else."""
    odd = {
        "a scaled cache": (k_scale, v_scale) != (1.0, 1.0),
        "a cap on logits": bool(logit_cap),
        "cross attention": is_cross,
        "a sliding window": window > 0,
        "attention sinks": sinks is not None,
    }
    found = [name for name, present in odd.items() if present]
    if found:
        raise NotImplementedError(f"attention with {', '.join(found)}")
