"""The records that cross a seam between two layers; plain data, importable in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to ask for.

    `sampling` is what the server gets as `sampling_params`, complete: max_new_tokens and stop_token_ids included.
    """

    row_id: str
    input_ids: list[int]
    sampling: dict[str, Any]
    want_features: bool = False


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a server with a drafter says of one answer: verify steps, and the ids drafted and accepted in them."""

    verify_steps: int
    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One accepted answer; `output_ids` are exactly the server's, the stop id included."""

    output_ids: list[int]
    finish_reason: str
    matched_stop: int | str | None
    prompt_tokens: int
    cached_tokens: int
    weight_version: str
    request_id: str
    features: Any = field(default=None, compare=False)
    drafts: Drafts | None = None
    """null from a server without a drafter."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself before the first row; null where it does not say."""

    version: str
    model_path: str
    context_length: int | None
    max_running_requests: int | None
    weight_version: str
