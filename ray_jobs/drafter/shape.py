"""The sizes of a drafter: what its tensors are called, and how large they are.

Shape letters: H target hidden size, D draft hidden size, V target vocabulary, W draft vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ray_jobs.core.errors import ConfigError
from ray_jobs.drafter.rope import check_rope_scaling


@dataclass
class DrafterShape:
    """The sizes of a drafter, and what the serving configuration needs beside them.

    `aux_layers` are 0-based indices of target layers whose outputs are read, low to high.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    aux_layers: tuple[int, ...]

    def __post_init__(self) -> None:
        self.aux_layers = tuple(self.aux_layers)
        self.rope_scaling = check_rope_scaling(self.rope_scaling)
        self._require(
            self.hidden_size == self.target_hidden_size,
            "hidden_size",
            f"must equal the target's {self.target_hidden_size}, because the embedding is shared",
        )
        self._require(
            self.n_heads % self.n_kv_heads == 0, "n_heads", f"must be a multiple of n_kv_heads={self.n_kv_heads}"
        )
        self._require(self.head_dim % 2 == 0, "head_dim", "must be even for rotary positions")
        self._require(
            0 < self.draft_vocab_size <= self.vocab_size, "draft_vocab_size", f"must lie in 1..{self.vocab_size}"
        )
        self._require(
            len(self.aux_layers) > 0 and list(self.aux_layers) == sorted(set(self.aux_layers)),
            "aux_layers",
            "must be layer indices in rising order",
        )

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise ConfigError(f"drafter.{name}", getattr(self, name), rule, f"Change drafter.{name}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "aux_layers": list(self.aux_layers)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DrafterShape:
        """The inverse of `to_dict`; an unknown or missing key raises TypeError."""
        return cls(**data)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every trained tensor, under the names that SGLang loads."""
        d, inner = self.hidden_size, self.intermediate_size
        q, kv = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return {
            "fc.weight": (d, len(self.aux_layers) * self.target_hidden_size),
            "midlayer.input_layernorm.weight": (d,),
            "midlayer.hidden_norm.weight": (d,),
            "midlayer.post_attention_layernorm.weight": (d,),
            "midlayer.self_attn.q_proj.weight": (q, 2 * d),
            "midlayer.self_attn.k_proj.weight": (kv, 2 * d),
            "midlayer.self_attn.v_proj.weight": (kv, 2 * d),
            "midlayer.self_attn.o_proj.weight": (d, q),
            "midlayer.mlp.gate_proj.weight": (inner, d),
            "midlayer.mlp.up_proj.weight": (inner, d),
            "midlayer.mlp.down_proj.weight": (d, inner),
            "norm.weight": (d,),
            "lm_head.weight": (self.draft_vocab_size, d),
        }

    @property
    def n_parameters(self) -> int:
        """Trained parameters."""
        return sum(math.prod(dims) for dims in self.parameter_shapes().values())
