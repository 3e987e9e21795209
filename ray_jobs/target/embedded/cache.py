"""The key-value cache: one preallocated buffer a layer, running rows kept together at its front.

R rows (slots) allocated   b rows running, always 0..b-1   C capacity of a row in tokens   K key-value heads
D head width   T tokens of one forward   L longest running row
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

ROUND_TOKENS = 64
LOOK_TOKENS = 16
"""Steps look at a multiple of this many tokens: fewer shapes, and no odd ends in the vector loops."""
GROWTH = 1.6
SPAN_ROWS = 16
"""Rows that look at equally many tokens in a step."""


class SlotLayer(CacheLayerMixin):
    """The keys [R, K, C, D] and values of one decoder layer; keys and values may differ in width."""

    is_sliding = False

    def __init__(self, slots: SlotCache) -> None:
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for as many rows and tokens as the cache has reserved; the widths come from the states."""
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        shape = (self.slots.rows, like.shape[1], self.slots.capacity, like.shape[3])
        # zeros, not empty: a masked position still enters a product with 0, and 0 * NaN is NaN
        return torch.zeros(shape, dtype=like.dtype)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new states where `SlotCache` says; returns what the queries may look at, without a copy."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        slots = self.slots
        if slots.prefill_at is not None:
            stop, width = slots.prefill_at + key_states.shape[0], key_states.shape[2]
            self.keys[slots.prefill_at : stop, :, :width] = key_states
            self.values[slots.prefill_at : stop, :, :width] = value_states
            return key_states, value_states
        index = (slots.row_index, slice(None), slots.write_at)
        self.keys[index] = key_states[:, :, 0]
        self.values[index] = value_states[:, :, 0]
        rows, longest = len(slots.write_at), slots.longest
        return self.keys[:rows, :, :longest], self.values[:rows, :, :longest]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of row `source` over row `target`."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[target, :, :length] = buffer[source, :, :length]

    def resize(self, rows: int, length: int) -> None:
        """Move the running `rows` to buffers of the cache's new size; `length` tokens of each are worth keeping."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            if old is not None:
                new = self._buffer(old)
                new[:rows, :, :length] = old[:rows, :, :length]
                setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How wide a mask over this layer is, and where it starts."""
        return (query_length if self.slots.prefill_at is not None else self.slots.longest), 0

    def get_seq_length(self) -> int:
        """Tokens in the cache; rows differ, so positions are always passed explicitly."""
        return 0 if self.slots.prefill_at is not None else self.slots.longest - 1

    def get_max_length(self) -> int:
        """Capacity of a row."""
        return self.slots.capacity

    def get_max_cache_shape(self) -> int:
        """Capacity of a row, by the name that earlier 5.x releases of transformers ask for."""
        return self.slots.capacity


class SlotCache(Cache):
    """Rows of different lengths side by side, in the shape that transformers decoders expect of a cache.

    Before a forward, `begin_prefill` or `begin_decode` says which rows it is for.
    """

    def __init__(self, n_layers: int, *, max_rows: int, max_tokens: int) -> None:
        self.max_rows, self.max_tokens = max_rows, max_tokens
        self.rows = self.capacity = 0
        self.lengths: list[int] = []
        self.prefill_at: int | None = None
        self.row_index = self.write_at = torch.zeros(0, dtype=torch.long)
        self.longest = 0
        super().__init__(layers=[SlotLayer(self) for _ in range(n_layers)])

    def begin_prefill(self, lengths: list[int]) -> None:
        """Add rows of these lengths behind the running ones; the next forward brings their tokens, right-padded."""
        self.prefill_at = len(self.lengths)
        self._reserve(self.prefill_at + len(lengths), max(lengths))
        self.lengths.extend(lengths)

    def begin_decode(self) -> torch.Tensor:
        """Make room for one more token in each row; returns its position in each row, [b]."""
        self.prefill_at = None
        self._reserve(len(self.lengths), max(self.lengths) + 1)
        self.write_at = torch.tensor(self.lengths)
        self.row_index = torch.arange(len(self.lengths))
        self.lengths = [length + 1 for length in self.lengths]
        self.longest = _round(max(self.lengths), LOOK_TOKENS)
        return self.write_at

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Runs of neighbouring rows (start, stop) and how many tokens each has to look at."""
        for start in range(0, len(self.lengths), SPAN_ROWS):
            lengths = self.lengths[start : start + SPAN_ROWS]
            yield start, start + len(lengths), min(_round(max(lengths), LOOK_TOKENS), self.capacity)

    @torch.inference_mode()
    def remove(self, row: int) -> list[tuple[int, int]]:
        """End a row; returns the moves (from, to) that keep the running rows together, in their order.

        The longest row of each later span moves into the span in front of it, the very last row into the last hole:
        long rows stay beside long ones, and a span looks at few tokens that most of its rows do not have.
        """
        moves: list[tuple[int, int]] = []
        for start in range((row // SPAN_ROWS + 1) * SPAN_ROWS, len(self.lengths), SPAN_ROWS):
            span = range(start, min(start + SPAN_ROWS, len(self.lengths)))
            source = max(span, key=self.lengths.__getitem__)
            moves.append((source, row))
            row = source
        last = len(self.lengths) - 1
        if row < last:
            moves.append((last, row))
        for source, target in moves:
            for layer in self.layers:
                assert isinstance(layer, SlotLayer)
                layer.move(source, target, self.lengths[source])
            self.lengths[target] = self.lengths[source]
        self.lengths.pop()
        return moves

    def _reserve(self, rows: int, length: int) -> None:
        """Grow the buffers when they are too small; a little ahead as long as `max_tokens` allows it."""
        if rows <= self.rows and length <= self.capacity:
            return
        kept = max(self.lengths, default=0)
        self.rows, self.capacity = self._size(rows, length)
        for layer in self.layers:
            assert isinstance(layer, SlotLayer)
            layer.resize(len(self.lengths), kept)

    def _size(self, rows: int, length: int) -> tuple[int, int]:
        """Rows and capacity to allocate for at least `rows` of `length` tokens."""
        ahead_rows = min(self.max_rows, max(self.rows, 2 * rows))
        ahead = _round(int(max(self.capacity, length * GROWTH)))
        if ahead_rows * ahead <= self.max_tokens:
            return ahead_rows, ahead
        return rows, _round(length)


def _round(tokens: int, to: int = ROUND_TOKENS) -> int:
    return -(-tokens // to) * to
