"""Choosing the next id of every running row in one go.

A draw depends on the row's seed, its position and its logits, never on which rows run beside it.

    b rows   V vocabulary
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

GREEDY_BELOW = 1e-6
TOP_FIRST = 1024
"""Of a row's ids, the likeliest that are sorted first; only a row whose top-p needs more is sorted whole."""


@dataclass(slots=True)
class SamplingParams:
    """`sampling_params` of one request, with the server's defaults; the names are the protocol's."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    stop_regex: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    logit_bias: dict[str, float] = field(default_factory=dict)
    sampling_seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest id is taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def edits_logits(self) -> bool:
        """Whether single logits are changed before choosing."""
        penalties = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        return bool(penalties or self.logit_bias or self.min_new_tokens)


@dataclass(slots=True)
class Row:
    """What choosing needs to know of one row."""

    params: SamplingParams
    seed: int
    output_ids: list[int]
    stop_ids: frozenset[int]


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The next id of each row, [b], from logits [b, V] in float32."""
    drawn = [index for index, row in enumerate(rows) if not row.params.greedy]
    if len(drawn) == len(rows):
        return _draw(logits, rows)
    # numpy's is vectorised, torch's takes 20 times as long
    chosen = torch.from_numpy(logits.numpy().argmax(-1))
    if drawn:
        chosen[drawn] = _draw(logits[drawn], [rows[index] for index in drawn])
    return chosen


def edit(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Logits with bias, penalties and the ban on early stops applied; only the ids concerned are touched."""
    if not any(row.params.edits_logits for row in rows):
        return logits
    edited = logits.clone()
    for line, row in zip(edited, rows, strict=True):
        if row.params.edits_logits:
            _edit_line(line, row)
    return edited


def scaled(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Log-probabilities [b, V] that the server reports: after the temperature, before top-k and top-p."""
    temperatures = [1.0 if row.params.greedy else row.params.temperature for row in rows]
    return (logits / torch.tensor(temperatures)[:, None]).log_softmax(-1)


def _edit_line(line: torch.Tensor, row: Row) -> None:
    params = row.params
    if params.logit_bias:
        ids = torch.tensor([int(key) for key in params.logit_bias])
        line[ids] += torch.tensor(list(params.logit_bias.values()), dtype=line.dtype)
    if row.output_ids:
        counts = Counter(row.output_ids)
        ids = torch.tensor(list(counts))
        amounts = torch.tensor(list(counts.values()), dtype=line.dtype)
        values = line[ids] - params.frequency_penalty * amounts - params.presence_penalty
        repetition = params.repetition_penalty
        line[ids] = torch.where(values > 0, values / repetition, values * repetition)
    if len(row.output_ids) < params.min_new_tokens and row.stop_ids:
        # a stop id of the request may lie outside the vocabulary: it never comes, and is no index
        line[torch.tensor([one for one in row.stop_ids if 0 <= one < len(line)], dtype=torch.long)] = float("-inf")


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Sample from the filtered distributions by one uniform number a row."""
    probabilities = (logits / _column(rows, "temperature")).softmax(-1)
    uniform = torch.tensor([_uniform(row.seed, len(row.output_ids)) for row in rows], dtype=torch.float64)
    if all(_unfiltered(row.params) for row in rows):
        return _invert(probabilities, uniform)
    width = min(TOP_FIRST, logits.shape[1])
    chosen, settled = _draw_sorted(probabilities.topk(width, dim=-1), uniform, rows, logits.shape[1])
    rest = (~settled).nonzero()[:, 0]
    if len(rest):
        whole = probabilities[rest].sort(dim=-1, descending=True, stable=True)
        chosen[rest] = _draw_sorted(whole, uniform[rest], [rows[i] for i in rest.tolist()], logits.shape[1])[0]
    return chosen


def _unfiltered(params: SamplingParams) -> bool:
    return params.top_p >= 1.0 and params.top_k < 0 and params.min_p <= 0.0


def _draw_sorted(
    ranked: Any, uniform: torch.Tensor, rows: Sequence[Row], vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from probabilities sorted downwards; with it, whether the part given was enough to do so exactly."""
    values, ids = ranked
    width = values.shape[1]
    mass = values.double().cumsum(-1)
    top_p = _column(rows, "top_p").double()
    top_k = torch.tensor([row.params.top_k if row.params.top_k > 0 else vocab for row in rows])[:, None]
    floor = _column(rows, "min_p") * values[:, :1]
    # an id stays while the mass in front of it is below top_p: the one that crosses the line is still in
    keep = (mass - values <= top_p) & (torch.arange(width) < top_k) & (values >= floor)
    keep[:, 0] = True
    # the last line of the part given is left out, or the part is the whole
    settled = ~keep[:, -1] | torch.tensor(width == vocab)
    return ids.gather(1, _invert(values * keep, uniform)[:, None])[:, 0], settled


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Index at which the running sum of weights [b, W] passes the share `uniform` [b] of its total."""
    # in float64: in float32 the sum over a large vocabulary loses the unlikely ids
    sums = weights.double().cumsum(-1)
    found = torch.searchsorted(sums, (uniform * sums[:, -1])[:, None], right=True)[:, 0]
    return found.clamp_(max=weights.shape[1] - 1)


def _column(rows: Sequence[Row], name: str) -> torch.Tensor:
    return torch.tensor([getattr(row.params, name) for row in rows], dtype=torch.float32)[:, None]


_MASK = (1 << 64) - 1


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on seed and position only (the finaliser of splitmix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)
