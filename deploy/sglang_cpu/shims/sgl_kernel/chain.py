"""Draft trees of one chain a request, and their greedy verification.

Shape letters: B requests, N draft ids of a request, the verified id before them included.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK, CHAIN_MASK = 0, 1
"""Forms of the mask: over the whole request, or over its draft ids alone."""


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor | None,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next: Tensor,
    retrieve_sibling: Tensor,
    topk: int,
    depth: int,
    n_draft: int,
    mode: int,
) -> None:
    """Fill positions [B * N] and, each [B, N], the flat index of every id, its child and its sibling (-1: none)."""
    del parents, selected, depth
    if topk != 1:
        raise NotImplementedError("draft trees: speculative_eagle_topk must be 1")
    count = seq_lens.numel()
    place = torch.arange(n_draft)
    positions.view(count, n_draft).copy_(seq_lens.view(-1, 1) + place)
    retrieve_index.copy_(torch.arange(count * n_draft).view(count, n_draft))
    retrieve_next.copy_((place + 1).where(place + 1 < n_draft, -1).expand(count, -1))
    retrieve_sibling.fill_(-1)
    if tree_mask is not None and tree_mask.numel():
        _fill_mask(tree_mask, seq_lens.tolist(), n_draft, int(mode))


def _fill_mask(tree_mask: Tensor, lengths: list[int], n_draft: int, mode: int) -> None:
    """A draft id sees the verified ids (true already in a full mask), and the draft ids up to itself."""
    if mode not in (FULL_MASK, CHAIN_MASK):
        raise NotImplementedError(f"a tree mask of mode {mode}")
    causal = torch.ones(n_draft, n_draft, dtype=torch.bool).tril()
    at = 0
    for length in lengths:
        width = n_draft + (length if mode == FULL_MASK else 0)
        tree_mask[at : at + n_draft * width].view(n_draft, width)[:, -n_draft:] = causal
        at += n_draft * width


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept the longest prefix of candidates [B, N] that the target's own choices, target_predict [B * N], agree with.

    accept_token_num [B]: ids accepted of those drafted. accept_index [B, N'] (-1 before): their flat indices behind
    that of the verified id. predicts [B * N]: at each of these the target's choice, the last of which is new. Called
    with named arguments, spelled as here.
    """
    del retrive_next_token, retrive_next_sibling
    choices = target_predict.reshape(candidates.shape)
    depth = accept_index.shape[1]
    agree = (candidates[:, 1:depth] == choices[:, : depth - 1]).int()
    accepted = agree.cumprod(1).sum(1)
    accept_token_num.copy_(accepted)
    kept = torch.arange(depth) <= accepted.view(-1, 1)
    accept_index[kept] = retrive_index[:, :depth][kept].to(accept_index.dtype)
    flat = accept_index[kept].long()
    predicts[flat] = choices.reshape(-1)[flat].to(predicts.dtype)
