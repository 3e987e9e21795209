"""Rotary positions as the serving engines compute them for a Llama drafter.

Shape letters: P positions, D head size, N heads, R rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ray_jobs.core.errors import ConfigError

# The keys that both SGLang and transformers act on. Any other key would be ignored by one of the two, and the
# drafter would be served with other positions than it was trained with.
_KEYS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {"yarn": ("beta_fast", "beta_slow")}


def check_rope_scaling(scaling: dict[str, Any] | None) -> dict[str, Any] | None:
    """The scaling with its type under `rope_type`, or None for plain positions.

    Raises ConfigError for a type or a key that is not supported, and for a missing key.
    """
    if scaling is None:
        return None
    made = {k: v for k, v in scaling.items() if k not in ("type", "rope_type", "rope_theta")}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _KEYS:
        raise ConfigError(
            "drafter.rope_scaling.rope_type", kind, f"supported: {', '.join(_KEYS)}", "Use one of them, or null."
        )
    missing = [k for k in _KEYS[kind] if k not in made]
    unknown = [k for k in made if k not in _KEYS[kind] + _OPTIONAL.get(kind, ())]
    if missing or unknown:
        rule = f"type {kind} misses {missing}" if missing else f"type {kind} does not know {unknown}"
        raise ConfigError("drafter.rope_scaling", scaling, rule, f"Give exactly {', '.join(_KEYS[kind])}.")
    return {"rope_type": kind, **made}


def _llama3(inv_freq: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Long waves divided by the factor, short ones kept, a linear blend between (Llama 3.1)."""
    turns = scaling["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / scaling["factor"]


def _yarn(inv_freq: Tensor, scaling: dict[str, Any], head_dim: int, theta: float) -> Tensor:
    """As llama3, but the blend is linear in the dimension's index (arXiv 2309.00071, "NTK by parts")."""

    def dimension(n_turns: float) -> float:
        wave = scaling["original_max_position_embeddings"] / (n_turns * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.get("beta_fast", 32.0))), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow", 1.0))), head_dim - 1)
    index = torch.arange(len(inv_freq), dtype=inv_freq.dtype)
    keep = 1 - ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / scaling["factor"]


def rope_frequencies(head_dim: int, theta: float, scaling: dict[str, Any] | None) -> tuple[Tensor, float]:
    """Inverse frequencies float64 [D/2], and the factor on cos and sin (1 but for yarn)."""
    inv_freq = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    scaling = check_rope_scaling(scaling)
    if scaling is None:
        return inv_freq, 1.0
    if scaling["rope_type"] == "linear":
        return inv_freq / scaling["factor"], 1.0
    if scaling["rope_type"] == "llama3":
        return _llama3(inv_freq, scaling), 1.0
    factor = scaling["factor"]
    return _yarn(inv_freq, scaling, head_dim, theta), 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


class RotaryTable:
    """cos and sin [P, 1, D/2] for positions 0 .. P-1; indexed by position at every step."""

    def __init__(self, frequencies: tuple[Tensor, float], n_positions: int, like: Tensor) -> None:
        inv_freq, factor = frequencies
        # float64 angles: at position 100,000 a float32 product is off by up to 4e-3 radians.
        angle = torch.arange(n_positions, dtype=torch.float64)[:, None, None] * inv_freq
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.cos = (angle.cos() * factor).to(like.device, dtype)
        self.sin = (angle.sin() * factor).to(like.device, dtype)

    def serves(self, n_positions: int, like: Tensor) -> bool:
        """Long enough, and of the device and dtype that a table for `like` would have."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return len(self.cos) >= n_positions and self.cos.device == like.device and self.cos.dtype == dtype

    def rotate(self, x_RND: Tensor, position_R: Tensor) -> Tensor:
        """x [R, N, D] turned to its positions; halves paired as in Llama, computed in float32 at least."""
        cos, sin = self.cos[position_R], self.sin[position_R]
        low, high = x_RND.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x_RND.dtype)
