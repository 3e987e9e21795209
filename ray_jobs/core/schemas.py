"""The Arrow schemas of every Parquet data set, in one place (design: the columns are a contract).

Messages and tools are JSON text, never Arrow structs: Arrow merges the fields of all rows' schemas,
so one tool's parameters would appear, as nulls, in every other tool.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = "1"
_METADATA = {b"schema_version": SCHEMA_VERSION.encode()}

SEGMENT_KINDS = ("content", "reasoning", "tool_call", "marker", "stop", "excess")
CLOSED = ("explicit", "implicit_tool", "never", "absent")
FLAGS = (
    "extra_open",
    "late_open",
    "extra_close",
    "late_close",
    "stray_close",
    "malformed_tool",
    "unclosed_stop",
    "truncated",
    "ids_after_stop",
    "cut_character",
    "repetition",
)
"""All flags, in the order in which a row lists them."""

SEGMENTS = pa.list_(
    pa.struct(
        [
            pa.field("kind", pa.string(), nullable=False),
            pa.field("start", pa.int32(), nullable=False),
            pa.field("stop", pa.int32(), nullable=False),
        ]
    )
)


def _schema(*fields: tuple[str, pa.DataType] | tuple[str, pa.DataType, bool]) -> pa.Schema:
    """A schema of (name, type[, nullable]); columns are required unless said otherwise."""
    made = [pa.field(f[0], f[1], nullable=f[2] if len(f) == 3 else False) for f in fields]
    return pa.schema(made, metadata=_METADATA)


_KEYS: tuple[tuple[str, pa.DataType], ...] = (
    ("row_id", pa.string()),
    ("prompt_id", pa.string()),
    ("turn", pa.int16()),
    ("sample", pa.int16()),
    ("source", pa.string()),
    ("messages", pa.string()),
)

PROMPTS = _schema(
    *_KEYS,
    ("tools", pa.string(), True),
    ("prompt_ids", pa.list_(pa.int32()), True),
    ("error", pa.string(), True),
)
"""One row a generation to make; `prompt_ids` null and `error` set where the template refused the messages."""

SAMPLES = _schema(
    *_KEYS,
    ("tools", pa.string(), True),
    ("prompt_ids", pa.list_(pa.int32())),
    ("output_ids", pa.list_(pa.int32())),
    ("segments", SEGMENTS),
    ("reasoning", pa.string(), True),
    ("content", pa.string()),
    ("tool_calls", pa.string(), True),
    ("closed", pa.string()),
    ("flags", pa.list_(pa.string())),
    ("finish_reason", pa.string()),
    ("matched_stop", pa.string(), True),
    ("n_prompt_tokens", pa.int32()),
    ("n_output_tokens", pa.int32()),
    ("n_reasoning_tokens", pa.int32()),
    ("sampling", pa.string()),
    ("model", pa.string()),
    ("template_hash", pa.string()),
    ("replica", pa.string()),
    ("server_version", pa.string()),
    ("weight_version", pa.string()),
    ("attempt", pa.int16()),
    ("request_id", pa.string()),
    ("started_at", pa.timestamp("us", tz="UTC")),
    ("latency_s", pa.float32()),
)

FAILURES = _schema(
    *_KEYS,
    ("tools", pa.string(), True),
    ("prompt_ids", pa.list_(pa.int32()), True),
    ("error_class", pa.string()),
    ("error", pa.string()),
    ("attempts", pa.int16()),
    ("last_reply", pa.string(), True),
)
