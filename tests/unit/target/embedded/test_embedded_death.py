"""An engine that cannot go on ends the server process: answering 500 for ever would use up every row's attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ray_jobs.target.embedded import serving
from ray_jobs.target.embedded.engine import EngineError
from ray_jobs.target.embedded.jobs import Job
from ray_jobs.target.embedded.replies import Settings
from ray_jobs.target.embedded.sampling_params import SamplingParams


def test_a_broken_forward_is_the_end(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = serving.start_engine(Settings(str(model_folder), port=0, dtype="float32", threads=1))
    ends: list[str] = []
    engine.on_death = ends.append

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(engine.model, "prefill", broken)
    [future] = engine.submit([Job(rid="a", prompt=[20, 21], params=SamplingParams(), seed=0)])
    with pytest.raises(EngineError, match="the engine died: RuntimeError: no memory"):
        future.result(10)
    engine._thread.join(10)
    assert ends == ["the engine died: no memory"]
    assert not engine.alive
