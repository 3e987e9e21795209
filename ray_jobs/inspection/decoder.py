"""Ids back to text with the target's own vocabulary, without transformers (which loads torch) and without its code.

A fast tokenizer's `tokenizer.json` is read by the library that made it. Kimi's is a list of byte strings
(`tiktoken.model`), which is all that decoding needs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ray_jobs.target.model_folder import PACKAGE, models_dir

Decode = Callable[[Sequence[int]], str]


class Decoder:
    """The vocabulary of one model, read when the first id is to be shown.

    `problem` says in one line why ids cannot be decoded, once that was tried; None while all is well.
    """

    def __init__(self, model: str, revision: str | None) -> None:
        self._model, self._revision = model, revision
        self._decode: Decode | None = None
        self._controls: frozenset[int] = frozenset()
        self._loaded = False
        self.problem: str | None = None

    def ready(self) -> bool:
        """Load the vocabulary if that has not been tried yet; True if ids can be decoded."""
        if not self._loaded:
            self._loaded = True
            try:
                self._load()
            except (OSError, ValueError, KeyError) as error:
                reason = " ".join(str(error).split())[:160]
                self.problem = f"the tokenizer of {self._model} cannot be loaded ({reason})"
        return self._decode is not None

    def text(self, ids: Sequence[int]) -> str:
        """Exactly the text of the ids, special tokens shown; only when `ready`."""
        assert self._decode is not None
        return self._decode(ids)

    def marked(self, ids: Iterable[int]) -> list[tuple[str, bool]]:
        """(text, whether it is one control id) for runs of ids; only when `ready`."""
        pieces: list[tuple[str, bool]] = []
        run: list[int] = []
        for token in ids:
            if token in self._controls:
                pieces += [(self.text(run), False)] if run else []
                pieces.append((self.text([token]), True))
                run = []
            else:
                run.append(token)
        return pieces + ([(self.text(run), False)] if run else [])

    def _load(self) -> None:
        path = self._file("tokenizer.json")
        if path is None:
            self._load_tiktoken()
            return
        from tokenizers import Tokenizer

        try:
            made = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path}: {error}") from None
        self._decode = lambda ids: made.decode(list(ids), skip_special_tokens=False)
        self._controls = frozenset(made.get_added_tokens_decoder())

    def _load_tiktoken(self) -> None:
        path, described = self._file("tiktoken.model"), self._file("tokenizer_config.json")
        if path is None or described is None:
            raise FileNotFoundError("neither its tokenizer.json nor its tiktoken.model is on this machine")
        config = json.loads(described.read_text(encoding="utf-8"))
        added = {int(i): str(token["content"]) for i, token in config.get("added_tokens_decoder", {}).items()}
        self._decode = _byte_decode(path, added)
        self._controls = frozenset(added)

    def _file(self, name: str) -> Path | None:
        """A file of the model on this machine, its hub cache included; looking asks no network."""
        packaged = self._model.startswith(PACKAGE)
        folder = models_dir() / self._model.removeprefix(PACKAGE) if packaged else Path(self._model).expanduser()
        if folder.is_dir():
            return folder / name if (folder / name).is_file() else None
        if packaged or self._model.startswith((".", "/", "~")) or self._model.count("/") != 1:
            return None
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self._model, name, revision=self._revision)
        return Path(cached) if isinstance(cached, str) else None


def _byte_decode(path: Path, added: dict[int, str]) -> Decode:
    """Decoding of a tiktoken file: a line a token, its bytes in base64 and its id."""
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    vocabulary = {int(rank): base64.b64decode(text) for text, rank in pairs}
    vocabulary |= {token: text.encode() for token, text in added.items()}

    def decode(ids: Sequence[int]) -> str:
        parts = [vocabulary.get(i, f"<|reserved_token_{i}|>".encode()) for i in ids]
        return b"".join(parts).decode(errors="replace")

    return decode
