"""Between ids and text: end-of-sequence ids, stop strings, the text of an answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ray_jobs.target.embedded.sampling import SamplingParams

_HALF = "\N{REPLACEMENT CHARACTER}"
REGEX_TOKENS = 64
"""How many of the latest ids a stop expression is looked for in."""


class Vocabulary:
    """A tokenizer and the ids that end an answer."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self.tokenizer, self.eos_ids = tokenizer, eos_ids

    @classmethod
    def load(cls, model_path: str | Path, model: Any) -> Vocabulary:
        """The tokenizer of a model folder; the ids end where config, generation config or tokenizer say so."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model_path))
        found: set[int] = set()
        for given in (
            model.config.get_text_config().eos_token_id,
            model.generation_config.eos_token_id if model.generation_config is not None else None,
            tokenizer.eos_token_id,
        ):
            found.update(given if isinstance(given, (list, tuple)) else () if given is None else (given,))
        return cls(tokenizer, frozenset(found))

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt given as text."""
        return self.tokenizer(text)["input_ids"]

    def token_text(self, token: int) -> str:
        """Text of one id alone."""
        return self.tokenizer.decode([token])

    def stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """Ids that end an answer; `ignore_eos` lifts all of them, also those of the request."""
        return frozenset() if params.ignore_eos else self.eos_ids.union(params.stop_token_ids)

    def stop_text(self, output_ids: list[int], params: SamplingParams) -> str | None:
        """The stop string, or the source of the stop expression, that the latest ids complete."""
        if params.stop:
            # a token is one character at least, save pieces of one, for which there is one token more
            tail = self.tokenizer.decode(output_ids[-max(map(len, params.stop)) - 1 :])
            for stop in params.stop:
                if stop in tail:
                    return stop
        if params.stop_regex:
            tail = self.tokenizer.decode(output_ids[-REGEX_TOKENS:])
            for source in params.stop_regex:
                if re.search(source, tail):
                    return source
        return None

    def may_stop(self, output_ids: list[int], params: SamplingParams) -> bool:
        """Whether the latest ids may be the beginning of a stop string."""
        if not params.stop:
            return False
        tail = self.tokenizer.decode(output_ids[-max(map(len, params.stop)) :])
        return any(tail.endswith(stop[:length]) for stop in params.stop for length in range(1, len(stop)))

    def text(self, output_ids: list[int], finish_reason: dict[str, Any], params: SamplingParams) -> str:
        """The text of an answer: without the id that stopped it, and cut before the string that did."""
        matched = finish_reason.get("matched") if not params.no_stop_trim else None
        kept = output_ids[:-1] if isinstance(matched, int) else output_ids
        text = self.shown(kept, params)
        if isinstance(matched, str) and matched in params.stop and matched in text:
            return text[: text.index(matched)]
        return text

    def shown(self, ids: list[int], params: SamplingParams) -> str:
        """The text of ids, special ones as the request wants them."""
        return self.tokenizer.decode(
            ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )


class GrowingText:
    """The text of an answer while it grows, in time that does not grow with it; half a character is held back."""

    def __init__(self, vocabulary: Vocabulary, params: SamplingParams) -> None:
        self._vocabulary, self._params = vocabulary, params
        self._text = ""
        self._read = self._context = 0

    def of(self, ids: list[int]) -> str:
        """The text of these ids, which begin with those of the call before."""
        # decoded behind the ids before it: the first of a text may be written differently
        before = self._vocabulary.shown(ids[self._context : self._read], self._params)
        new = self._vocabulary.shown(ids[self._context :], self._params)[len(before) :]
        if not new or new.endswith(_HALF):
            return self._text + new.rstrip(_HALF)
        self._text += new
        self._context, self._read = self._read, len(ids)
        return self._text
