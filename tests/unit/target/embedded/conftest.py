"""One tiny model, one engine and one server for all tests of the embedded server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from embedded_cases import Client

from ray_jobs.target.embedded import serving
from ray_jobs.target.embedded.replies import Settings
from tests.models import tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def client(model_folder: Path) -> Iterator[Client]:
    """The server of most tests: float32, hidden states of the aux layers."""
    # one thread: tiny products only wait for each other's threads on a busy machine
    settings = Settings(str(model_folder), port=0, dtype="float32", threads=1, enable_return_aux_hidden_states=True)
    with serving.running(settings) as (url, server):
        yield Client(url, server)


@pytest.fixture(scope="session")
def transformer(model_folder: Path) -> Any:
    """The same model by transformers alone."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(model_folder), dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="session")
def reference(transformer: Any) -> Callable[[list[int], int], list[int]]:
    """Greedy output ids of transformers' own loop."""

    def greedy(ids: list[int], new: int) -> list[int]:
        given = torch.tensor([ids])
        made = transformer.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=new, do_sample=False)
        return made[0, len(ids) :].tolist()

    return greedy
