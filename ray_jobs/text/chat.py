"""Messages to prompt ids through the tokenizer's own chat template, and ids back to text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import ConfigError, EagleRayError
from ray_jobs.text.history import split_thoughts
from ray_jobs.text.markers import find_family, resolve
from ray_jobs.text.quoting import Quoter, control_texts, restore

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None

_PROBE = [{"role": "user", "content": "Hello"}]


class PromptError(EagleRayError):
    """This conversation cannot be rendered: a failure row with this message, not the end of the run."""


class Chat:
    """A tokenizer with its chat template, the family's markers and the thinking switch, checked against each other.

    `markers` holds the tokenizer's own ids; `eos_ids` the end-of-sequence ids of tokenizer and generation config;
    `vocab_size` counts added tokens too. `template_hash` covers the template and the switch, `tokenizer_hash` the
    vocabulary, the merges and the added tokens.
    """

    def __init__(
        self, tokenizer: Any, markers_family: str, *, thinking: bool | None = None, eos_ids: Iterable[int] = ()
    ) -> None:
        if not tokenizer.chat_template:
            name = getattr(tokenizer, "name_or_path", "")
            raise ConfigError("target.model", name, "its tokenizer has no chat template", "Choose a chat model.")
        entry = find_family(markers_family)
        own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.tokenizer = tokenizer
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(int(i) for i in (*own, *eos_ids)))
        self._openers = ("<think>", *entry.texts.get("think_open", ()))
        self._closers = ("</think>", *entry.texts.get("think_close", ()))
        self._switch = entry.template_kwargs(thinking)
        controls = control_texts(tokenizer, entry.all_texts)
        self._quoter = Quoter(controls)
        self._control_ids = frozenset(i for i, t in tokenizer.added_tokens_decoder.items() if str(t) in controls)
        self.vocab_size = len(tokenizer)
        self.tokenizer_hash = _tokenizer_hash(tokenizer)
        self.template_hash = _hash({"template": tokenizer.chat_template, "switch": self._switch})
        self.markers = resolve(
            markers_family,
            tokenizer,
            lambda on: self._template_ids(_PROBE, None, entry.template_kwargs(on)),
            eos_ids=self.eos_ids,
        )

    @classmethod
    def load(
        cls,
        tokenizer_path: str | Path,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        thinking: bool | None = None,
        markers_family: str = "none",
    ) -> Chat:
        """Read a tokenizer from a folder or the hub.

        Raises ConfigError where it cannot be read, has no template, or does not fit the family or the switch.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(tokenizer_path), revision=revision, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError) as error:
            line = " ".join(str(error).split())
            action = "Name a folder or hub id with a tokenizer (target.trust_remote_code=true if it has own code)."
            raise ConfigError("target.model", tokenizer_path, f"no tokenizer can be read ({line})", action) from error
        eos_ids = _generation_eos(str(tokenizer_path), revision)
        return cls(tokenizer, markers_family, thinking=thinking, eos_ids=eos_ids)

    def history(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as the template gets them: earlier thoughts in `reasoning_content`, answers in `content`."""
        return [split_thoughts(message, self._openers, self._closers) for message in messages]

    def render_ids(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Prompt ids, generation prompt included; control ids come from the template alone.

        Raises PromptError where the template refuses the messages.
        """
        history, names, hidden_tools = self._hide(messages, tools)
        if not names:
            return self._template_ids(history, hidden_tools, self._switch)
        return self._encode_quoted(self._template_text(history, hidden_tools), names)

    def render_text(self, messages: Sequence[Message], tools: Tools = None) -> str:
        """The text of the same prompt. Raises PromptError as `render_ids` does."""
        history, names, hidden_tools = self._hide(messages, tools)
        return restore(self._template_text(history, hidden_tools), names).text

    def decode(self, ids: Iterable[int]) -> str:
        """Exactly the text of the ids: special tokens shown, white space untouched."""
        plain = [int(i) for i in ids]
        return self.tokenizer.decode(plain, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _hide(self, messages: Sequence[Message], tools: Tools) -> tuple[list[Any], dict[str, str], list[Any] | None]:
        """History and tools with quoted control texts hidden; no tools and an empty list are the same."""
        (history, shown), names = self._quoter.hide([self.history(messages), [dict(t) for t in tools or ()]])
        return history, names, shown or None

    def _template_ids(self, messages: list[Any], tools: list[Any] | None, switch: dict[str, object]) -> list[int]:
        """Ids as the tokenizer renders them; transformers 5 wraps them in a mapping, version 4 did not."""
        made = self._apply(messages, tools, switch, tokenize=True)
        ids = made["input_ids"] if isinstance(made, Mapping) else made
        if ids and isinstance(ids[0], list):
            ids = ids[0]
        return [int(i) for i in ids]

    def _template_text(self, messages: list[Any], tools: list[Any] | None) -> str:
        return self._apply(messages, tools, self._switch, tokenize=False)

    def _apply(self, messages: list[Any], tools: list[Any] | None, switch: dict[str, object], *, tokenize: bool) -> Any:
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=tokenize, add_generation_prompt=True, **switch
            )
        except Exception as error:  # A template is a program from outside: whatever it raises is this row's fault.
            raise PromptError(f"chat template: {type(error).__name__}: {' '.join(str(error).split())}") from error

    def _encode(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)] if text else []

    def _encode_quoted(self, hidden: str, names: dict[str, str]) -> list[int]:
        """Ids of the text with its quoted markers back in, proved to hold the template's control ids and no other."""
        ids = [token for piece in restore(hidden, names).pieces for token in self._encode(piece)]
        same_text = restore(self.decode(self._encode(hidden)), names).text == self.decode(ids)
        bare = self._encode(hidden.translate({ord(char): " " for char in names}))
        if not same_text or self._controls(ids) != self._controls(bare):
            raise PromptError("the messages quote a marker that this tokenizer cannot encode as plain text")
        return ids

    def _controls(self, ids: list[int]) -> list[int]:
        """The control ids among `ids`, in order."""
        return [i for i in ids if i in self._control_ids]


def _generation_eos(path: str, revision: str | None) -> list[int]:
    """End-of-sequence ids of the model's generation config; none where it has no such file."""
    from transformers import GenerationConfig

    try:
        eos = GenerationConfig.from_pretrained(path, revision=revision or "main").eos_token_id
    except OSError:
        return []
    return [] if eos is None else [int(i) for i in (eos if isinstance(eos, list) else [eos])]


def _tokenizer_hash(tokenizer: Any) -> str:
    """Hash of all that decides which ids a text becomes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return hashlib.sha256(backend.to_str().encode()).hexdigest()
    added = {str(i): str(token) for i, token in tokenizer.added_tokens_decoder.items()}
    return _hash({"vocab": tokenizer.get_vocab(), "added": added})


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
