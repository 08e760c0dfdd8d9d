"""The exceptions: one base, and one class for each kind of error."""

from __future__ import annotations

import builtins
from typing import Any


class SandboxError(Exception):
    """A call of Sandhold failed; `kind` says how, and the other fields what may be done about it."""

    #: The stable code of the kind, the same in every language.
    kind: str = "unexpected"
    #: The message alone, without place and context.
    message: str = ""
    #: A stable word within the kind, where a caller can act on one.
    reason: str | None = None
    #: Whether another try may succeed and cannot do harm.
    retryable: bool = False
    #: The delay that the provider asked for, in seconds.
    retry_after: float | None = None
    #: What is known about the effect: `not_started`, `done` or `unknown`.
    outcome: str = "not_started"
    #: The provider's name.
    provider: str | None = None
    #: The operation that failed.
    operation: str | None = None
    #: Pairs that are safe to log.
    context: dict[str, str]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.context = {}

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in self.__dict__.items() if name != "_origin"}
        return type(self), self.args, fields


class GoneError(SandboxError):
    """The provider itself said that the sandbox does not exist any more."""


class NotFoundError(SandboxError):
    """Something inside or beside a sandbox does not exist: a file, a process, a template."""


class AlreadyExistsError(SandboxError):
    """Something of that name is there."""


class ConflictError(SandboxError):
    """The key was asked for with another spec, or from inside its own hook."""


class OwnershipError(SandboxError):
    """The sandbox belongs to another owner or key, or was made under other credentials."""


class InvalidArgumentError(SandboxError, ValueError):
    """A value is not acceptable; the message names it and the way out."""


class InvalidStateError(SandboxError):
    """The call does not fit the state, such as a detached sandbox or a paused one."""


class UnauthenticatedError(SandboxError):
    """No valid credentials, or no such user inside the sandbox."""


class PermissionDeniedError(SandboxError):
    """The credentials or the file's mode do not allow it."""


class RateLimitedError(SandboxError):
    """The provider asks to slow down; wait `retry_after`."""


class QuotaExceededError(SandboxError):
    """A quota of the account is used up."""


class StorageFullError(SandboxError):
    """No space is left where the call must write."""


class TimeoutError(SandboxError, builtins.TimeoutError):
    """A deadline passed; look at `outcome` before another try."""


class CancelledError(SandboxError):
    """The caller cancelled."""


class UnavailableError(SandboxError):
    """The provider or the path to it cannot be reached; nothing is said about the sandbox."""


class StaleError(SandboxError):
    """The handle is of an older generation, or its lease was lost; nothing was sent."""


class OutcomeUnknownError(SandboxError):
    """Whether it took effect is not known."""


class UnsupportedError(SandboxError):
    """The provider or this host cannot do it; said before anything happened."""


class UnexpectedError(SandboxError):
    """An answer that the contract does not explain, or a hook that raised."""


#: The class of each kind.
BY_KIND: dict[str, type[SandboxError]] = {
    "gone": GoneError,
    "not_found": NotFoundError,
    "already_exists": AlreadyExistsError,
    "conflict": ConflictError,
    "ownership": OwnershipError,
    "invalid_argument": InvalidArgumentError,
    "invalid_state": InvalidStateError,
    "unauthenticated": UnauthenticatedError,
    "permission_denied": PermissionDeniedError,
    "rate_limited": RateLimitedError,
    "quota_exceeded": QuotaExceededError,
    "storage_full": StorageFullError,
    "timeout": TimeoutError,
    "cancelled": CancelledError,
    "unavailable": UnavailableError,
    "stale": StaleError,
    "outcome_unknown": OutcomeUnknownError,
    "unsupported": UnsupportedError,
    "unexpected": UnexpectedError,
}

for _kind, _class in BY_KIND.items():
    _class.kind = _kind
