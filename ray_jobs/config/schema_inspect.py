"""The section of the configuration for looking into a run; `schema` has the tree that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ray_jobs.config.rules import at_least, require


class InspectShow(Enum):
    """What to look at."""

    rows = "rows"
    counts = "counts"
    failures = "failures"
    dropped = "dropped"


class InspectStage(Enum):
    """Whose rows to look at."""

    samples = "samples"
    greedy = "greedy"


class InspectOrder(Enum):
    """Which rows come first."""

    stored = "stored"
    longest = "longest"
    shortest = "shortest"
    latest = "latest"


@dataclass(kw_only=True)
class InspectConfig:
    """Rows of a run as a person reads them; reads committed files only, also while the run is at work."""

    show: InspectShow = InspectShow.rows
    """`rows`: answers, segment by segment. `counts`: a table by source. `failures`: failed prompts by class.
    `dropped`: rows of the prompt files that were no prompts, by reason."""
    stage: InspectStage = InspectStage.samples
    """`samples`: the run's data set. `greedy`: the held-out prompts answered at temperature 0 by evaluate."""
    where: str | None = None
    """Only rows for which this holds, such as `closed == 'never' and n_output_tokens > 100 and 'truncated' in flags`:
    columns of samples/, texts, numbers, true, false, null, == != < <= > >= in, not in, and, or, not, parentheses.
    A comparison with a null is false, and != is then true. For `show=rows` and `show=counts`."""
    row_id: str | None = None
    """Only rows whose row_id begins so. For `show=rows` and `show=failures`."""
    rows: int = 5
    """Rows to show; with `show=failures` and `show=dropped` examples of each class or reason."""
    order: InspectOrder = InspectOrder.stored
    """Which rows come first: `stored` as they lie in the files, `longest` or `shortest` output, `latest` asked."""
    all_turns: bool = False
    """Show the whole conversation, not only its last user turn."""
    prompt: bool = False
    """Show the prompt as it was sent, the control ids of the template in [[brackets]]; needs the tokenizer."""
    ids: bool = False
    """Show the ids of prompt and output."""
    max_chars: int = 2000
    """Longer texts are cut there, with a count of what is left out; 0: whole texts."""

    def __post_init__(self) -> None:
        at_least("inspect", {"rows": self.rows}, 1)
        at_least("inspect", {"max_chars": self.max_chars}, 0)
        uses = {"where": (InspectShow.rows, InspectShow.counts), "row_id": (InspectShow.rows, InspectShow.failures)}
        for name, shows in uses.items():
            value = getattr(self, name)
            words = " or ".join(f"inspect.show={show.value}" for show in shows)
            rule = f"has no use with inspect.show={self.show.value}"
            require(value is None or self.show in shows, f"inspect.{name}", value, rule, f"Use it with {words}.")
