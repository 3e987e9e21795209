"""The drafter in a real server: accepted length by the server's own count, tokens a second, and equality of outputs.

Two servers in turn, with the drafter and without, get the same prompts at temperature 0. A verify step may change no
token: where two outputs differ, the target's two likeliest ids there are looked up, because products of another
batch size may decide a tie another way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray

from ray_jobs.cluster.replicas import running
from ray_jobs.config.schema import Config
from ray_jobs.core.errors import StageError, TargetError
from ray_jobs.core.records import Reply, Request
from ray_jobs.drafter.serving import speculation_args
from ray_jobs.evaluation.acceptance import Walk, accepted_length, by_source, interval
from ray_jobs.generation.target_text import TargetText
from ray_jobs.target import wire
from ray_jobs.target.client import Client

log = logging.getLogger(__name__)

TIE = 1e-4
"""Log-probabilities so close are equal in float32."""
WARM_UP_TOKENS = 8
TOP_TWO_S = 120.0


@dataclass(frozen=True)
class Question:
    """A held-out prompt."""

    row_id: str
    source: str
    prompt_ids: list[int]


@dataclass(frozen=True)
class Served:
    """What one server answered in its last pass, and output tokens a second of each pass, by concurrency."""

    replies: dict[str, Reply]
    tokens_per_s: dict[str, float]
    version: str


@dataclass(frozen=True)
class Difference:
    """Where an output with the drafter leaves the one without: the index of the id, and the gap of the two likeliest
    ids' log-probabilities there."""

    row_id: str
    position: int
    gap: float


class _Asking:
    """One server and the way to ask it."""

    def __init__(self, cfg: Config, text: TargetText, sampling: dict[str, Any], address: str) -> None:
        self.address = address
        self.client = Client(text.limits)
        self._limits, self._sampling = text.limits, sampling
        self._least_tokens_per_s = cfg.generate.least_tokens_per_s

    def answer(self, question: Question, most: int | None = None) -> Reply:
        """The greedy answer, of `most` ids at most."""
        sampling = wire.fit_sampling(self._sampling, len(question.prompt_ids), self._limits)
        if most is not None:
            sampling["max_new_tokens"] = min(most, sampling["max_new_tokens"])
        deadline_s = 60 + sampling["max_new_tokens"] / self._least_tokens_per_s
        request = Request(question.row_id, question.prompt_ids, sampling)
        return self.client.generate(self.address, request, deadline_s=deadline_s)

    def passes(self, questions: Sequence[Question], concurrency: Sequence[int], timed: int) -> Served:
        """All questions once in the last pass, the first `timed` in those before."""
        self._all(questions[: max(concurrency)], max(concurrency), WARM_UP_TOKENS)
        rates: dict[str, float] = {}
        replies: dict[str, Reply] = {}
        for i, n in enumerate(concurrency):
            chosen = questions if i == len(concurrency) - 1 else questions[:timed]
            started = time.monotonic()
            replies = self._all(chosen, n)
            seconds = time.monotonic() - started
            rates[str(n)] = sum(len(reply.output_ids) for reply in replies.values()) / seconds
        return Served(replies, rates, self.client.facts(self.address).version)

    def _all(self, questions: Sequence[Question], at_once: int, most: int | None = None) -> dict[str, Reply]:
        with ThreadPoolExecutor(at_once, thread_name_prefix="served") as threads:
            replies = threads.map(lambda question: self.answer(question, most), questions)
            return {question.row_id: reply for question, reply in zip(questions, replies, strict=True)}

    def difference(self, question: Question, plain: list[int], drafted: list[int]) -> Difference | None:
        """The first difference of two outputs to one question, if there is one."""
        if plain == drafted:
            return None
        pairs = zip(plain, drafted, strict=False)
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(drafted)))
        before = question.prompt_ids + plain[:position]
        first, second = self.client.top_two(self.address, before, deadline_s=TOP_TWO_S)
        return Difference(question.row_id, position, first - second)


