"""The exceptions of the project; callers choose what to do by class, never by text.

EagleRayError
|-- ConfigError        the configuration is wrong: one line, exit code 2
|-- StageError         a stage failed: exit code 1
|-- GuardError         a guard stopped the run: exit code 3
|-- LocalFault         this machine's fault (disk full, no file handles): the row is not to blame
`-- TargetError        one request to the target failed
    |-- Retryable      connection, timeout, 5xx, 429, abort, malformed reply: ask again
    |-- Rejected       the server refuses this request for good (4xx): a failure row
    |-- ReplicaDown    the replica is gone: ask elsewhere
    `-- Fatal          asking on would make every row wrong: stop the run
"""

from __future__ import annotations


class EagleRayError(Exception):
    """Base of all errors that a command reports in one line."""

    exit_code = 1


class ConfigError(EagleRayError):
    """A wrong or impossible configuration value, refused before anything starts."""

    exit_code = 2

    def __init__(self, field: str, value: object, rule: str, action: str) -> None:
        self.field, self.value, self.rule, self.action = field, value, rule, action
        super().__init__(f"{field}={value}: {rule}. {action}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the four parts across process boundaries; the default would pass the line as `field`."""
        return type(self), (self.field, self.value, self.rule, self.action)


class StageError(EagleRayError):
    """A stage did not do all of its work; running the same command again resumes it."""


class GuardError(EagleRayError):
    """What comes back from the target is not what the run is for; the run keeps what it has."""

    exit_code = 3


class LocalFault(EagleRayError):
    """A fault of this machine (ENOSPC, EMFILE): must stop the run, must not use up a row's attempts."""


class TargetError(EagleRayError):
    """One request failed; `raw` holds the reply's body as text where there was one."""

    def __init__(self, message: str, raw: str | None = None) -> None:
        super().__init__(message)
        self.raw = raw

    def __reduce__(self) -> tuple[object, ...]:
        """Keep `raw` across process boundaries."""
        return type(self), (str(self), self.raw)


class Retryable(TargetError):
    """Ask again, here or elsewhere: nothing says that the request itself is wrong.

    `wait` asks for patience without using up an attempt (429; 503 while the server is paused).
    """

    def __init__(self, message: str, raw: str | None = None, *, wait: bool = False) -> None:
        super().__init__(message, raw)
        self.wait = wait

    def __reduce__(self) -> tuple[object, ...]:
        """Keep `wait` too; it travels as state because it is keyword-only."""
        return type(self), (str(self), self.raw), {"wait": self.wait}


class Rejected(TargetError):
    """The server will never answer this request: the row fails, the run goes on."""


class ReplicaDown(TargetError):
    """No connection to the replica: its lease must move before the row is asked again."""


class Fatal(TargetError):
    """Every further row would be wrong in the same way: stop the run."""
