"""Failures on order: what a server may do to a client, by configuration, the same in every run."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass
from typing import Any

from ray_jobs.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong with calls of /generate, as shares of them that exclude one another and add up to 1 at most.

    Which call gets which fault is decided by `seed` and the call's number, so that a repeated call may pass.
    """

    seed: int = 0
    latency_s: float = 0.0
    """Seconds that every call waits before it is looked at."""
    stall_share: float = 0.0
    """Accepted, then not answered for `stall_s`."""
    stall_s: float = 3600.0
    reset_share: float = 0.0
    """The connection is closed without an answer."""
    error_500_share: float = 0.0
    error_503_share: float = 0.0
    error_429_share: float = 0.0
    abort_share: float = 0.0
    """Status 200, finish reason abort, half of the ids."""
    malformed_share: float = 0.0
    """Status 200, JSON that is cut off."""
    wrong_count_share: float = 0.0
    """`completion_tokens` differs from the number of ids."""
    die_after: int | None = None
    """The process exits when the call of this number (from 1) arrives."""

    def __post_init__(self) -> None:
        shares = [getattr(self, name) for name in _SHARES]
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise ConfigError("--faults", shares, "shares lie between 0 and 1 and add up to 1 at most", "Lower them.")

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read the JSON object of the command line.

        Raises:
            ConfigError: not a JSON object of known keys and fitting types.
        """
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ConfigError("--faults", text, f"must be JSON ({error})", 'Example: {"error_500_share":0.1}') from None
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(given, dict) or set(given) - known:
            raise ConfigError(
                "--faults", text, "must be an object of known keys", f"Known: {', '.join(sorted(known))}."
            )
        for name, value in given.items():
            if not _fits(name, value):
                raise ConfigError(f"--faults.{name}", value, "must be a number", "Give a number.")
        return cls(**given)

    def of_call(self, number: int) -> str | None:
        """The fault of the call with this number (from 1): a share's name without `_share`, `die`, or None."""
        if self.die_after is not None and number >= self.die_after:
            return "die"
        drawn = random.Random(self.seed * 1_000_003 + number).random()
        for name in _SHARES:
            drawn -= getattr(self, name)
            if drawn < 0:
                return name.removesuffix("_share")
        return None


_SHARES = tuple(field.name for field in dataclasses.fields(Faults) if field.name.endswith("_share"))


def _fits(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if name in ("seed", "die_after"):
        return isinstance(value, int)
    return isinstance(value, (int, float))


def spoil(replies: list[dict[str, Any]], fault: str | None) -> None:
    """Make finished replies look as the faults `abort` and `wrong_count` want them."""
    for reply in replies:
        meta = reply["meta_info"]
        if fault == "wrong_count":
            meta["completion_tokens"] += 1
        elif fault == "abort":
            half = len(reply["output_ids"]) // 2
            reply["output_ids"] = reply["output_ids"][:half]
            meta["completion_tokens"] = half
            meta["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
