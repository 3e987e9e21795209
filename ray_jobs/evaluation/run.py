"""The evaluate stage: held-out prompts answered at temperature 0, chains drafted along the answers, summary.json."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from ray_jobs.config.schema import Config
from ray_jobs.core.errors import ConfigError, StageError
from ray_jobs.core.files import read_json, write_json
from ray_jobs.drafter.chains import chain_matches
from ray_jobs.drafter.serving import load_export
from ray_jobs.evaluation import serving
from ray_jobs.evaluation.acceptance import Walk, figures, kinds_of, walk
from ray_jobs.generation.ask import ask
from ray_jobs.generation.target_text import TargetText
from ray_jobs.store.run_dir import RunDir
from ray_jobs.target.in_process import InProcessTarget
from ray_jobs.target.model_folder import local_folder
from ray_jobs.text.prompts import is_held_out
from ray_jobs.training.data import TrainingSet, pack
from ray_jobs.training.features import InProcessFeatures, to_batch

log = logging.getLogger(__name__)

SUMMARY_VERSION = 2
"""Of the form of summary.json; one of another version is measured anew, from the same greedy answers."""


def run(cfg: Config, run_dir: RunDir, text: TargetText, attempt: int, connect: Callable[[], Any]) -> dict[str, Any]:
    """Measure the exported drafter; returns what summary.json says.

    Raises:
        StageError: there is no export, or prompts are left unanswered.
        ConfigError: no prompt is held out.
    """
    exported = run_dir.complete("export")
    if exported is None:
        raise StageError("there is no complete export/. Run the export stage first.")
    settings = {"draft_tokens": list(cfg.evaluate.draft_tokens), "prompts": cfg.evaluate.prompts}
    settings |= {"max_new_tokens": cfg.evaluate.max_new_tokens, "export": exported["sha256"]}
    settings |= {"summary_version": SUMMARY_VERSION, "served": asdict(cfg.evaluate.served)}
    done = run_dir.complete("evaluate")
    if done is not None and done["settings"] == settings:
        return done["summary"]
    run_dir.reopen("evaluate")
    sampling = _greedy_sampling(cfg, text)
    asked = _answer(cfg, run_dir, text, sampling, attempt, connect)
    walks = _walks(cfg, run_dir, text, asked)
    summary = _measure(cfg, walks)
    if cfg.evaluate.served.enabled:
        with connect():
            summary["served"] = _serve(
                cfg, run_dir, text, sampling, asked, walks[cfg.evaluate.draft_tokens[0]], attempt
            )
    write_json(run_dir.summary, summary)
    run_dir.set_complete("evaluate", {"settings": settings, "summary": summary})
    run_dir.write_status(stage="evaluate", state="complete", done=summary["offline"]["prompts"])
    return summary


def _greedy_sampling(cfg: Config, text: TargetText) -> dict[str, Any]:
    sampling = text.sampling(cfg.generate.sampling)
    sampling |= {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    if cfg.evaluate.max_new_tokens is not None:
        sampling["max_new_tokens"] = cfg.evaluate.max_new_tokens
    return sampling


def _answer(
    cfg: Config,
    run_dir: RunDir,
    text: TargetText,
    sampling: dict[str, Any],
    attempt: int,
    connect: Callable[[], Any],
) -> list[str]:
    """evaluation/greedy/: the first held-out prompts, asked like any other, at temperature 0; their row_ids."""
    share = cfg.data.held_out_share
    first = (row for row in run_dir.samples.prompt_table().to_pylist() if row["sample"] == 0 and row["prompt_ids"])
    rows = [row for row in first if is_held_out(row["prompt_id"], share)]
    if not rows:
        raise ConfigError("data.held_out_share", share, "no prompt is held out", "Raise it, or ask more prompts.")
    asked = rows[: cfg.evaluate.prompts]
    _forget_other_answers(run_dir, sampling)
    run_dir.greedy.add_prompts(asked)
    ask(cfg, run_dir, run_dir.greedy, text, sampling, attempt=attempt, stage="evaluate", connect=connect)
    return [row["row_id"] for row in asked]


def _forget_other_answers(run_dir: RunDir, sampling: dict[str, Any]) -> None:
    """Drop greedy answers that were asked with other sampling: they are made anew, never mixed."""
    path = run_dir.greedy.path / "sampling.json"
    if read_json(path) not in (None, sampling):
        log.info("evaluation/greedy was asked with other sampling; it is asked anew")
        shutil.rmtree(run_dir.greedy.path)
    write_json(path, sampling)


def _measure(cfg: Config, walks: dict[int, dict[str, Walk]]) -> dict[str, Any]:
    head = cfg.evaluate.draft_tokens[0]
    each = {k: list(walks[k].values()) for k in sorted(walks)}
    made = {str(k): figures(each[k], cfg.evaluate.resamples, cfg.run.seed) for k in each}
    return {"draft_tokens": head, "offline": made[str(head)], "offline_by_draft_tokens": made}


def _serve(
    cfg: Config,
    run_dir: RunDir,
    text: TargetText,
    sampling: dict[str, Any],
    asked: list[str],
    walks: dict[str, Walk],
    attempt: int,
) -> dict[str, Any]:
    """The first of the measured prompts on real servers."""
    table = run_dir.greedy.sample_table(["row_id", "source", "prompt_ids"], asked)
    rows = {row["row_id"]: serving.Question(**row) for row in table.to_pylist()}
    questions = [rows[row_id] for row_id in asked if row_id in rows][: cfg.evaluate.served.prompts]
    offline = [walks[question.row_id] for question in questions]
    logs = run_dir.path / "logs" / f"attempt_{attempt}"
    return serving.measure(cfg, text, sampling, questions, offline, export=run_dir.export, logs=logs)


def _walks(cfg: Config, run_dir: RunDir, text: TargetText, asked: list[str]) -> dict[int, dict[str, Walk]]:
    """The walk of every greedy answer, by row_id, for each number of draft tokens."""
    folder = local_folder(text.location, cfg.target.revision)
    exported = load_export(run_dir.export)
    target = InProcessTarget.load(
        folder,
        dtype=cfg.features.dtype.value,
        aux_layers=list(exported.shape.aux_layers),
        trust_remote_code=cfg.target.trust_remote_code,
    )
    # in float32: half a CPU's bfloat16 products would decide ties another way than the weights do
    drafter = exported.build(target.embedding.float()).float().eval()
    source = InProcessFeatures(target, cache_bytes=0, most_tokens=cfg.train.tokens_per_micro_batch)
    most = max(cfg.evaluate.draft_tokens)
    walks: dict[int, dict[str, Walk]] = {k: {} for k in cfg.evaluate.draft_tokens}
    for rows, table in _packs(cfg, run_dir, asked):
        batch = to_batch(rows, source.features(rows))
        batch.aux = batch.aux.float()
        matches = chain_matches(drafter, batch, most, exported.vocab).numpy()
        for i, first in enumerate(batch.offsets()[:-1]):
            row_matches = matches[first : first + len(rows[i])]
            n_prompt, name = table["n_prompt_tokens"][i].as_py(), table["source"][i].as_py()
            row_id = table["row_id"][i].as_py()
            kinds = kinds_of(table["segments"][i].as_py())
            for k in walks:
                walks[k][row_id] = walk(row_matches[:, :k], n_prompt, kinds, name)
    return walks


def _packs(cfg: Config, run_dir: RunDir, asked: list[str]) -> Iterator[tuple[list[Any], pa.Table]]:
    """Greedy answers in packs: their rows, and their columns in the same order."""
    columns = ["row_id", "source", "prompt_ids", "output_ids", "segments", "n_prompt_tokens"]
    table = run_dir.greedy.sample_table(columns, asked)
    longest = max(text_length(table), default=2)
    rows = TrainingSet(table, cfg.train.kinds, longest)
    for group in pack(range(len(rows)), rows.lengths, max(longest, cfg.train.tokens_per_micro_batch)):
        yield [rows[i] for i in group], table.take(group)


def text_length(table: pa.Table) -> list[int]:
    """Ids of prompt and answer of each row."""
    pairs = zip(table["prompt_ids"].to_pylist(), table["output_ids"].to_pylist(), strict=True)
    return [len(prompt) + len(output) for prompt, output in pairs]
