"""Where the ids of a request lie in the cache.

Shape letters: B requests, P ids that a request may have, K draft steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def _spans(rows: Tensor, starts: Tensor, stops: Tensor) -> Iterator[tuple[int, int, int, int, int]]:
    """(row, start, stop) of each request, and where its part begins and ends in a flat list of all parts."""
    at = 0
    for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
        yield row, start, stop, at, at + stop - start
        at += stop - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, starts: Tensor, stops: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """req_to_token [., P]: each request's ids starts..stops lie at the next slots of out_cache_loc."""
    del pool_len
    for row, start, stop, first, last in _spans(req_pool_indices, starts, stops):
        req_to_token[row, start:stop] = out_cache_loc[first:last].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, starts: Tensor, stops: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """out_cache_loc: the slots of each request's ids starts..stops, one request after the other."""
    del pool_len
    for row, start, stop, first, last in _spans(req_pool_indices, starts, stops):
        out_cache_loc[first:last] = req_to_token[row, start:stop].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """out_cache_loc [B * topk * K]: the slots reserved behind each request's end."""
    reserved = torch.full_like(seq_lens, topk * num_steps)
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, seq_lens + reserved, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """[B, P]: the slots of each request of a draft batch; with one chain a request they are its own."""
    del seq_lens, num_steps, pool_len
    if topk != 1:
        raise NotImplementedError("draft trees: speculative_eagle_topk must be 1")
    return req_to_token[req_pool_indices].clone()


def fill_bonus_tokens_cpu(accepted: Tensor, accepted_lens: Tensor, bonus: Tensor, stride: int) -> None:
    """bonus [B]: the last accepted id of each request; accepted holds `stride` places a request."""
    places = torch.arange(len(accepted_lens)) * stride + accepted_lens.long() - 1
    bonus.copy_(accepted.reshape(-1)[places])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """accept_out_cache_loc: the slots of the accepted ids, packed to the front; -1 in accept_index is none."""
    kept = accept_index.reshape(-1)
    kept = kept[kept >= 0].long()
    accept_out_cache_loc[: len(kept)] = out_cache_loc[kept]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Move slots of every layer's cache; data_ptrs are addresses, strides the bytes of a slot.

    All sources are read before a target is written, because the two may overlap.
    """
    to, of = targets.long().numpy(), sources.long().numpy()
    if not len(to):
        return
    slots = int(max(to.max(), of.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        cache = np.frombuffer(memory, dtype=np.uint8).reshape(slots, stride)
        cache[to] = cache[of]
