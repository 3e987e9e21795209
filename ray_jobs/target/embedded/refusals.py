"""The two ways in which a request of /generate is not answered: an error reply, and the end of the server."""

from __future__ import annotations

import json
from typing import Any


class Refusal(Exception):
    """A request that is answered with an error status and this JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(json.dumps(body))
        self.status, self.body = status, body


class Deadly(Exception):
    """A request on which the real server dies: ids outside the vocabulary, or nothing but empty prompts."""


def refusal(message: str, status: int = 400) -> Refusal:
    """The ordinary error shape of /generate."""
    return Refusal(status, {"error": {"message": message}})


def validation_refusal(details: str, path: str = "/generate") -> Refusal:
    """The shape for a body that is not JSON or not of the right types."""
    return Refusal(400, openai_error(f"1 validation error:\n  {details}\n\n  POST {path} [{details}]", "Bad Request"))


def openai_error(message: str, kind: str) -> dict[str, Any]:
    """The error body of the endpoints that speak OpenAI's protocol, and of what is not even valid."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": 400}


def message_of(refused: Refusal) -> str:
    """The message of a refusal in any of the shapes."""
    error = refused.body.get("error", refused.body)
    return error if isinstance(error, str) else error["message"]
