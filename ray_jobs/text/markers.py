"""Reasoning and tool markers of the model families, as data, and their check against a tokenizer.

An entry's numbers serve tests and readers; a run always takes the tokenizer's own (`resolve`). What an entry is
trusted for are the texts, the roles and what the chat template does at the end of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ray_jobs.core.errors import ConfigError
from ray_jobs.text.prompt_tail import CLOSES, NEITHER, OPENS, read_tail

Ids = tuple[int, ...]
Render = Callable[[bool | None], Sequence[int]]
"""Prompt ids of some short conversation with the thinking switch on, off or (None) not passed."""

ROLES = (
    "think_open",
    "think_close",
    "turn_end",
    "header_start",
    "header_end",
    "section_begin",
    "section_end",
    "call_begin",
    "call_argument",
    "call_end",
)
"""The fields of `Markers` that hold ids, in the order in which they are checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """One family: which ids mean what, and how its template switches thinking.

    Every role is a tuple of ids: empty when the family has no such marker, or when only its text is known.
    """

    family: str
    syntax: str = "think_block"
    """State machine of `segments.split` that reads this family."""
    think_open: Ids = ()
    think_close: Ids = ()
    turn_end: Ids = ()
    header_start: Ids = ()
    """Control id with which an assistant header begins."""
    header_end: Ids = ()
    """Control id that ends the header; empty when the header has none."""
    section_begin: Ids = ()
    section_end: Ids = ()
    call_begin: Ids = ()
    call_argument: Ids = ()
    call_end: Ids = ()
    call_format: str | None = None
    """`id_arguments` (Kimi), `json` (Qwen) or None: a call's text is kept whole."""
    switch: str | None = None
    """Name of the template's thinking switch."""
    switch_values: tuple[object, object] = (True, False)
    """What the switch is given for on and off; None leaves it out."""
    tail_on: tuple[str, ...] = (NEITHER,)
    """What the rendered tail may do while thinking is on: `opens`, `closes`, `neither`."""
    tail_off: tuple[str, ...] = (NEITHER,)
    """The same while it is off; unused without a switch."""
    eos_is_turn_end: bool = False
    """Take the turn ends from the tokenizer's end-of-sequence ids."""
    texts: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Marker texts by role."""

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Marker texts whose ids are not known without the tokenizer."""
        return tuple(t for role, texts in self.texts.items() if len(getattr(self, role)) != len(texts) for t in texts)

    @property
    def all_texts(self) -> tuple[str, ...]:
        """Every marker text of the family."""
        return tuple(text for texts in self.texts.values() for text in texts)

    def template_kwargs(self, thinking: bool | None) -> dict[str, object]:
        """Arguments of the chat template that turn thinking on or off; none for None.

        Raises ConfigError where the family has no switch.
        """
        if thinking is None:
            return {}
        if self.switch is None:
            raise ConfigError(
                "target.thinking",
                thinking,
                f"the family target.markers={self.family} has no thinking switch",
                "Set target.thinking=null.",
            )
        value = self.switch_values[0 if thinking else 1]
        return {} if value is None else {self.switch: value}


def _entry(family: str, marks: Mapping[str, Sequence[tuple[str, int | None]]], **rest: Any) -> Markers:
    """An entry from (text, id or None) pairs by role; a role with an unknown id stays without ids."""
    ids: dict[str, Any] = {
        role: tuple(i for _, i in found) for role, found in marks.items() if all(i is not None for _, i in found)
    }
    texts = {role: tuple(text for text, _ in found) for role, found in marks.items()}
    return Markers(family=family, texts=texts, **ids, **rest)


