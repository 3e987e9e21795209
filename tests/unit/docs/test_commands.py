"""Every command line in the documentation would work as it stands."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_jobs.config.load import HYDRA_FLAGS, compose

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

PLAIN = {"git clone", "export", "cat", "cd", "ls", ". .venv/bin/activate"}
"""Beginnings of lines that are no commands of ours."""

COMMAND = re.compile(r"^(make |python -m ray_jobs|ray job )")

Line = tuple[str, str]
"""Page and the whole command line, continued lines joined."""


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of the fenced code blocks."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2]


def lines_of(text: str) -> Iterator[str]:
    """Command lines of the fenced `bash` blocks and of the second column of tables, continued lines joined."""
    for language, content in blocks(text):
        if language == "bash":
            yield from (line for line in content.replace("\\\n", " ").splitlines() if line.strip())
    for match in re.finditer(r"^\|[^|]*\| `([^`]+)` \|$", text, re.MULTILINE):
        if COMMAND.match(match[1]):
            yield match[1]


def all_lines() -> list[Line]:
    """The command lines of all pages."""
    return [(page.name, line) for page in PAGES for line in lines_of(page.read_text(encoding="utf-8"))]


def check(line: str) -> None:
    """Raise if the line would not work: an unknown target, module, key or kind of line."""
    words = shlex.split(line, comments=True)
    if any(f"{line} ".startswith(f"{plain} ") for plain in PLAIN):
        return
    if words[0] == "make":
        unknown = [word for word in words[1:] if "=" not in word and word not in TARGETS]
        assert not unknown, f"no such target: {unknown}"
        assert len(words) > 1
        return
    if words[:3] == ["ray", "job", "submit"]:
        assert "--" in words, "the job's own words begin after --"
        words = words[words.index("--") + 1 :]
    assert words[:2] == ["python", "-m"], f"unknown kind of line: {line}"
    _check_module(words[2], words[3:])


def _check_module(module: str, words: list[str]) -> None:
    package, _, name = module.partition(".")
    assert (package, "." in name) == ("ray_jobs", False), f"not a command: {module}"
    assert importlib.util.find_spec(module) is not None, f"no such command: {module}"
    assert 'if __name__ == "__main__":' in (ROOT / "ray_jobs" / f"{name}.py").read_text(), f"not a command: {module}"
    flags = [word for word in words if word.startswith("-")]
    assert set(flags) <= set(HYDRA_FLAGS)
    compose([word for word in words if "=" in word])
    rest = [word for word in words if "=" not in word and word not in flags]
    assert not rest or (flags == ["--cfg"] and rest == ["job"]), f"stray words: {rest}"


@pytest.mark.parametrize(("page", "line"), all_lines(), ids=[f"{page}: {line}"[:70] for page, line in all_lines()])
def test_a_documented_line_works(page: str, line: str) -> None:
    check(line)


def test_the_pages_have_lines() -> None:
    found = [line for _, line in all_lines()]
    assert len(found) > 20
    for command in ("pipeline", "generate", "train", "export", "evaluate"):
        assert any(f"ray_jobs.{command}" in line for line in found), command
    for target in ("demo", "test", "check", "docs"):
        assert any(line.startswith(f"make {target}") for line in found), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_in_another_block(page: Path) -> None:
    for language, content in blocks(page.read_text(encoding="utf-8")):
        assert language in {"bash", "text", "python", "yaml", "json"}, f"a block of {language or 'no language'}"
        if language == "python":
            ast.parse(content)
        elif language != "bash":
            hidden = [line for line in content.splitlines() if COMMAND.match(line.strip().removeprefix("$ "))]
            assert not hidden, f"put these into a bash block: {hidden}"


@pytest.mark.parametrize(
    "line",
    [
        "make nothing",
        "make",
        "python -m ray_jobs.nothing",
        "python -m ray_jobs.stages",
        "python -m ray_jobs.generate generate.foo=1",
        "python -m ray_jobs.generate experiment=nope",
        "python -m ray_jobs.generate --multirun run.seed=1",
        "python -m ray_jobs.generate stray",
        "python -m other.module",
        "ray job submit --working-dir . python -m ray_jobs.generate",
        "ray job submit --working-dir . -- python -m ray_jobs.generate generate.foo=1",
        "curl http://127.0.0.1",
    ],
)
def test_a_wrong_line_is_caught(line: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - an assertion or the configuration's own error
        check(line)
