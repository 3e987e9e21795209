"""Hydra's and OmegaConf's errors as the project's one line; nobody should have to know either to mend a word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from ray_jobs.config.schema import Config
from ray_jobs.core.errors import ConfigError

KEYS_PAGE = "docs/configuration.md lists the keys."
_OURS = (ConfigError, HydraException, OmegaConfBaseException)
_KINDS = {"Integer": "a whole number", "Float": "a number"}


def to_config_error(error: BaseException, words: Sequence[str] = ()) -> ConfigError:
    """The error in one line; `words` are the command line's, of which Hydra names the wrong one in its text."""
    cause = _first_cause(error)
    if isinstance(cause, ConfigError):
        return cause
    if isinstance(cause, MissingConfigException):
        return _unknown_choice(cause)
    if isinstance(cause, OverrideParseException):
        return ConfigError(*_key_and_value(cause.override), *_unreadable(cause))
    full_key = str(getattr(cause, "full_key", None) or "")
    name, value = _key_and_value(_word_in(str(error), full_key, words))
    key = full_key or name or "config"
    if isinstance(cause, MissingMandatoryValue):
        return ConfigError(key, "???", "must be given", f"Set {key}.")
    where = _file_in(str(error))
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(key, name, value, where, into_dict="is not in struct" in str(cause))
    shown = getattr(cause, "value", None)
    shown = (value or "?") if shown is None else shown
    return ConfigError(key, shown, _rule(str(cause)) + where, "Correct it.")


def _first_cause(error: BaseException) -> BaseException:
    """The one that knows the key. Hydra does not always say `raise ... from`, so the context counts as well."""
    while not isinstance(error, ConfigError) and not getattr(error, "full_key", None):
        before = error.__cause__ or error.__context__
        if not isinstance(before, _OURS):
            break
        error = before
    return error


def keys(made: type = Config, head: str = "") -> Iterator[str]:
    """Every key of the configuration, dotted."""
    hints = get_type_hints(made)
    for item in fields(made):
        kind = hints[item.name]
        if is_dataclass(kind) and isinstance(kind, type):
            yield from keys(kind, f"{head}{item.name}.")
        else:
            yield head + item.name


def _unknown_choice(error: MissingConfigException) -> ConfigError:
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    options = ", ".join(error.options or ()) or "nothing"
    return ConfigError(group or "config", choice, "there is no such choice", f"Choose one of: {options}.")


def _unreadable(error: OverrideParseException) -> tuple[str, str]:
    reason = str(error.message).split(" See https")[0].splitlines()
    reason = [line for line in reason if not line.startswith(("Error parsing", "See https"))]
    return (
        f"cannot be read ({' '.join(' '.join(reason).split())})",
        "Write key=value, in 'quotes' where it holds brackets.",
    )


def _unknown_key(key: str, name: str, value: str, where: str, *, into_dict: bool) -> ConfigError:
    if name and not f"{key}.".startswith(f"{name}.") and not f"{name}.".startswith(f"{key}."):
        # inside a value, such as a list of sources
        return ConfigError(name, value, f"there is no key {key} in it{where}", KEYS_PAGE)
    key = name if name.startswith(f"{key}.") else key
    if into_dict:
        return ConfigError(key, value, f"a new key needs a plus{where}", f"Write +{key}={value}.")
    near = difflib.get_close_matches(key, list(keys()), n=1, cutoff=0.75)
    return ConfigError(
        key, value or "?", f"there is no such key{where}", f"Did you mean {near[0]}?" if near else KEYS_PAGE
    )


def _rule(text: str) -> str:
    text = text.splitlines()[0]
    if found := re.search(r"could not be converted to (\w+)", text):
        return f"must be {_KINDS.get(found[1], found[1])}"
    if found := re.search(r"expected one of \[(.*)\]", text):
        return f"must be one of {found[1]}"
    if "is not a valid bool" in text:
        return "must be true or false"
    return "may not be null" if "is not Optional" in text else text.rstrip(".")


def _word_in(text: str, key: str, words: Sequence[str]) -> str:
    """The command-line word that sets `key`, or that Hydra's text names, whole or by its key."""
    for word in words:
        name = _key_and_value(word)[0]
        if name == key or word in text or f"'{name}'" in text:
            return word
    return ""


def _key_and_value(word: Any) -> tuple[str, str]:
    key, _, value = str(word).lstrip("+~").partition("=")
    return key, value


def _file_in(text: str) -> str:
    """' in conf/GROUP/NAME.yaml' where Hydra's text begins with that file."""
    found = re.match(r"In '([\w/]+)': \w+ raised", text)
    return f" (conf/{found[1]}.yaml)" if found else ""
