"""The native part of the package `sandhold`."""

import builtins
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, final, type_check_only

from typing_extensions import Self, Unpack

_Bytes = builtins.bytes
_Path = str | os.PathLike[str]
_Command = str | Sequence[str]
_S_co = TypeVar("_S_co", bound=Sandbox | AsyncSandbox, covariant=True)

@type_check_only
class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | str: ...

_Body = bytes | bytearray | str | _Readable | Iterable[bytes | str]
_AsyncBody = _Body | AsyncIterable[bytes | str]

_Hook = Callable[[Sandbox], object] | Callable[[AsyncSandbox], Awaitable[object]]

@type_check_only
class _Hooks(TypedDict, total=False):
    """Callables of hooks: a coroutine function gets an `AsyncSandbox`, any other one a `Sandbox`."""

    on_start: Callable[[Start[Sandbox]], object] | Callable[[Start[AsyncSandbox]], Awaitable[object]] | None
    on_resume: (
        Callable[[Sandbox, Literal["kept", "lost"]], list[FreshFile] | None]
        | Callable[[AsyncSandbox, Literal["kept", "lost"]], Awaitable[list[FreshFile] | None]]
        | None
    )
    on_stop: _Hook | None
    on_destroy: _Hook | None
    on_event: Callable[[Event], object] | None
    setup_version: int
    runs_on_every_start: bool
    hook_deadline: float

@type_check_only
class _Resources(TypedDict, total=False):
    """Limits of the whole sandbox; default none."""

    cpu_millis: int | None
    memory: int | None
    pids: int | None
    disk: int | None

@type_check_only
class _AcquireOptions(_Hooks, total=False):
    """How a sandbox is to be made, and what an acquire may do. None is as good as not given."""

    template: str | None
    user: str | None
    home: str | None
    workdir: str | None
    env: Mapping[str, str] | None
    metadata: Mapping[str, str] | None
    resources: _Resources | None
    network: Literal["none", "loopback", "host"] | None
    lease: float | None
    on_expiry: Literal["pause", "kill"] | None
    kind: Kind | Literal["standard", "privileged"] | None
    mounts: Sequence[Mount] | None
    provider_id: str | None
    replace_when_gone: Literal["create", "fail"] | None
    on_gone: Literal["fail", "reacquire"] | None
    on_duplicates: Literal["report", "reap"] | None
    on_spec_conflict: Literal["error", "keep", "replace"] | None
    on_setup_failure: Literal["keep", "destroy"] | None
    exclusion: Literal["proven", "best_effort"] | None
    call_deadline: float | None
    deadline: float | None

@type_check_only
class _HostOptions(_Hooks, total=False):
    """What a host is made with. `registry` is memory:, file:/directory, sqlite:/path or postgres://..."""

    registry: str | None
    persist: VaultHook | None
    owner: str | None
    wait_limit: float | None
    record_lease: float | None
    event_capacity: int | None

@type_check_only
class _CloneOptions(TypedDict, total=False):
    key: str | None
    provider_id: str | None
    env: Mapping[str, str] | None
    lease: float | None
    workdir: str | None

@type_check_only
class _ExecOptions(TypedDict, total=False):
    """Times in seconds; a timeout of 0 is none. Default 60 s, and 1 MiB of output a stream."""

    timeout: float | None
    stdin: bytes | bytearray | str | None
    output_limit: int | None
    on_output: Callable[[Literal["stdout", "stderr", "pty"], bytes], object] | None
    env: Mapping[str, str] | None
    cwd: str | None
    user: str | None
    grace: float | None

@type_check_only
class _StartOptions(TypedDict, total=False):
    """Times in seconds; `pty` is columns and rows; `retain` keeps so many bytes of output inside."""

    stdin: Literal["closed", "open"] | None
    pty: tuple[int, int] | None
    tag: str | None
    retain: int | None
    deadline: float | None
    env: Mapping[str, str] | None
    cwd: str | None
    user: str | None
    grace: float | None

@type_check_only
class _LocalOptions(TypedDict, total=False):
    home: _Path | None
    helper: _Path | None
    requirements: (
        Sequence[Literal["several_users", "writable_usr", "seccomp", "limits", "kernel_freezer", "no_network"]] | None
    )
    in_memory: bool | None
    start_timeout: float | None