def _kimi(family: str, *, with_ids: bool, **rest: Any) -> Markers:
    """Kimi K2's texts; the small test model has the same ones under numbers of its own."""
    table: dict[str, list[tuple[str, int]]] = {
        "think_open": [("<think>", 163606)],
        "think_close": [("</think>", 163607)],
        "turn_end": [("<|im_end|>", 163586), ("[EOS]", 163585)],
        "header_start": [("<|im_assistant|>", 163588)],
        "header_end": [("<|im_middle|>", 163601)],
        "section_begin": [("<|tool_calls_section_begin|>", 163595)],
        "section_end": [("<|tool_calls_section_end|>", 163596)],
        "call_begin": [("<|tool_call_begin|>", 163597)],
        "call_argument": [("<|tool_call_argument_begin|>", 163598)],
        "call_end": [("<|tool_call_end|>", 163599)],
    }
    marks = {role: [(text, i if with_ids else None) for text, i in found] for role, found in table.items()}
    return _entry(family, marks, call_format="id_arguments", **rest)


def _qwen(family: str, **rest: Any) -> Markers:
    """Qwen3: the header is the role-neutral `<|im_start|>`; the last one of a prompt is the assistant's."""
    marks = {
        "think_open": [("<think>", 151667)],
        "think_close": [("</think>", 151668)],
        "turn_end": [("<|im_end|>", 151645), ("<|endoftext|>", 151643)],
        "header_start": [("<|im_start|>", 151644)],
        "call_begin": [("<tool_call>", 151657)],
        "call_end": [("</tool_call>", 151658)],
    }
    return _entry(family, marks, call_format="json", **rest)


def _deepseek(family: str, **rest: Any) -> Markers:
    """DeepSeek: full-width bars and low blocks in every control text."""

    def name(words: str) -> str:
        return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"

    marks = {
        "think_open": [("<think>", 128798)],
        "think_close": [("</think>", 128799)],
        "turn_end": [(name("end of sentence"), 1)],
        "header_start": [(name("Assistant"), 128804)],
        "section_begin": [(name("tool calls begin"), 128806)],
        "section_end": [(name("tool calls end"), 128807)],
        "call_begin": [(name("tool call begin"), 128808)],
        "call_argument": [(name("tool sep"), 128814)],
        "call_end": [(name("tool call end"), 128809)],
    }
    return _entry(family, marks, **rest)


def _glm45() -> Markers:
    """GLM ends a turn by beginning the next role, so role ids are its turn ends."""
    marks = {
        "think_open": [("<think>", 151350)],
        "think_close": [("</think>", 151351)],
        "turn_end": [("<|endoftext|>", 151329), ("<|user|>", 151336), ("<|observation|>", 151338)],
        "header_start": [("<|assistant|>", 151337)],
        "call_begin": [("<tool_call>", 151352)],
        "call_end": [("</tool_call>", 151353)],
    }
    return _entry("glm45", marks, switch="enable_thinking", tail_off=(CLOSES,))


def _minimax_m2() -> Markers:
    marks = {
        "think_open": [("<think>", 200050)],
        "think_close": [("</think>", 200051)],
        "turn_end": [("[e~[", 200020)],
        "header_start": [("]~b]", 200019)],
        "call_begin": [("<minimax:tool_call>", 200052)],
        "call_end": [("</minimax:tool_call>", 200053)],
    }
    return _entry("minimax_m2", marks, tail_on=(OPENS,))


def _seed_oss() -> Markers:
    """Seed-OSS is switched by a budget: none for on, 0 for off."""
    marks = {
        "think_open": [("<seed:think>", None)],
        "think_close": [("</seed:think>", None)],
        "turn_end": [("<seed:eos>", None)],
        "header_start": [("<seed:bos>", None)],
        "call_begin": [("<seed:tool_call>", None)],
        "call_end": [("</seed:tool_call>", None)],
    }
    return _entry("seed_oss", marks, switch="thinking_budget", switch_values=(None, 0), tail_off=(CLOSES,))


def _families() -> Iterable[Markers]:
    switched: dict[str, Any] = {"switch": "thinking", "tail_on": (OPENS,), "tail_off": (CLOSES,)}
    yield _kimi("kimi_k25", with_ids=True, **switched)
    yield _kimi("kimi_k2_thinking", with_ids=True)
    yield _kimi("tiny", with_ids=False, **switched)
    yield _qwen("qwen3", switch="enable_thinking", tail_off=(CLOSES,))
    yield _qwen("qwen3_thinking", tail_on=(OPENS,))
    # Two templates of one family: the first release opens the block, the later one leaves it to the model.
    yield _deepseek("deepseek_r1", tail_on=(OPENS, NEITHER))
    yield _deepseek("deepseek_v31", call_format="id_arguments", **switched)
    yield _glm45()
    yield _minimax_m2()
    yield _seed_oss()
    yield Markers(family="none", eos_is_turn_end=True)


