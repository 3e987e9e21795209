"""`python -m ray_jobs.inspect` as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inspect_cases import full_run, headers

from ray_jobs.config.load import compose
from ray_jobs.config.words import quoted
from ray_jobs.store.lock import RunLock
from ray_jobs.store.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("ray", "torch", "transformers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return full_run(tmp_path_factory.mktemp("command"))


def inspect(run: RunDir, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which fails if it loads what is heavy."""
    code = f"""
import sys
{before}
from ray_jobs.config.load import command
from ray_jobs.inspect import main
def checked(cfg):
    code = main(cfg)
    assert not {{*{HEAVY}}} & sys.modules.keys(), sorted({{*{HEAVY}}} & sys.modules.keys())
    return code
command(checked)()
"""
    named = [f"run.root={run.path.parent}", f"run.name={run.path.name}"]
    env = {**os.environ, "NO_COLOR": "1"}
    command = [sys.executable, "-c", code, *named, *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its bytes."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_it_reads_a_run_that_another_command_holds_and_changes_nothing(run: RunDir) -> None:
    with RunLock(run.path / "LOCK"):
        before = contents(run.path)
        done = inspect(run, "inspect.where=closed == 'never' and 'truncated' in flags", "inspect.order=longest")
        assert contents(run.path) == before
    assert done.returncode == 0, done.stderr
    assert headers(done.stdout) == [1, 4]
    # the vocabulary was needed and used, without transformers
    done = inspect(run, "inspect.rows=1")
    assert "    </think>\n" in done.stdout
    assert done.stderr == ""


def test_a_wrong_filter_is_exit_2_and_one_line(run: RunDir) -> None:
    done = inspect(run, "inspect.where=closed < 3")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: inspect.where=closed < 3: compares a text with a number, at character 8. Write"
    )
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_no_such_run_is_exit_2_and_makes_none(run: RunDir) -> None:
    before = contents(run.path.parent)
    done = inspect(run, "run.name=other")
    assert done.returncode == 2
    assert done.stderr.startswith("error: run.name=other: there is no such run in ")
    assert done.stderr.count("\n") == 1
    assert contents(run.path.parent) == before


def test_an_output_of_another_encoding_is_no_error(run: RunDir) -> None:
    from tests.sample_rows import commit, sample

    commit(run.greedy, [sample(0, [("content", "caf\u00e9 \u6f22")])])
    before = "sys.stdout.reconfigure(encoding='ascii')"
    done = inspect(run, "inspect.stage=greedy", before=before)
    assert done.returncode == 0, done.stderr
    assert "caf\\xe9 \\u6f22" in done.stdout


WHERES = [
    "closed == 'never' and n_output_tokens > 100 and 'truncated' in flags",
    "'truncated' in flags and closed == 'never'",
    '"truncated" in flags and closed == "never"',
    r"source == 'it\'s'",
    'source == "a \\"b\\" \\\\"',
    "source == 'a\\\\'",
    "closed in ['never', 'absent']",
    "content == '{a: 1}, x=y'",
    "n_output_tokens>=1",
]


@pytest.mark.parametrize("where", WHERES)
def test_a_filter_needs_no_quotes_of_hydra(where: str) -> None:
    assert compose([f"inspect.where={where}"]).inspect.where == where


def test_quotes_of_hydra_and_other_words_stay() -> None:
    assert compose(["""inspect.where="closed == 'never'" """.strip()]).inspect.where == "closed == 'never'"
    assert compose(["inspect.where=null"]).inspect.where is None
    words = ["run.name=a", "data.files=[a b.jsonl]", "--cfg", "inspect.rows=3", "inspect.where"]
    assert quoted(words) == words