@type_check_only
class _E2bOptions(TypedDict, total=False):
    """What is not given is read from the environment, as the official SDKs do."""

    api_key: str | None
    domain: str | None
    api_url: str | None
    sandbox_url: str | None
    volume_url: str | None
    debug: bool | None
    allow_plaintext: bool | None
    headers: Mapping[str, str] | None
    request_timeout: float | None
    lease: float | None
    max_run: float | None
    list_visibility: float | None
    public_traffic: Literal["token_only", "everybody"] | None
    auto_resume: Literal["off", "on_traffic"] | None
    mastra_owner: str | None

__all__ = [
    "AsyncDownload",
    "AsyncEvents",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncWatch",
    "Captured",
    "Download",
    "E2bProvider",
    "EntryInfo",
    "Event",
    "Events",
    "ExecOutput",
    "ExitStatus",
    "Facts",
    "FreshFile",
    "Isolation",
    "Kind",
    "LocalProvider",
    "Mount",
    "Output",
    "Process",
    "ProcessInfo",
    "Sandbox",
    "SandboxInfo",
    "Sandboxes",
    "Start",
    "VaultHook",
    "Watch",
    "WatchEvent",
    "error_kinds",
]

def error_kinds() -> list[str]: ...

@final
class ExitStatus:
    """How a process ended. A non-zero code is a result, not an error."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def oom_killed(self) -> bool: ...
    @property
    def success(self) -> bool: ...

@final
class Captured:
    """Captured bytes of one stream: the tail, and how much before it was dropped."""

    @property
    def bytes(self) -> _Bytes: ...
    @property
    def dropped(self) -> int: ...
    def text(self) -> str: ...
    def __bytes__(self) -> _Bytes: ...

@final
class ExecOutput:
    """The result of a foreground command."""

    @property
    def exit(self) -> ExitStatus: ...
    @property
    def stdout(self) -> Captured: ...
    @property
    def stderr(self) -> Captured: ...

@final
class Output:
    """A piece of what a process wrote."""

    @property
    def stream(self) -> Literal["stdout", "stderr", "pty"]: ...
    @property
    def data(self) -> bytes: ...
    @property
    def offset(self) -> int: ...
    @property
    def dropped(self) -> int: ...

@final
class ProcessInfo:
    """Facts about a process inside a sandbox."""

    @property
    def pid(self) -> int: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def argv(self) -> list[str]: ...
    @property
    def cwd(self) -> str | None: ...
    @property
    def exit(self) -> ExitStatus | None: ...

@final
class EntryInfo:
    """Facts about one file or directory."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def file_type(self) -> Literal["file", "directory", "symlink", "other"]: ...
    @property
    def size(self) -> int: ...
    @property
    def mode(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def modified_at(self) -> datetime | None: ...
    @property
    def symlink_target(self) -> str | None: ...
    @property
    def metadata(self) -> dict[str, str]: ...

@final
class WatchEvent:
    """One event of a watch; after `overflow` look at the whole directory again."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["create", "write", "remove", "rename", "chmod", "overflow"]: ...
    @property
    def entry(self) -> EntryInfo | None: ...

@final
class Isolation:
    """How strongly a sandbox is separated from its host, as found by running it."""

    @property
    def namespaces(self) -> list[str]: ...
    @property
    def users(self) -> str: ...
    @property
    def filesystem(self) -> str: ...
    @property
    def network(self) -> str: ...
    @property
    def seccomp(self) -> bool: ...
    @property
    def limits(self) -> str: ...
    @property
    def freezer(self) -> str: ...

@final
class SandboxInfo:
    """Facts about one sandbox, as its provider tells them."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> Literal["running", "paused", "stopped", "transitioning"]: ...
    @property
    def owner(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def generation(self) -> str | None: ...
    @property
    def template(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def started_at(self) -> datetime: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def isolation(self) -> Isolation | None: ...
    @property
    def survives(self) -> str: ...

@final
class Facts:
    """How a sandbox came to an acquire."""

    @property
    def how(self) -> Literal["fresh", "replaced", "adopted", "unfinished", "attached", "resumed"]: ...
    @property
    def replaced(self) -> str | None: ...
    @property
    def resumed(self) -> Literal["kept", "lost"] | None: ...
    @property
    def attached(self) -> bool: ...
    @property
    def adopted(self) -> bool: ...
    @property
    def setup(self) -> Literal["needed", "done"]: ...
    @property
    def joined(self) -> bool: ...
    @property
    def restored(self) -> str | None: ...
    @property
    def duplicates(self) -> list[str]: ...

@final
class Event:
    """Something that happened to the sandbox of a key; `details` has more, by name. `lagged` stands for missed ones."""

    @property
    def owner(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def id(self) -> str | None: ...
    @property
    def at(self) -> datetime: ...
    @property
    def kind(self) -> str: ...
    @property
    def details(self) -> dict[str, Any]: ...

@final
class Start(Generic[_S_co]):
    """What a start hook is told."""

    @property
    def sandbox(self) -> _S_co: ...
    @property
    def outcome(self) -> Literal["created", "connected"]: ...
    @property
    def setup(self) -> Literal["needed", "done"]: ...
    @property
    def facts(self) -> Facts: ...

@final
class FreshFile:
    """A file that a resume hook wants fresh inside the sandbox, such as a rotated token."""

    def __new__(cls, path: str, content: bytes, *, mode: int = 0o600, owner: str | None = None) -> Self: ...

@final
class Kind:
    """What kind of box is asked for, beside the words `standard` and `privileged`."""

    @staticmethod
    def gpu(model: str, count: int = 1) -> Kind: ...
    @staticmethod
    def image(reference: str) -> Kind: ...

@final
class Mount:
    """A directory that appears inside the sandbox."""

    @staticmethod
    def host_dir(path: str, host: _Path, *, writable: bool = False) -> Mount: ...
    @staticmethod
    def shared_dir(path: str, host: _Path) -> Mount: ...
    @staticmethod
    def volume(path: str, name: str) -> Mount: ...

@final
class VaultHook:
    """Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.

    `home` is the directory of all vaults on this machine, `key` names one of them, `path` is the workspace inside each
    sandbox. Work is saved before a pause, before a destroy and every `interval` seconds (default 300; 0 is never).
    """

    def __new__(cls, home: _Path, key: str, path: str, *, interval: float | None = None) -> Self: ...

@final
class LocalProvider:
    """Sandboxes on this machine: isolated processes that outlive the program that made them."""

    def __new__(cls, **options: Unpack[_LocalOptions]) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def home(self) -> os.PathLike[str]: ...

@final
class E2bProvider:
    """E2B's cloud, a self-hosted E2B, or any server that speaks its protocol."""

    def __new__(cls, **options: Unpack[_E2bOptions]) -> Self: ...
    @property
    def name(self) -> str: ...

@final
class Sandboxes:
    """The sandboxes of one owner at one provider: acquire them by key, let them go, get the same ones back."""

    def __new__(cls, provider: LocalProvider | E2bProvider, **options: Unpack[_HostOptions]) -> Self: ...
    def acquire(self, key: str, **options: Unpack[_AcquireOptions]) -> Sandbox:
        """Finds, connects or creates the one sandbox of a key."""
        ...
    def lazy(self, key: str, **options: Unpack[_AcquireOptions]) -> Sandbox:
        """Returns a value of the key's sandbox that is acquired by its first use."""
        ...
    def find(self, key: str) -> SandboxInfo | None:
        """Looks for the sandbox that a key has, without waking or making one."""
        ...
    def stop(self, key: str) -> Literal["paused", "already_paused", "left_running", "no_sandbox"]:
        """Lets a key's sandbox rest, without connecting to it."""
        ...
    def destroy(self, key: str) -> Literal["destroyed", "already_gone"]:
        """Destroys a key's sandbox, without waking it, and forgets its record."""
        ...
    def events(self) -> Events:
        """Listens to what happens to the sandboxes of this host from now on."""
        ...

@final
class Sandbox:
    """A sandbox of a key. Leaving its `with` block lets go of it and leaves the sandbox alone."""

    @property
    def key(self) -> str:
        """The key."""
        ...
    @property
    def owner(self) -> str:
        """The namespace of the key."""
        ...
    @property
    def provider_id(self) -> str | None:
        """The provider's id; None before a lazy value has acquired."""
        ...
    @property
    def provider(self) -> str:
        """The provider's name."""
        ...
    @property
    def generation(self) -> str | None:
        """The identity of this very sandbox."""
        ...
    @property
    def outcome(self) -> Literal["created", "connected"] | None:
        """Whether the acquire made it; None for a value that no acquire returned."""
        ...
    @property
    def facts(self) -> Facts | None:
        """More about how it came; None for a value that no acquire returned."""
        ...
    @property
    def instructions(self) -> str:
        """What a model should know of this sandbox to work in it."""
        ...
    def detach(self) -> None:
        """Lets go of it: this value admits no call any more, and the sandbox stays as it is."""
        ...
    def clone_with(self, **options: Unpack[_CloneOptions]) -> Self:
        """Returns a value for another sandbox of the same spec, acquired by its first use."""
        ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...
    def exec(self, command: _Command, **options: Unpack[_ExecOptions]) -> ExecOutput:
        """Runs a command to completion and captures its output. A list is a program and its arguments, a text a line of shell."""
        ...
    def shell(self, line: str, **options: Unpack[_ExecOptions]) -> ExecOutput:
        """Runs a line of shell text to completion and captures its output."""
        ...
    def start(self, command: _Command, **options: Unpack[_StartOptions]) -> Process:
        """Starts a process and returns as soon as it runs."""
        ...
    def attach(self, process: int | str, *, replay: bool = False, stdout: int = 0, stderr: int = 0, pty: int = 0) -> Process:
        """Attaches to a process that was started earlier, by this program or another: by its pid or its tag."""
        ...
    def processes(self) -> builtins.list[ProcessInfo]:
        """Lists the processes that were started through the provider, and kept records of ended ones."""
        ...
    def signal(self, process: int | str, signal: int = 15) -> bool:
        """Sends a signal to a process and its whole tree; False when it had ended."""
        ...
    def release(self, process: int | str) -> bool:
        """Forgets the kept output and exit of an ended process; False when nothing was kept."""
        ...
    def read(self, path: str, *, user: str | None = None, offset: int = 0, length: int | None = None) -> Download:
        """Reads a file as a stream of bytes."""
        ...
    def read_bytes(self, path: str) -> bytes:
        """Reads a whole file of at most 64 MiB."""
        ...
    def read_text(self, path: str) -> str:
        """Reads a whole text file of at most 64 MiB."""
        ...
    def write(self, path: str, body: _Body, *, user: str | None = None, metadata: Mapping[str, str] | None = None, size: int | None = None) -> EntryInfo:
        """Writes a file; parents are created. The body is bytes, text, an open binary file, or an iterable of bytes."""
        ...
    def write_bytes(self, path: str, content: bytes | bytearray) -> EntryInfo:
        """Writes a whole file."""
        ...
    def stat(self, path: str, *, user: str | None = None) -> EntryInfo:
        """Returns facts about a file or directory."""
        ...
    def exists(self, path: str) -> bool:
        """Tells whether a path exists."""
        ...
    def list(self, path: str, *, user: str | None = None, depth: int = 1) -> builtins.list[EntryInfo]:
        """Lists a directory, depth first, sorted by name."""
        ...
    def make_dir(self, path: str, *, user: str | None = None) -> EntryInfo:
        """Makes a directory and its parents."""
        ...
    def rename(self, source: str, destination: str, *, user: str | None = None) -> EntryInfo:
        """Renames a file or directory; parents of the destination are created."""
        ...
    def remove(self, path: str, *, user: str | None = None) -> None:
        """Removes a file, or a directory with all that is in it; a missing one is no error."""
        ...
    def watch(self, path: str, *, user: str | None = None, recursive: bool = False, include_entry: bool = False) -> Watch:
        """Watches a directory; it is in force when the call returns."""
        ...
    def info(self) -> SandboxInfo:
        """Asks for the present facts, without waking the sandbox."""
        ...
    def pause(self) -> Literal["paused", "already_paused"]:
        """Pauses it. Work that comes later resumes it."""
        ...
    def save(self) -> None:
        """Has the persist hook save its work now."""
        ...
    def resume(self) -> None:
        """Resumes it; no effect on a running one."""
        ...
    def stop(self) -> Literal["paused", "already_paused", "left_running", "no_sandbox"]:
        """Lets it rest: the stop hook runs, then it is paused where the provider can."""
        ...
    def destroy(self) -> Literal["destroyed", "already_gone"]:
        """Destroys it with all that belongs to it."""
        ...
    def set_lease(self, lease: float) -> None:
        """Sets the lease to end so many seconds from now."""
        ...

@final
class Process:
    """A process inside a sandbox: iterate over its output. Dropping it leaves the process alone."""

    @property
    def pid(self) -> int: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def exit(self) -> ExitStatus | None:
        """How it ended, once its end was read; None before."""
        ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Output: ...
    def wait(self) -> ExitStatus:
        """Waits for the exit and drops the output on the way."""
        ...
    def write(self, data: bytes | bytearray | str) -> None:
        """Writes to the standard input or to the terminal; a text is written as UTF-8."""
        ...
    def close_stdin(self) -> None:
        """Closes the standard input; a second time is no error."""
        ...
    def resize(self, cols: int, rows: int) -> None:
        """Changes the size of the terminal."""
        ...
    def signal(self, signal: int = 15) -> bool:
        """Sends a signal to the whole process tree; False when the process had ended."""
        ...
    def kill(self) -> bool:
        """Kills the whole process tree; False when it had ended."""
        ...

@final
class Download:
    """The content of a file on its way out of the sandbox, in pieces. One that breaks ends with an error."""

    @property
    def size(self) -> int | None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class Watch:
    """What happens in a watched directory."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> WatchEvent: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class Events:
    """What happens to the sandboxes of a host. Where a listener was too slow, an event of kind `lagged` says so."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Event: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class AsyncSandboxes:
    """The sandboxes of one owner at one provider, for event loops: acquire them by key, let them go, get the same ones back."""

    def __new__(cls, provider: LocalProvider | E2bProvider, **options: Unpack[_HostOptions]) -> Self: ...
    async def acquire(self, key: str, **options: Unpack[_AcquireOptions]) -> AsyncSandbox:
        """Finds, connects or creates the one sandbox of a key."""
        ...
    async def lazy(self, key: str, **options: Unpack[_AcquireOptions]) -> AsyncSandbox:
        """Returns a value of the key's sandbox that is acquired by its first use."""
        ...
    async def find(self, key: str) -> SandboxInfo | None:
        """Looks for the sandbox that a key has, without waking or making one."""
        ...
    async def stop(self, key: str) -> Literal["paused", "already_paused", "left_running", "no_sandbox"]:
        """Lets a key's sandbox rest, without connecting to it."""
        ...
    async def destroy(self, key: str) -> Literal["destroyed", "already_gone"]:
        """Destroys a key's sandbox, without waking it, and forgets its record."""
        ...
    async def events(self) -> AsyncEvents:
        """Listens to what happens to the sandboxes of this host from now on."""
        ...

@final
class AsyncSandbox:
    """A sandbox of a key, for event loops. Leaving its `async with` block lets go of it and leaves the sandbox alone."""

    @property
    def key(self) -> str:
        """The key."""
        ...
    @property
    def owner(self) -> str:
        """The namespace of the key."""
        ...
    @property
    def provider_id(self) -> str | None:
        """The provider's id; None before a lazy value has acquired."""
        ...
    @property
    def provider(self) -> str:
        """The provider's name."""
        ...
    @property
    def generation(self) -> str | None:
        """The identity of this very sandbox."""
        ...
    @property
    def outcome(self) -> Literal["created", "connected"] | None:
        """Whether the acquire made it; None for a value that no acquire returned."""
        ...
    @property
    def facts(self) -> Facts | None:
        """More about how it came; None for a value that no acquire returned."""
        ...
    @property
    def instructions(self) -> str:
        """What a model should know of this sandbox to work in it."""
        ...
    def detach(self) -> None:
        """Lets go of it: this value admits no call any more, and the sandbox stays as it is."""
        ...
    def clone_with(self, **options: Unpack[_CloneOptions]) -> Self:
        """Returns a value for another sandbox of the same spec, acquired by its first use."""
        ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_raised: object) -> None: ...
    async def exec(self, command: _Command, **options: Unpack[_ExecOptions]) -> ExecOutput:
        """Runs a command to completion and captures its output. A list is a program and its arguments, a text a line of shell."""
        ...
    async def shell(self, line: str, **options: Unpack[_ExecOptions]) -> ExecOutput:
        """Runs a line of shell text to completion and captures its output."""
        ...
    async def start(self, command: _Command, **options: Unpack[_StartOptions]) -> AsyncProcess:
        """Starts a process and returns as soon as it runs."""
        ...
    async def attach(self, process: int | str, *, replay: bool = False, stdout: int = 0, stderr: int = 0, pty: int = 0) -> AsyncProcess:
        """Attaches to a process that was started earlier, by this program or another: by its pid or its tag."""
        ...
    async def processes(self) -> builtins.list[ProcessInfo]:
        """Lists the processes that were started through the provider, and kept records of ended ones."""
        ...
    async def signal(self, process: int | str, signal: int = 15) -> bool:
        """Sends a signal to a process and its whole tree; False when it had ended."""
        ...
    async def release(self, process: int | str) -> bool:
        """Forgets the kept output and exit of an ended process; False when nothing was kept."""
        ...
    async def read(self, path: str, *, user: str | None = None, offset: int = 0, length: int | None = None) -> AsyncDownload:
        """Reads a file as a stream of bytes."""
        ...
    async def read_bytes(self, path: str) -> bytes:
        """Reads a whole file of at most 64 MiB."""
        ...
    async def read_text(self, path: str) -> str:
        """Reads a whole text file of at most 64 MiB."""
        ...
    async def write(self, path: str, body: _AsyncBody, *, user: str | None = None, metadata: Mapping[str, str] | None = None, size: int | None = None) -> EntryInfo:
        """Writes a file; parents are created. The body is bytes, text, an open binary file, or an iterable of bytes."""
        ...
    async def write_bytes(self, path: str, content: bytes | bytearray) -> EntryInfo:
        """Writes a whole file."""
        ...
    async def stat(self, path: str, *, user: str | None = None) -> EntryInfo:
        """Returns facts about a file or directory."""
        ...
    async def exists(self, path: str) -> bool:
        """Tells whether a path exists."""
        ...
    async def list(self, path: str, *, user: str | None = None, depth: int = 1) -> builtins.list[EntryInfo]:
        """Lists a directory, depth first, sorted by name."""
        ...
    async def make_dir(self, path: str, *, user: str | None = None) -> EntryInfo:
        """Makes a directory and its parents."""
        ...
    async def rename(self, source: str, destination: str, *, user: str | None = None) -> EntryInfo:
        """Renames a file or directory; parents of the destination are created."""
        ...
    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Removes a file, or a directory with all that is in it; a missing one is no error."""
        ...
    async def watch(self, path: str, *, user: str | None = None, recursive: bool = False, include_entry: bool = False) -> AsyncWatch:
        """Watches a directory; it is in force when the call returns."""
        ...
    async def info(self) -> SandboxInfo:
        """Asks for the present facts, without waking the sandbox."""
        ...
    async def pause(self) -> Literal["paused", "already_paused"]:
        """Pauses it. Work that comes later resumes it."""
        ...
    async def save(self) -> None:
        """Has the persist hook save its work now."""
        ...
    async def resume(self) -> None:
        """Resumes it; no effect on a running one."""
        ...
    async def stop(self) -> Literal["paused", "already_paused", "left_running", "no_sandbox"]:
        """Lets it rest: the stop hook runs, then it is paused where the provider can."""
        ...
    async def destroy(self) -> Literal["destroyed", "already_gone"]:
        """Destroys it with all that belongs to it."""
        ...
    async def set_lease(self, lease: float) -> None:
        """Sets the lease to end so many seconds from now."""
        ...

@final
class AsyncProcess:
    """A process inside a sandbox, for event loops: iterate over its output. Dropping it leaves the process alone."""

    @property
    def pid(self) -> int: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def exit(self) -> ExitStatus | None:
        """How it ended, once its end was read; None before."""
        ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Output: ...
    async def wait(self) -> ExitStatus:
        """Waits for the exit and drops the output on the way."""
        ...
    async def write(self, data: bytes | bytearray | str) -> None:
        """Writes to the standard input or to the terminal; a text is written as UTF-8."""
        ...
    async def close_stdin(self) -> None:
        """Closes the standard input; a second time is no error."""
        ...
    async def resize(self, cols: int, rows: int) -> None:
        """Changes the size of the terminal."""
        ...
    async def signal(self, signal: int = 15) -> bool:
        """Sends a signal to the whole process tree; False when the process had ended."""
        ...
    async def kill(self) -> bool:
        """Kills the whole process tree; False when it had ended."""
        ...

@final
class AsyncDownload:
    """The content of a file on its way out of the sandbox, in pieces. One that breaks ends with an error."""

    @property
    def size(self) -> int | None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> bytes: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_raised: object) -> None: ...

@final
class AsyncWatch:
    """What happens in a watched directory."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> WatchEvent: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_raised: object) -> None: ...

@final
class AsyncEvents:
    """What happens to the sandboxes of a host. Where a listener was too slow, an event of kind `lagged` says so."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Event: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_raised: object) -> None: ...
