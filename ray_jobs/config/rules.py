"""How a section of the configuration refuses a value: one line that names field, rule and remedy."""

from __future__ import annotations

import math

from ray_jobs.core.errors import ConfigError


def require(ok: bool, name: str, value: object, rule: str, action: str) -> None:
    """Raise the one-line ConfigError unless `ok`."""
    if not ok:
        raise ConfigError(name, value, rule, action)


def at_least(section: str, values: dict[str, float | None], low: float, *, strict: bool = False) -> None:
    """Every value that is set must be finite and at least (or, if `strict`, above) `low`."""
    for name, value in values.items():
        if value is None:
            continue
        ok = math.isfinite(value) and (value > low if strict else value >= low)
        word = "above" if strict else "at least"
        require(ok, f"{section}.{name}", value, f"must be {word} {low:g}", f"Set it {word} {low:g}.")
