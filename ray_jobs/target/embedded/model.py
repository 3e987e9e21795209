"""A causal language model that runs rows of different lengths together: prefill of new rows, one step of running ones.

b rows   T tokens of the longest new row   S selected positions   H hidden size   V vocabulary   A aux layers * H
heads N = K * G: K key-value heads, each read by a group of G query heads
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ray_jobs.core.errors import ConfigError
from ray_jobs.target.embedded import llama
from ray_jobs.target.embedded.cache import SlotCache
from ray_jobs.target.in_process import (
    DTYPES,
    cache_argument,
    decoder_layers,
    layer_outputs,
    load_model,
)

ATTENTION = "eagle_ray_slots"
NARROW_ROWS = 64
"""Up to this many rows a product is faster on a CPU with the weights as its left factor."""
SMALL_PARAMETERS = 50_000_000
"""Below this many a Llama computes in float32, also on bfloat16 weights (a call of bfloat16 costs more than its
arithmetic saves), and always in steps of the same shape."""


@dataclass(slots=True)
class Step:
    """What one forward gives for its selected positions."""

    logits: torch.Tensor
    """[S, V] in float32, one line a selected position."""
    hidden: torch.Tensor | None
    """[b, T, H] (after the final norm) or [b, T, A] (aux layers) if hidden states were asked for."""


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query [b, N, T, D] over key and value [b, K, L, D], without repeating keys for grouped heads.

    A step of one token treats the G queries of a group as G lines of one query: no key is copied or read twice. Two
    plain products are faster there than the blockwise kernel, whose blocks such a step leaves almost empty.
    """
    del module, is_causal
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("attention with capped scores or sinks")
    b, heads, width, depth = query.shape
    groups = heads // key.shape[1]
    scale = depth**-0.5 if scaling is None else scaling
    if width == 1:
        grouped = query.reshape(b, key.shape[1], groups, depth) * scale
        scores = torch.matmul(grouped, key.transpose(2, 3))
        if attention_mask is not None:
            scores += attention_mask
        weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
        return torch.matmul(weights, value).reshape(b, 1, heads, value.shape[3]), None
    out = nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=scale,
        is_causal=attention_mask is None and width > 1,
        enable_gqa=groups > 1,
    )
    return out.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)


class _Head(nn.Module):
    """The output matrix, applied to chosen positions only; remembers the states that it was given."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head
        self.chosen: torch.Tensor | None = None
        self.states: torch.Tensor | None = None

    @property
    def weight(self) -> torch.Tensor:
        return self.head.weight

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [1, S, V] of the positions `chosen` of states [b, T, H], counted through the flattened rows."""
        self.states = states
        flat = states.reshape(-1, states.shape[-1])
        if self.chosen is not None:
            flat = flat[self.chosen]
        if self.head.bias is None and self.weight.dtype is torch.float32 and 1 < flat.shape[0] <= NARROW_ROWS:
            # left as a transposed view: a copy would cost as much again as choosing the ids
            return torch.mm(self.weight, flat.t()).t()[None]
        return self.head(flat)[None]


class NarrowLinear(nn.Linear):
    """A linear layer that is faster for few rows: there float32 products of a CPU want the weight as left factor."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The same product as `nn.Linear`."""
        rows = input.numel() // input.shape[-1]
        if self.bias is not None or not 1 < rows <= NARROW_ROWS:
            return nn.functional.linear(input, self.weight, self.bias)
        product = torch.mm(self.weight, input.reshape(rows, -1).t())
        return product.t().contiguous().view(*input.shape[:-1], -1)


