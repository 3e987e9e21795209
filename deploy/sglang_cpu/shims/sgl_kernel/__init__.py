"""Plain PyTorch in place of SGLang's compiled CPU kernels, whose wheel is not on package registries.

Enough for Llama-shaped models with and without EAGLE-3 speculation in one chain (topk 1), greedy verification. Right,
not fast: for trying and testing. What is not here raises when it is called, and says its name.

The names, the order of the arguments and what is written where are those that SGLang 0.5.23 calls.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.chain import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]

# the attention backend takes these two from the operators' namespace, not from this module
_operators: Any = torch.ops.sgl_kernel
_operators.extend_attention_cpu = extend_attention_cpu
_operators.decode_attention_cpu = decode_attention_cpu


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_arguments: Any, **_named: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for the CPU (deploy/sglang_cpu)")

    absent.__name__ = name
    return absent