def measure(
    cfg: Config,
    text: TargetText,
    sampling: dict[str, Any],
    questions: Sequence[Question],
    offline: Sequence[Walk],
    *,
    export: Path,
    logs: Path,
) -> dict[str, Any]:
    """What summary.json says under `served`; `offline` are the walks of the same questions. Needs a connected Ray.

    Raises:
        StageError: a server did not start, or did not answer.
    """
    served = cfg.evaluate.served
    draft_tokens = cfg.evaluate.draft_tokens[0]
    with _server(cfg, text, sampling, speculation_args(export, draft_tokens), logs / "served_with_drafter") as asking:
        drafted = asking.passes(questions, served.concurrency, served.timed_prompts)
    with _server(cfg, text, sampling, {}, logs / "served_without_drafter") as asking:
        plain = asking.passes(questions, served.concurrency, served.timed_prompts)
        found = [
            asking.difference(q, plain.replies[q.row_id].output_ids, drafted.replies[q.row_id].output_ids)
            for q in questions
        ]
    differences = [difference for difference in found if difference is not None]
    for difference in differences:
        _say(difference)
    return {
        "draft_tokens": draft_tokens,
        **_acceptance(cfg, questions, drafted),
        "offline_accepted_length": accepted_length(offline),
        "tokens_per_s": {"off": plain.tokens_per_s, "on": drafted.tokens_per_s},
        "identical": len(questions) - len(differences),
        "ties": sum(difference.gap <= TIE for difference in differences),
        "total": len(questions),
        "differences": [asdict(difference) for difference in differences],
        "server_version": drafted.version,
    }


def _acceptance(cfg: Config, questions: Sequence[Question], drafted: Served) -> dict[str, Any]:
    """The server's own counts, pooled, in the terms of the offline figures: an answer's first token, which the prompt
    gives, is not counted."""
    walks, proposed, accepted = [], 0, 0
    for question in questions:
        reply = drafted.replies[question.row_id]
        if reply.drafts is None:
            raise StageError("the server with the drafter counts no verify steps. Is it speculating? See its log.")
        walks.append(Walk(question.source, len(reply.output_ids) - 1, reply.drafts.verify_steps))
        proposed += reply.drafts.proposed
        accepted += reply.drafts.accepted
    return {
        "accepted_length": accepted_length(walks),
        "interval_95": interval(walks, cfg.evaluate.resamples, cfg.run.seed),
        "by_source": by_source(walks),
        "prompts": len(walks),
        "verify_tokens": sum(walk.tokens for walk in walks),
        "verify_steps": sum(walk.steps for walk in walks),
        "proposed_drafts": proposed,
        "accepted_drafts": accepted,
    }


@contextmanager
def _server(
    cfg: Config, text: TargetText, sampling: dict[str, Any], more: dict[str, Any], logs: Path
) -> Iterator[_Asking]:
    """A server of its own for the body of the `with`."""
    given = {**cfg.replicas.engine_args, **cfg.evaluate.served.engine_args, **more}
    try:
        with running(replace(cfg.replicas, count=1, engine_args=given), text.location, logs) as replicas:
            snapshot: Any = ray.get(replicas.registry.snapshot.remote(), timeout=30)
            (replica,) = snapshot["replicas"].values()
            yield _Asking(cfg, text, sampling, replica["address"])
    except TargetError as error:
        raise StageError(f"served evaluation: {error}. Logs: {logs}") from error


def _say(difference: Difference) -> None:
    where = f"row {difference.row_id}: outputs differ first at id {difference.position}"
    gap = f"the two likeliest ids are {difference.gap:.1e} apart in log-probability"
    if difference.gap <= TIE:
        log.info("%s, a tie: %s", where, gap)
    else:
        log.warning("%s, and that is no tie: %s. Verification changed the answer.", where, gap)
