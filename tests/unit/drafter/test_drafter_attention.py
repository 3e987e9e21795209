from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ray_jobs.drafter import attention
from ray_jobs.drafter.attention import FLASH_CPU, PORTABLE, Kernel, chain_attention, dense_chain_attention
from ray_jobs.drafter.batch import Span, chain_spans

OFFSETS = [0, 7, 8, 20]
CHAINS = [1, 2, 3, 6, 7, 8, 9, 13, 14, 15, 16]
KERNELS = {"flash": FLASH_CPU, "portable": PORTABLE}


def inputs(step: int, n_heads: int, n_kv: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k0, v0, k1, v1, ... as leaves."""
    g = torch.Generator().manual_seed(step)
    n_chains = len(CHAINS)
    sizes = [(n_chains, n_heads, width)] + 2 * [(OFFSETS[-1], n_kv, width)] + 2 * step * [(n_chains, n_kv, width)]
    return [torch.randn(size, generator=g).to(dtype).requires_grad_() for size in sizes]


def spans() -> list[Span]:
    chains = torch.zeros(OFFSETS[-1], dtype=torch.bool)
    chains[CHAINS] = True
    return chain_spans(chains, OFFSETS)


def run(function, leaves: list[Tensor], **kwargs) -> tuple[Tensor, list[Tensor]]:
    q, *kv = leaves
    out = function(q, kv[0::2], kv[1::2], spans(), 0.37, **kwargs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return out.detach(), list(torch.autograd.grad((out * weight).sum(), leaves))


def test_spans_are_cut_at_documents():
    assert spans() == [Span(0, 1, 4, 0), Span(0, 6, 7, 3), Span(7, 7, 8, 4), Span(8, 8, 10, 5), Span(8, 13, 17, 7)]


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(("n_heads", "n_kv", "width"), [(4, 2, 6), (3, 3, 8), (6, 1, 16)])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_output_and_gradients_equal_one_softmax_over_all_keys(
    kernel: Kernel, n_heads: int, n_kv: int, width: int, step: int
):
    leaves = inputs(step, n_heads, n_kv, width, torch.float64)
    out, grads = run(chain_attention, leaves, kernel=kernel)
    expected_out, expected_grads = run(dense_chain_attention, leaves)
    torch.testing.assert_close(out, expected_out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_lower_precision_stays_close(kernel: Kernel, dtype: torch.dtype, tolerance: float):
    leaves = inputs(3, 4, 2, 16, dtype)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out, grads = run(chain_attention, leaves, kernel=kernel)
    expected_out, expected_grads = run(dense_chain_attention, exact)
    assert out.dtype == dtype
    for got, expected in zip([out, *grads], [expected_out, *expected_grads], strict=True):
        error = (got.double() - expected).norm() / expected.norm()
        assert float(error) < tolerance


def test_the_portable_kernel_in_blocks_equals_itself_whole(monkeypatch: pytest.MonkeyPatch):
    leaves = inputs(1, 4, 2, 6, torch.float64)
    whole = run(chain_attention, leaves, kernel=PORTABLE)
    monkeypatch.setattr(attention, "_SCORE_ELEMENTS", 24)
    torch.testing.assert_close(run(chain_attention, leaves, kernel=PORTABLE), whole)


def test_large_scores_do_not_overflow():
    leaves = [(x.detach() * 100).requires_grad_() for x in inputs(2, 4, 2, 6, torch.float32)]
    out, grads = run(chain_attention, leaves)
    assert all(bool(torch.isfinite(x).all()) for x in (out, *grads))
