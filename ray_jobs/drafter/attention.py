"""Attention of the unrolled drafter over packed documents, exact, without a [T, T] tensor.

Shape letters: T packed tokens, R kept chains, N query heads, K key heads, G = N / K, D head size, L steps.

At step i the query of chain s sees the step-0 keys of its document up to s, and the keys of steps 1..i of its own
chain: one further column per step. Softmax over a union of key sets can be put together from its parts: with
(out_p, lse_p) of each part, LSE = log sum_p exp(lse_p) and out = sum_p exp(lse_p - LSE) out_p. So

    part 1   the keys before the run of chains: flash attention, no mask
    part 2   the run's own step-0 keys: flash attention, causal
    columns  one key per later step: lse is the score itself, out the value

Backward needs the merged result only: with p = exp(score - LSE) and delta = sum_D dO * O,
dS = p (dO . v - delta) holds in each part alone, and that is what the flash backward computes when it is given the
merged out and lse. A run of chains costs t_run * t_document scores, whatever else is in the pack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ray_jobs.drafter.batch import Span

_SCORE_ELEMENTS = 1 << 24  # largest score block of the portable kernel: 64 MiB in float32

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Kernel(NamedTuple):
    """Attention of r queries over t keys that also returns, and takes back, the log-sum-exp.

    forward(q [r,N,D], k [t,K,D], v [t,K,D], causal, scale) -> out [r,N,D], lse [r,N]
    backward(dout, q, k, v, out, lse, causal, scale) -> dq [r,N,D], dk [t,K,D], dv [t,K,D]
    `causal` is used with r == t only.
    """

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def _heads_first(x: Tensor) -> Tensor:
    """[r, N, D] -> [1, N, r, D], a view."""
    return x.transpose(0, 1).unsqueeze(0)


def _rows_first(x: Tensor) -> Tensor:
    """[1, N, r, ...] -> [r, N, ...], a view."""
    return x.squeeze(0).transpose(0, 1)


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    out, lse = _FLASH(*map(_heads_first, (q, k, v)), 0.0, causal, scale=scale)
    return _rows_first(out), _rows_first(lse)


def _flash_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = _FLASH_BACKWARD(
        *map(_heads_first, (dout, q, k, v, out)), lse.t().unsqueeze(0), 0.0, causal, scale=scale
    )
    return _rows_first(dq), _rows_first(dk), _rows_first(dv)


FLASH_CPU = Kernel(_flash_forward, _flash_backward)
"""PyTorch's flash attention for the CPU: float32, float64 and bfloat16, grouped heads without copies."""