class SlotModel:
    """A loaded model with its slot cache; used by one thread only."""

    def __init__(
        self,
        model_path: str | Path,
        *,
        dtype: str,
        max_rows: int,
        max_tokens: int | None = None,
        deterministic: bool = False,
    ) -> None:
        self.dtype = DTYPES.get(dtype)
        self.model = _load(model_path, dtype)
        config = self.model.config.get_text_config()
        self.config = config
        _refuse_unknown_layers(config)
        self.window = _window(config)
        self.context_length: int = config.max_position_embeddings
        self.vocab_size: int = self.model.get_input_embeddings().weight.shape[0]
        self.n_layers: int = config.num_hidden_layers
        self.bytes_a_token = _bytes_a_token(config, self.model.dtype)
        self.max_tokens = max_tokens or _default_tokens(self.bytes_a_token, max_rows, self.context_length)
        self.cache = SlotCache(self.n_layers, max_rows=max_rows, max_tokens=self.max_tokens)
        self.aux_layers: tuple[int, ...] = ()
        """Layers whose outputs are the hidden states; empty: the final norm's output."""
        self._cache_argument = cache_argument(self.model)
        fused = llama.fits(self.model) and self.model.dtype is torch.float32
        if deterministic and not fused:
            rule = "needs a Llama that computes in float32"
            raise ConfigError("--enable-deterministic-inference", True, rule, "Leave it out, or use --dtype float32.")
        self.deterministic = fused and (deterministic or _is_small(self.model))
        """Whether greedy answers are the same whatever else runs: all steps have the shape of a full one."""
        self._llama = llama.FusedLlama(self.model, rows=max_rows if self.deterministic else 0) if fused else None
        self._head = _Head(self.model.get_output_embeddings())
        self.model.set_output_embeddings(self._head)
        decoder_layers(self.model)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], every: Sequence[bool], *, hidden: bool) -> Step:
        """Run new rows, which join the cache behind the running ones.

        Logits are of each row's last token, or of all its tokens where `every` says so, rows in order.
        """
        if self._llama is not None:
            return self._prefill_llama(prompts, every, hidden)
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths)
        self.cache.begin_prefill(lengths)
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        chosen: list[int] = []
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
            start = row * width
            chosen.extend(range(start if every[row] else start + len(prompt) - 1, start + len(prompt)))
        positions = torch.arange(width).expand(len(prompts), width)
        return self._forward(ids, positions, self._prefill_mask(width), torch.tensor(chosen), hidden)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], *, hidden: bool) -> Step:
        """Feed one token to each running row; logits [b, V] are of what follows it."""
        positions = self.cache.begin_decode()
        if self._llama is not None:
            states, aux = self._llama.decode(tokens, positions, self.cache, self.aux_layers if hidden else ())
            found = aux if self.aux_layers else states[: len(tokens)]
            return Step(self._llama.logits(states)[: len(tokens)], self._rounded(found)[:, None] if hidden else None)
        ids = torch.tensor(tokens)[:, None]
        return self._forward(ids, positions[:, None], self._decode_mask(positions), None, hidden)

    def _prefill_llama(self, prompts: Sequence[Sequence[int]], every: Sequence[bool], hidden: bool) -> Step:
        assert self._llama is not None
        lines: list[torch.Tensor] = []
        found: list[torch.Tensor] = []
        for prompt, whole in zip(prompts, every, strict=True):
            states, aux = self._llama.prefill(prompt, self.cache, self.aux_layers if hidden else ())
            lines.append(self._llama.logits(states if whole else states[-1:]))
            found.append(aux if self.aux_layers else states)
        padded = nn.utils.rnn.pad_sequence(found, batch_first=True) if hidden else None
        return Step(torch.cat(lines), None if padded is None else self._rounded(padded))

    def _rounded(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states as a model of this dtype has them."""
        return states.to(self.dtype).float()

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: Any, chosen: Any, hidden: bool) -> Step:
        self._head.chosen = chosen
        arguments = {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask,
            self._cache_argument: self.cache,
            "use_cache": True,
        }
        if hidden and self.aux_layers:
            with layer_outputs(self.model, self.aux_layers) as kept:
                logits = self.model(**arguments).logits
            states = torch.cat([output for output in kept if output is not None], dim=-1)
        else:
            logits = self.model(**arguments).logits
            states = self._head.states
        assert states is not None
        return Step(logits[0].float(), self._rounded(states) if hidden else None)

    def _prefill_mask(self, width: int) -> Any:
        """Causal, for all new rows the same: their padding is on the right, where no real token looks."""
        if self.model.config._attn_implementation == ATTENTION and (self.window is None or width <= self.window):
            return None
        places = torch.arange(width)
        distance = places[:, None] - places[None, :]
        return self._masks(distance)

    def _decode_mask(self, positions: torch.Tensor) -> Any:
        """Each row sees its own tokens and not the leftovers behind them."""
        return self._masks(positions[:, None, None] - torch.arange(self.cache.longest)[None, None, :])

    def _masks(self, distance: torch.Tensor) -> Any:
        """Additive masks [1 or b, 1, T, L] from how far back a key lies; one for each kind of layer if kinds differ."""
        full = self._additive(distance >= 0)
        if self.window is None:
            return full
        sliding = self._additive((distance >= 0) & (distance < self.window))
        kinds = set(getattr(self.config, "layer_types", None) or ())
        if len(kinds) > 1:
            return {"full_attention": full, "sliding_attention": sliding}
        return sliding

    def _additive(self, visible: torch.Tensor) -> torch.Tensor:
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)
        return mask[None, None] if mask.dim() == 2 else mask[:, None]


def _load(model_path: str | Path, dtype: str) -> Any:
    """The model with our attention where that computes the same, else with its own."""
    model = load_model(model_path, dtype=dtype)
    if llama.fits(model) and _is_small(model) and model.dtype is not torch.float32:
        model = model.float()
    pluggable = getattr(model, "_supports_attention_backend", False) and getattr(model, "_supports_sdpa", False)
    # ours knows no cap on the scores
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    model.set_attn_implementation(ATTENTION if pluggable and not capped else "eager")
    if model.dtype is torch.float32:
        for module in model.modules():
            if type(module) is nn.Linear:
                # the class only: names, weights and hooks stay as the model has them
                module.__class__ = NarrowLinear
    return model


def _is_small(model: Any) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) < SMALL_PARAMETERS


def _refuse_unknown_layers(config: Any) -> None:
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigError(
            "--model-path",
            config.model_type,
            f"the embedded server knows no layers of kind {', '.join(sorted(unknown))}",
            "Use a decoder of attention layers.",
        )


def _window(config: Any) -> int | None:
    """How many tokens a sliding layer sees; None where no layer slides."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)


def _bytes_a_token(config: Any, dtype: torch.dtype) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


def _default_tokens(bytes_a_token: int, max_rows: int, context_length: int) -> int:
    """Room for full rows, within a quarter of this machine's memory; one full row always fits."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(context_length, min(max_rows * context_length, memory // 4 // bytes_a_token))
