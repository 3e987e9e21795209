"""HTTP to one server, and what each outcome means; the only importer of requests.

One try a call: who asks decides by the error's class where and when to ask again.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import uuid
from typing import Any, NoReturn

import requests
from requests.adapters import HTTPAdapter

from ray_jobs.core.errors import Fatal, LocalFault, Rejected, ReplicaDown, Retryable
from ray_jobs.core.records import Reply, Request, ServerFacts
from ray_jobs.target import wire

CONNECT_S = 10.0
CONTROL_S = 10.0
LOCAL_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

# probes after 60 s of silence: a long answer sends nothing for minutes, and firewalls drop idle connections
KEEP_ALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
]


class _Adapter(HTTPAdapter):
    """One connection to a server, kept alive, without urllib3's own retries: they would hide attempts."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, socket_options=KEEP_ALIVE)


class Client:
    """Asks servers of one target; safe to call from many threads, each has a session of its own."""

    def __init__(self, limits: wire.Limits) -> None:
        self.limits = limits
        self._local = threading.local()

    def generate(self, address: str, request: Request, *, deadline_s: float) -> Reply:
        """One answer from the server at `address`.

        Raises:
            Rejected: the request can never be answered.
            Retryable: no answer this time; after the deadline the server was told to abort.
            ReplicaDown: no connection.
            LocalFault: this machine ran out of something.
        """
        wire.check_prompt(request.input_ids, self.limits)
        rid = f"{request.row_id}-{uuid.uuid4().hex[:8]}"
        try:
            response = self._session().post(
                address + wire.GENERATE, json=wire.to_json(request, rid), timeout=(CONNECT_S, deadline_s)
            )
        except requests.Timeout as error:
            if isinstance(error, requests.ConnectTimeout):
                raise ReplicaDown(f"{address}: no connection within {CONNECT_S:.0f} s") from None
            self.abort(address, rid)
            raise Retryable(f"no answer within the row's deadline of {deadline_s:.0f} s") from None
        except requests.RequestException as error:
            _raise_connection(address, error)
        return wire.to_reply(_json(response), request, self.limits)

    def top_two(self, address: str, input_ids: list[int], *, deadline_s: float) -> tuple[float, float]:
        """Log-probabilities of the two likeliest next ids, the likelier first.

        Raises:
            TargetError: as `generate`.
        """
        wire.check_prompt(input_ids, self.limits)
        try:
            response = self._session().post(
                address + wire.GENERATE, json=wire.top_two_json(input_ids), timeout=(CONNECT_S, deadline_s)
            )
        except requests.RequestException as error:
            _raise_connection(address, error)
        return wire.to_top_two(_json(response))

    def abort(self, address: str, rid: str) -> None:
        """Tell the server to stop a generation; best effort, because the row is asked again in any case."""
        try:
            self._session().post(address + wire.ABORT, json=wire.abort_json(rid), timeout=(CONNECT_S, CONTROL_S))
        except requests.RequestException:
            return

    def facts(self, address: str) -> ServerFacts:
        """What the server says of itself."""
        try:
            response = self._session().get(address + wire.SERVER_INFO, timeout=(CONNECT_S, CONTROL_S))
        except requests.RequestException as error:
            _raise_connection(address, error)
        return wire.to_facts(_json(response))

    def probe(self, address: str, *, deadline_s: float) -> None:
        """Have one id generated, for real.

        Raises:
            TargetError: the server does not generate.
        """
        body = wire.probe_json(0)
        try:
            response = self._session().post(address + wire.GENERATE, json=body, timeout=(CONNECT_S, deadline_s))
        except requests.Timeout:
            raise ReplicaDown(f"{address}: no answer to a one-id request within {deadline_s:.0f} s") from None
        except requests.RequestException as error:
            _raise_connection(address, error)
        _json(response)

    def _session(self) -> requests.Session:
        session = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            # loopback and cluster addresses must not go through a proxy named in the environment
            session.trust_env = False
            for scheme in ("http://", "https://"):
                session.mount(scheme, _Adapter(pool_connections=1, pool_maxsize=1, max_retries=0))
            key = os.environ.get("EAGLE_RAY_API_KEY")
            if key:
                session.headers["Authorization"] = f"Bearer {key}"
            self._local.session = session
        return session


def _json(response: requests.Response) -> Any:
    """The body of a good response; errors by status."""
    status, text = response.status_code, response.text
    if status == 200:
        try:
            return response.json()
        except ValueError:
            raise Retryable("malformed reply: not JSON", text[:4000]) from None
    line = wire.error_text(status, text)
    if status in (429, 503):
        raise Retryable(line, text[:4000], wait=True)
    if status in (401, 403):
        raise Fatal(f"{line}; set EAGLE_RAY_API_KEY", text[:4000])
    if status in (404, 405):
        raise Fatal(f"{line}; this is no SGLang server's /generate", text[:4000])
    if 400 <= status < 500 and status != 408:
        raise Rejected(line, text[:4000])
    raise Retryable(line, text[:4000])


def _raise_connection(address: str, error: requests.RequestException) -> NoReturn:
    """Sort a failed exchange: our own machine, no server, or a connection that broke on the way."""
    causes: list[BaseException] = []
    pending: list[Any] = [error]
    while pending and len(causes) < 20:
        cause = pending.pop()
        if not isinstance(cause, BaseException) or any(cause is c for c in causes):
            continue
        causes.append(cause)
        pending += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
    numbers = {cause.errno for cause in causes if isinstance(cause, OSError)}
    if numbers & set(LOCAL_ERRNOS):
        raise LocalFault(f"this machine ran out of file handles or memory: {error}") from None
    refused = any(isinstance(cause, ConnectionRefusedError | socket.gaierror) for cause in causes)
    unreachable = bool(numbers & {errno.EHOSTUNREACH, errno.ENETUNREACH})
    if refused or unreachable:
        raise ReplicaDown(f"{address}: no connection ({type(causes[-1]).__name__})") from None
    raise Retryable(f"{address}: the connection broke ({type(error).__name__})") from None