def _grouped(x: Tensor, n_kv: int) -> Tensor:
    """[r, N, D] -> [K, G*r, D]: the queries that share a key head, below each other."""
    rows, heads, width = x.shape
    return x.view(rows, n_kv, heads // n_kv, width).permute(1, 2, 0, 3).reshape(n_kv, -1, width)


def _ungrouped(x: Tensor, n_rows: int) -> Tensor:
    """The inverse of `_grouped`: [K, G*r, D] -> [r, N, D]."""
    return x.view(x.shape[0], -1, n_rows, x.shape[-1]).permute(2, 0, 1, 3).flatten(1, 2)


def _block_scores(q: Tensor, k: Tensor, first: int, causal: bool, scale: float) -> Tensor:
    """Scores [K, G*r, t] of queries first .. first+r-1, in float32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (_grouped(q, k.shape[1]) @ k.permute(1, 2, 0)).to(wide) * scale
    if causal:
        rows = torch.arange(first, first + len(q), device=q.device).repeat(q.shape[1] // k.shape[1])
        scores.masked_fill_(torch.arange(len(k), device=q.device) > rows[:, None], float("-inf"))
    return scores


def _query_blocks(q: Tensor, k: Tensor) -> list[slice]:
    """Slices of the queries whose scores stay within the block limit."""
    size = max(1, _SCORE_ELEMENTS // (q.shape[1] * len(k)))
    return [slice(i, min(i + size, len(q))) for i in range(0, len(q), size)]


def _portable_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    outs, lses = [], []
    for rows in _query_blocks(q, k):
        # a causal block needs no key after its last query
        keys = slice(0, rows.stop) if causal else slice(None)
        scores = _block_scores(q[rows], k[keys], rows.start, causal, scale)
        lse = scores.logsumexp(-1, keepdim=True)
        out = (scores - lse).exp_().to(v.dtype) @ v[keys].transpose(0, 1)
        outs.append(_ungrouped(out, rows.stop - rows.start))
        lses.append(_ungrouped(lse, rows.stop - rows.start)[..., 0])
    return torch.cat(outs), torch.cat(lses)


def _portable_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    n_kv, wide = k.shape[1], lse.dtype
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    delta = (dout.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    dqs = []
    for rows in _query_blocks(q, k):
        keys = slice(0, rows.stop) if causal else slice(None)
        scores = _block_scores(q[rows], k[keys], rows.start, causal, scale)
        p = (scores - _grouped(lse[rows][..., None], n_kv)).exp_()
        do_grouped, q_grouped = _grouped(dout[rows], n_kv), _grouped(q[rows], n_kv)
        dp = (do_grouped @ v[keys].permute(1, 2, 0)).to(wide)
        ds = (p * (dp - _grouped(delta[rows], n_kv)) * scale).to(q.dtype)
        dv[keys] += (p.to(q.dtype).transpose(1, 2) @ do_grouped).transpose(0, 1)
        dk[keys] += (ds.transpose(1, 2) @ q_grouped).transpose(0, 1)
        dqs.append(_ungrouped(ds @ k[keys].transpose(0, 1), rows.stop - rows.start))
    return torch.cat(dqs), dk.to(k.dtype), dv.to(v.dtype)


PORTABLE = Kernel(_portable_forward, _portable_backward)
"""The same in plain tensor operations, in blocks of queries: any device and dtype, t_run * t_document scores in all,
never more than one block of them at a time."""


def kernel_for(x: Tensor) -> Kernel:
    """The fast kernel of the tensor's device, or the portable one."""
    return FLASH_CPU if x.device.type == "cpu" else PORTABLE


def _parts(span: Span) -> list[tuple[slice, bool]]:
    """The step-0 keys of a run of chains: (keys, causal)."""
    own = [(slice(span.start, span.stop), True)]
    return [(slice(span.document, span.start), False), *own] if span.start > span.document else own


def _merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Join parts: outs [r, N, D] each, lses [r, N] each; the sum is taken in the dtype of the lses."""
    stacked = torch.stack(list(lses))
    lse = stacked.logsumexp(0)
    weights = (stacked - lse).exp_()
    merged = outs[0].to(lse.dtype) * weights[0][..., None]
    for out, weight in zip(outs[1:], weights[1:], strict=True):
        merged.addcmul_(out.to(lse.dtype), weight[..., None])
    return merged, lse


def _by_group(x: Tensor, n_kv: int) -> Tensor:
    """[R, N, D] -> [R, K, G, D] in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide).unflatten(1, (n_kv, -1))


