"""Claim: continuous batching in the embedded server against transformers' own generate, one prompt at a time.

Limit and peer in one run, on the demo's model, the same prompts, greedy, the same number of threads. Prints a ratio.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
import torch

from ray_jobs.config.load import compose
from ray_jobs.generation import prompts
from ray_jobs.target.embedded.replies import Settings
from ray_jobs.target.embedded.serving import running
from ray_jobs.target.in_process import load_model
from ray_jobs.target.model_folder import locate
from ray_jobs.text.chat import Chat

N_PROMPTS, NEW_TOKENS, CONCURRENCY, THREADS = 48, 32, 48, 2


def main() -> None:
    torch.set_num_threads(THREADS)
    cfg = compose([f"data.limit={N_PROMPTS}"])
    folder = locate(cfg.target.model)
    chat = Chat.load(folder)
    asked = [chat.render_ids(p.messages, p.tools) for p, _ in prompts.pick(cfg.data).rows]
    one = one_at_a_time(folder, asked)
    many = through_the_server(folder, asked)
    print(f"transformers.generate, one at a time: {one:.1f} tokens/s")
    print(f"embedded server, {CONCURRENCY} at once, over HTTP: {many:.1f} tokens/s")
    print(f"ratio: {many / one:.2f}")


def one_at_a_time(folder: str, asked: list[list[int]]) -> float:
    model: Any = load_model(folder, dtype="bfloat16")
    started = time.monotonic()
    made = 0
    for ids in asked[:8]:
        out = model.generate(
            torch.tensor([ids]), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        made += out.shape[1] - len(ids)
    return made / (time.monotonic() - started)


def through_the_server(folder: str, asked: list[list[int]]) -> float:
    settings = Settings(model_path=folder, port=0, dtype="bfloat16", threads=THREADS, max_running_requests=CONCURRENCY)
    sampling = {"temperature": 0.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    with running(settings) as (address, _), ThreadPoolExecutor(CONCURRENCY) as pool:

        def ask(ids: list[int]) -> int:
            body = {"input_ids": ids, "sampling_params": sampling}
            return len(requests.post(f"{address}/generate", json=body, timeout=300).json()["output_ids"])

        started = time.monotonic()
        made = sum(pool.map(ask, asked))
        return made / (time.monotonic() - started)


if __name__ == "__main__":
    main()