FAMILIES: dict[str, Markers] = {entry.family: entry for entry in _families()}
"""Family name (`target.markers`) to its entry."""


def find_family(family: str) -> Markers:
    """The entry of that name. Raises ConfigError for an unknown one."""
    if family not in FAMILIES:
        raise _error(family, "no such family of markers", f"Choose one of: {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[family]


def resolve(family: str, tokenizer: Any, render: Render, *, eos_ids: Iterable[int] = ()) -> Markers:
    """The family's entry with this tokenizer's ids, checked against tokenizer and chat template.

    `eos_ids`: further end-of-sequence ids of the model, for families whose turn ends come from there.
    Raises ConfigError, naming the marker, where a text is not one id or a rendered tail is not as the entry says.
    """
    entry = find_family(family)
    ids = {role: tuple(_one_id(entry, t, tokenizer) for t in entry.texts.get(role, ())) for role in ROLES}
    _check_distinct(entry, ids)
    if entry.eos_is_turn_end:
        ids["turn_end"] = _eos(entry, tokenizer, eos_ids)
    markers = replace(entry, **ids)
    if markers.switch is None:
        _check_tail(markers, render, None, markers.tail_on)
    else:
        _check_tail(markers, render, True, markers.tail_on)
        _check_tail(markers, render, False, markers.tail_off)
    return markers


def _one_id(entry: Markers, text: str, tokenizer: Any) -> int:
    """The id of a marker text that must be exactly one id, and that id's own text."""
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    shown = tokenizer.decode(ids, skip_special_tokens=False) if len(ids) == 1 else text
    if len(ids) != 1 or shown != text:
        raise _error(
            entry.family,
            f"the marker {text} must be exactly one id in the tokenizer, found {ids}",
            "Choose the family of this model (or target.markers=none).",
        )
    return int(ids[0])


def _check_distinct(entry: Markers, ids: dict[str, Ids]) -> None:
    """Two markers under one id (an unknown-token id, say) would be read as each other."""
    seen: dict[int, str] = {}
    for role in ROLES:
        for text, token in zip(entry.texts.get(role, ()), ids[role], strict=True):
            if token in seen:
                rule = f"the markers {seen[token]} and {text} have one id {token} in the tokenizer"
                raise _error(entry.family, rule, "Choose the family of this model (or target.markers=none).")
            seen[token] = text


def _eos(entry: Markers, tokenizer: Any, eos_ids: Iterable[int]) -> Ids:
    """End-of-sequence ids, the tokenizer's first."""
    own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    found = tuple(dict.fromkeys([*own, *(int(i) for i in eos_ids)]))
    if not found:
        raise _error(entry.family, "the tokenizer has no end-of-sequence id to end a turn", "Set its eos_token.")
    return found


def _check_tail(markers: Markers, render: Render, thinking: bool | None, allowed: tuple[str, ...]) -> None:
    """The rendered prompt must end as the entry says, else the split would begin in the wrong state."""
    state = read_tail(render(thinking), markers).state
    if state in allowed:
        return
    words = {
        OPENS: "leaves a block open",
        CLOSES: "closes a block",
        NEITHER: "neither opens nor closes a block",
    }
    switch = f" with {markers.template_kwargs(thinking) or 'its default'}" if thinking is not None else ""
    want = " or ".join(words[a] for a in allowed)
    marker = " ... ".join(markers.texts.get("think_open", ()) + markers.texts.get("think_close", ()))
    raise _error(
        markers.family,
        f"the rendered prompt{switch} {words[state]} ({marker}), but an entry of this family {want}",
        "Choose the family of this chat template.",
    )


def _error(family: str, rule: str, action: str) -> ConfigError:
    return ConfigError("target.markers", family, rule, action)