class _ChainAttention(torch.autograd.Function):
    """See the module's head. Inputs after the constants: q, k0, v0, k1, v1, ..."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, spans: Sequence[Span], scale: float, *qkv: Tensor) -> Tensor:
        q, k0, v0, *later = qkv
        wide = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(q.shape, dtype=wide, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=wide, device=q.device)
        for span in spans:
            parts = [kernel.forward(q[span.rows], k0[keys], v0[keys], causal, scale) for keys, causal in _parts(span)]
            out[span.rows], lse[span.rows] = _merge([p[0] for p in parts], [p[1] for p in parts])
        if later:
            grouped = _by_group(q, k0.shape[1])
            scores = [(grouped * k[:, :, None]).sum(-1).flatten(1) * scale for k in later[0::2]]
            n_group = grouped.shape[2]
            values = [v[:, :, None].expand(-1, -1, n_group, -1).flatten(1, 2) for v in later[1::2]]
            out, lse = _merge([out, *values], [lse, *scores])
        out = out.to(q.dtype)
        ctx.save_for_backward(out, lse, *qkv)
        ctx.kernel, ctx.spans, ctx.scale = kernel, spans, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        out, lse, q, k0, v0, *later = ctx.saved_tensors
        dout = grads[0].to(q.dtype)
        dq = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
        dk0, dv0 = torch.zeros_like(k0, dtype=lse.dtype), torch.zeros_like(v0, dtype=lse.dtype)
        for span in ctx.spans:
            r = span.rows
            for keys, causal in _parts(span):
                part = (dout[r], q[r], k0[keys], v0[keys], out[r], lse[r], causal, ctx.scale)
                for total, piece in zip((dq[r], dk0[keys], dv0[keys]), ctx.kernel.backward(*part), strict=True):
                    total += piece
        dlater = _columns_backward(dq, dout, out, lse, q, later, ctx.scale)
        return None, None, None, dq.to(q.dtype), dk0.to(k0.dtype), dv0.to(v0.dtype), *dlater


def _columns_backward(
    dq: Tensor, dout: Tensor, out: Tensor, lse: Tensor, q: Tensor, later: Sequence[Tensor], scale: float
) -> list[Tensor]:
    """Gradients of k1, v1, k2, v2, ... [R, K, D]; adds the columns' share to dq [R, N, D]."""
    if not later:
        return []
    n_kv = later[0].shape[1]
    q_g, dout_g = _by_group(q, n_kv), _by_group(dout, n_kv)
    delta = (dout_g * _by_group(out, n_kv)).sum(-1)
    lse_g, dq_g = lse.unflatten(1, (n_kv, -1)), dq.unflatten(1, (n_kv, -1))
    grads: list[Tensor] = []
    for k, v in zip(later[0::2], later[1::2], strict=True):
        p = ((q_g * k[:, :, None]).sum(-1) * scale - lse_g).exp_()
        ds = p * ((dout_g * v[:, :, None]).sum(-1) - delta) * scale
        dq_g.addcmul_(ds[..., None], k[:, :, None].to(ds.dtype))
        grads.append((ds[..., None] * q_g).sum(2).to(k.dtype))
        grads.append((p[..., None] * dout_g).sum(2).to(v.dtype))
    return grads


def chain_attention(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    spans: Sequence[Span],
    scale: float,
    kernel: Kernel | None = None,
) -> Tensor:
    """Attention of step i: q [R, N, D] -> [R, N, D].

    keys[0], values[0] [T, K, D] are those of step 0 for all tokens; keys[m], values[m] [R, K, D] those of step m,
    m = 1..i, for the kept chains. `spans` say which chains the R rows are.
    """
    flat = [x for pair in zip(keys, values, strict=True) for x in pair]
    return _ChainAttention.apply(kernel or kernel_for(q), spans, scale, q, *flat)  # type: ignore[no-any-return]


def dense_chain_attention(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], spans: Sequence[Span], scale: float
) -> Tensor:
    """What `chain_attention` computes, written with one softmax over all columns: for tests, small T only."""
    n_group = q.shape[1] // keys[0].shape[1]
    keys, values = ([x.repeat_interleave(n_group, 1) for x in xs] for xs in (keys, values))
    outs = []
    for span in spans:
        for row, s in enumerate(range(span.start, span.stop), start=span.row):
            seen = slice(span.document, s + 1)
            k = torch.cat([keys[0][seen], *(later[row : row + 1] for later in keys[1:])])
            v = torch.cat([values[0][seen], *(later[row : row + 1] for later in values[1:])])
            p = (torch.einsum("nd,tnd->nt", q[row], k) * scale).softmax(-1)
            outs.append(torch.einsum("nt,tnd->nd", p, v))
    return torch.stack(outs)
