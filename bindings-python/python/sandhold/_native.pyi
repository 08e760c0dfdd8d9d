"""The native part of the package `sandhold`."""

import builtins
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, final, type_check_only

from typing_extensions import Self, Unpack, disjoint_base

from ._errors import SandboxError

_Bytes = builtins.bytes
_Path = str | os.PathLike[str]
_Command = str | Sequence[str]
_Memory = Literal["kept", "lost"]
_State = Literal["running", "paused", "stopped", "transitioning"]
_Phase = Literal["creating", "ready", "pausing", "paused", "resuming", "destroying"]
_Disposal = Literal["keep", "remove"]
_Depth = Literal["reachable", "sums", "content"]
_T_co = TypeVar("_T_co", covariant=True)
_S_co = TypeVar("_S_co", bound=Sandbox | AsyncSandbox, covariant=True)

@type_check_only
class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | str: ...

_Body = bytes | bytearray | str | _Readable | Iterable[bytes | str]
_AsyncBody = _Body | AsyncIterable[bytes | str]

_Hook = Callable[[Sandbox], object] | Callable[[AsyncSandbox], Awaitable[object]]

@type_check_only
class _Hooks(TypedDict, total=False):
    """Callables of hooks: a coroutine function gets an `AsyncSandbox`, any other one a `Sandbox`.

    `secrets` returns files that are put in place before `on_start` runs.
    """

    secrets: (
        Callable[[Sandbox], list[FreshFile] | None] | Callable[[AsyncSandbox], Awaitable[list[FreshFile] | None]] | None
    )
    on_start: Callable[[Start[Sandbox]], object] | Callable[[Start[AsyncSandbox]], Awaitable[object]] | None
    on_resume: (
        Callable[[Sandbox, Literal["kept", "lost"]], list[FreshFile] | None]
        | Callable[[AsyncSandbox, Literal["kept", "lost"]], Awaitable[list[FreshFile] | None]]
        | None
    )
    on_stop: _Hook | None
    on_destroy: _Hook | None
    on_event: Callable[[Event], object] | None
    setup_version: int | None
    runs_on_every_start: bool | None
    hook_deadline: float | None  # Of one hook. Default 900 s.

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
    on_resume_failure: Literal["keep", "destroy"] | None
    exclusion: Literal["proven", "best_effort"] | None
    call_deadline: float | None  # Of one call to the provider. Default 60 s.
    deadline: float | None  # Of the whole acquire. Default 180 s.

@type_check_only
class _HostOptions(_Hooks, total=False):
    """What a host is made with. `registry` is memory:, file:/directory, sqlite:/path or postgres://..."""

    registry: str | Registry | AsyncRegistry | None
    persist: VaultHook | _SyncPersistHook | _AsyncPersistHook | None
    providers: Providers | None
    owner: str | None
    wait_limit: float | None
    record_lease: float | None  # Of a key, without renewal. Default 90 s.
    event_capacity: int | None  # Kept for a slow listener. Default 256.

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

    timeout: float | None  # 0 is none. Default 60 s.
    stdin: bytes | bytearray | str | None
    output_limit: int | None  # Of each stream; the tail is kept. Default 1 MiB.
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
    network: _Network | None
    retry: _Retry | None
    default_template: DefaultTemplate | None

@type_check_only
class _Network(TypedDict, total=False):
    """What sandboxes reach, in E2B's words; `egress_proxy` has `address`, and `username` and `password` where needed."""

    allow_out: Sequence[str] | None
    deny_out: Sequence[str] | None
    allow_public_traffic: bool | None
    mask_request_host: str | None
    https_ports: Sequence[int] | None
    rules: Mapping[str, Any] | None
    egress_proxy: Mapping[str, Any] | None

@type_check_only
class _NetworkUpdate(TypedDict, total=False):
    """The whole network policy of a running sandbox, in E2B's words."""

    allow_out: Sequence[str] | None
    deny_out: Sequence[str] | None
    rules: Mapping[str, Any] | None
    egress_proxy: Mapping[str, Any] | None
    allow_internet_access: bool | None

@type_check_only
class _Retry(TypedDict, total=False):
    """How often and how fast a request is sent again; times in seconds."""

    max_retries: int | None
    initial_backoff: float | None
    max_backoff: float | None
    budget: float | None

@type_check_only
class _BuildOptions(TypedDict, total=False):
    """How a template is built."""

    tags: Sequence[str] | None
    cpu_count: int | None
    memory_mb: int | None
    force: bool | None

@type_check_only
class _CaptureRules(TypedDict, total=False):
    """What is captured. Files above `max_file` bytes are left out, default 10 MiB; 0 is no limit."""

    max_file: int | None
    keep_last: bool | None
    never: Sequence[str] | None
    skip_env_files: bool | None
    skip_private_keys: bool | None

@type_check_only
class _CaptureOptions(_CaptureRules, total=False):
    """How a snapshot is taken. `progress` is told phase, files, files in all and bytes."""

    label: str | None
    agent: str | None
    retention: str | None
    survive_paths: Sequence[_Path] | None
    survive_globs: Sequence[str] | None
    survive_git: bool | None
    mtimes: bool | None
    xattrs: bool | None
    history: bool | None
    dirty: Sequence[_Path] | None
    budget: float | None
    threads: int | None
    force: bool | None
    progress: Callable[[Literal["scanning", "storing", "restoring"], int, int | None, int], object] | None

@type_check_only
class _RestoreOptions(TypedDict, total=False):
    """How a snapshot is written back. `progress` is told phase, files, files in all and bytes."""

    on_dirty: Literal["refuse", "capture"] | None
    on_unfit: Literal["refuse", "rename"] | None
    sync: bool | None
    budget: float | None
    threads: int | None
    force: bool | None
    progress: Callable[[Literal["scanning", "storing", "restoring"], int, int | None, int], object] | None

@type_check_only
class _Retention(TypedDict, total=False):
    """How long snapshots are kept, in seconds; 0 is for ever. Default 14 days of runs, 7 of what somebody asked for."""

    runs: float | None
    manual: float | None
    max_count: int | None
    max_bytes: int | None
    require_mirror: bool | None
    superseded: bool | None
    dry: bool | None

@type_check_only
class _BundleLimits(TypedDict, total=False):
    """How much a bundle may make of itself, in bytes and objects."""

    max_file: int | None
    max_objects: int | None
    max_object: int | None
    max_inflated: int | None
    budget: float | None

@type_check_only
class _ImportOptions(_BundleLimits, total=False):
    id: str | None
    expected: str | None
    incremental: bool | None
    any_repository: bool | None

@type_check_only
class _AdoptOptions(_BundleLimits, total=False):
    reference: str | None
    expected: str | None
    incremental: bool | None
    label: str | None
    retention: str | None

@type_check_only
class _MirrorOptions(TypedDict, total=False):
    """What goes there: nothing, what is asked for, or all. Default `manual`."""

    prefix: str | None
    mode: Literal["off", "manual", "all"] | None
    max_object_mb: int | None
    multipart_above_mb: int | None

@type_check_only
class _S3Options(_MirrorOptions, total=False):
    region: str | None
    endpoint: str | None
    path_style: bool | None
    allow_http: bool | None
    access_key_env: str | None
    secret_key_env: str | None
    session_token_env: str | None

@type_check_only
class _GcsOptions(_MirrorOptions, total=False):
    endpoint: str | None
    service_account_env: str | None
    access_token_env: str | None

@type_check_only
class _AzureOptions(_MirrorOptions, total=False):
    endpoint: str | None
    access_key_env: str | None
    sas_token_env: str | None

@type_check_only
class _VaultHookOptions(TypedDict, total=False):
    """Work is saved every `interval` seconds too, default 300; 0 is never."""

    interval: float | None
    capture: _CaptureOptions | None
    restore: _RestoreOptions | None
    mirror: MirrorConfig | None

@type_check_only
class _SyncPersistHook(Protocol):
    """An object that keeps work; its `interval`, where it has one, says how often `tick` runs, in seconds."""

    def restore(self, sandbox: Sandbox, reason: Literal["created", "replaced"], /) -> RestoreReport | None: ...
    def before_pause(self, sandbox: Sandbox, /) -> object: ...
    def before_destroy(self, sandbox: Sandbox, /) -> object: ...
    def tick(self, sandbox: Sandbox, /) -> object: ...

@type_check_only
class _AsyncPersistHook(Protocol):
    """As `_SyncPersistHook`, of coroutines."""

    async def restore(self, sandbox: AsyncSandbox, reason: Literal["created", "replaced"], /) -> RestoreReport | None: ...
    async def before_pause(self, sandbox: AsyncSandbox, /) -> object: ...
    async def before_destroy(self, sandbox: AsyncSandbox, /) -> object: ...
    async def tick(self, sandbox: AsyncSandbox, /) -> object: ...

__all__ = [
    "Abandoned",
    "AssignedTags",
    "AsyncDownload",
    "AsyncE2bProvider",
    "AsyncEvents",
    "AsyncItems",
    "AsyncLocalProvider",
    "AsyncMirror",
    "AsyncProcess",
    "AsyncProvider",
    "AsyncReconciler",
    "AsyncRegistry",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncSecrets",
    "AsyncSession",
    "AsyncTemplateBuild",
    "AsyncTemplates",
    "AsyncVault",
    "AsyncVolumeContent",
    "AsyncVolumes",
    "AsyncWatch",
    "BuildAnswer",
    "BuildInfo",
    "Bundle",
    "BundleHeader",
    "Capabilities",
    "Captured",
    "Collected",
    "DefaultTemplate",
    "Download",
    "E2bProvider",
    "EntryInfo",
    "Event",
    "Events",
    "Examined",
    "ExecOutput",
    "ExitStatus",
    "Facts",
    "Fetched",
    "Finding",
    "Flaw",
    "FreshFile",
    "Imported",
    "Isolation",
    "Items",
    "Kept",
    "Kind",
    "LocalProvider",
    "LogLine",
    "Metrics",
    "Mirror",
    "MirrorConfig",
    "MirroredRepo",
    "MirroredSnapshot",
    "MirroredSnapshots",
    "Missing",
    "Mount",
    "Orphan",
    "OrphanReport",
    "Output",
    "PersistConfig",
    "PersistSettings",
    "PortAccess",
    "Process",
    "ProcessInfo",
    "Promise",
    "Provider",
    "Providers",
    "Pruned",
    "Receipt",
    "Recipe",
    "ReconcilePlan",
    "Reconciler",
    "Record",
    "Registry",
    "RemoteCopy",
    "Repaired",
    "RepositoryRepaired",
    "RestoreReport",
    "Restored",
    "RestoredBranch",
    "Resumed",
    "Sandbox",
    "SandboxAccess",
    "SandboxInfo",
    "Sandboxes",
    "SecretInfo",
    "Secrets",
    "Session",
    "SettingsChange",
    "Snapshot",
    "SnapshotInfo",
    "Start",
    "Step",
    "StepOutcome",
    "Tag",
    "Template",
    "TemplateBuild",
    "Templates",
    "Unfinished",
    "Vault",
    "VaultHook",
    "Verified",
    "Volume",
    "VolumeContent",
    "VolumeEntry",
    "Volumes",
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
    def replaced_because(self) -> Literal["gone", "other_spec"] | None: ...
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
    def receipt(self) -> Any: ...
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

    def __new__(cls, home: _Path, key: str, path: str, **options: Unpack[_VaultHookOptions]) -> Self: ...
    @staticmethod
    def of(vault: Vault | AsyncVault, path: str, **options: Unpack[_VaultHookOptions]) -> VaultHook:
        """Keeps work in this vault."""
        ...
    def apply(self, config: PersistConfig) -> None:
        """Goes by other settings from now on: the interval, the rules of captures, and the mirror."""
        ...

@final
class Capabilities:
    """What a provider can do. A call that is not covered is `unsupported` before anything happens. Times in seconds."""

    @property
    def list_visibility(self) -> float | None:
        """How long after a create a listing may miss it; None when the provider states no bound."""
        ...
    @property
    def create_settle(self) -> float | None:
        """The longest create plus `list_visibility`; None when the provider states no bound."""
        ...
    @property
    def idempotent_create(self) -> bool:
        """Creates with the same attempt yield the same sandbox."""
        ...
    @property
    def find_without_waking(self) -> bool:
        """A look never wakes a paused sandbox."""
        ...
    @property
    def tags(self) -> bool:
        """Owner, key, generation and attempt are kept with the sandbox."""
        ...
    @property
    def pause(self) -> bool:
        """Sandboxes can be paused."""
        ...
    @property
    def pause_keeps_memory(self) -> bool:
        """A paused sandbox keeps its processes and memory."""
        ...
    @property
    def pause_without_memory(self) -> bool:
        """A pause can be asked to keep only the files."""
        ...
    @property
    def lease(self) -> bool:
        """Leases are enforced."""
        ...
    @property
    def max_lease(self) -> float | None:
        """The longest lease; None for no limit."""
        ...
    @property
    def snapshot(self) -> bool:
        """Snapshots can be taken, listed, deleted, and named as a template."""
        ...
    @property
    def snapshot_keeps_memory(self) -> bool:
        """A snapshot stores the processes too."""
        ...
    @property
    def fork(self) -> bool:
        """A running sandbox can be forked."""
        ...
    @property
    def metrics(self) -> bool:
        """It tells measurements."""
        ...
    @property
    def logs(self) -> bool:
        """It tells log lines."""
        ...
    @property
    def update_network(self) -> bool:
        """The network of a running sandbox can be changed."""
        ...
    @property
    def dial(self) -> bool:
        """Ports inside can be reached."""
        ...
    @property
    def retained_output(self) -> bool:
        """Output of a process can be kept in the sandbox and replayed by offset."""
        ...
    @property
    def signal_tree(self) -> bool:
        """Signals reach the whole process tree."""
        ...
    @property
    def host_mounts(self) -> bool:
        """Host directories can be mounted."""
        ...
    @property
    def egress_policy(self) -> bool:
        """The sandbox reaches no further than `network` says."""
        ...
    @property
    def port_auth(self) -> bool:
        """Ports that the provider exposes to the network ask for a token."""
        ...
    @property
    def binary_exec(self) -> bool:
        """Input and output of commands are bytes, and arrive as they are."""
        ...

@final
class SnapshotInfo:
    """A snapshot that a provider keeps."""

    @property
    def id(self) -> str:
        """Its id, which is a template's name too."""
        ...
    @property
    def names(self) -> list[str]:
        """Its names."""
        ...
    @property
    def created_at(self) -> datetime | None:
        """When it was taken."""
        ...
    @property
    def sandbox(self) -> str | None:
        """The sandbox that it was taken of."""
        ...

@final
class LogLine:
    """A line of a sandbox's log."""

    @property
    def at(self) -> datetime:
        """When it was written."""
        ...
    @property
    def level(self) -> str:
        """Its level, in the provider's word."""
        ...
    @property
    def message(self) -> str:
        """The text."""
        ...

@final
class Metrics:
    """What a sandbox uses. Sizes in bytes."""

    @property
    def at(self) -> datetime | None:
        """When it was measured."""
        ...
    @property
    def cpu_count(self) -> float:
        """How many processors it has."""
        ...
    @property
    def cpu_used_percent(self) -> float:
        """How much of one processor it uses, in percent."""
        ...
    @property
    def memory_used(self) -> int:
        """Memory in use."""
        ...
    @property
    def memory_cache(self) -> int:
        """Memory that caches hold."""
        ...
    @property
    def memory_total(self) -> int:
        """Memory that it may use."""
        ...
    @property
    def disk_used(self) -> int:
        """Disk in use."""
        ...
    @property
    def disk_total(self) -> int:
        """Disk that it may use."""
        ...

@final
class Abandoned:
    """A create attempt that was given up."""

    @property
    def attempt(self) -> str:
        """The attempt."""
        ...
    @property
    def at(self) -> datetime:
        """When it was given up."""
        ...

@final
class Record:
    """What is kept about one key. Secrets are never in it."""

    @property
    def owner(self) -> str:
        """The namespace of the key."""
        ...
    @property
    def key(self) -> str:
        """The key."""
        ...
    @property
    def version(self) -> int:
        """Counts the stores."""
        ...
    @property
    def fence(self) -> int:
        """The fencing number of the lease under which it was last stored."""
        ...
    @property
    def provider(self) -> str:
        """The provider's name."""
        ...
    @property
    def fingerprint(self) -> str:
        """The provider's endpoint and credential scope."""
        ...
    @property
    def id(self) -> str | None:
        """The provider's id; None while the first create is open."""
        ...
    @property
    def generation(self) -> str:
        """The identity of the sandbox."""
        ...
    @property
    def attempt(self) -> str:
        """The create call that made it or is to make it."""
        ...
    @property
    def phase(self) -> Literal["creating", "ready", "pausing", "paused", "resuming", "destroying"]:
        """What it is going through: `creating`, `ready`, `pausing`, `paused`, `resuming` or `destroying`."""
        ...
    @property
    def phase_since(self) -> datetime:
        """When the phase was entered, by the writer's clock."""
        ...
    @property
    def spec(self) -> dict[str, Any]:
        """How it was to be made, as it is stored."""
        ...
    @property
    def setup_done(self) -> int | None:
        """The version of the setup hook that completed; None until one has."""
        ...
    @property
    def abandoned(self) -> list[Abandoned]:
        """Attempts that were given up and not yet forgotten."""
        ...
    @property
    def replaces(self) -> str | None:
        """The sandbox that is gone, and whose place the next one takes."""
        ...
    @property
    def replaced_because(self) -> Literal["gone", "other_spec"] | None:
        """Why it takes that one's place, or has taken it: `gone` or `other_spec`."""
        ...

@final
class Finding:
    """Something that provider and registry do not agree about, or that nobody has finished."""

    @property
    def kind(self) -> Literal["untagged", "unrecorded", "duplicate", "abandoned", "open_create", "open_destroy", "missing", "elsewhere", "mismatched", "spent"]:
        """What is wrong, such as `unrecorded`, `duplicate` or `missing`."""
        ...
    @property
    def owner(self) -> str | None:
        """The namespace of the key."""
        ...
    @property
    def key(self) -> str | None:
        """The key."""
        ...
    @property
    def info(self) -> SandboxInfo | None:
        """The sandbox that it is about, where the provider has one."""
        ...
    @property
    def record(self) -> Record | None:
        """The record that it is about, where the registry's side is what is wrong."""
        ...
    @property
    def keeps(self) -> str | None:
        """The sandbox that the key keeps, of a duplicate."""
        ...
    @property
    def made(self) -> str | None:
        """The sandbox of the attempt, of an open create."""
        ...

@final
class Kept:
    """Something that a plan leaves alone."""

    @property
    def finding(self) -> Finding:
        """What it is."""
        ...
    @property
    def why(self) -> Literal["policy", "not_ours", "too_young", "acquire"]:
        """Why: `policy`, `not_ours`, `too_young` or `acquire`."""
        ...

@final
class Missing:
    """Something that was declared to survive and is not in the snapshot."""

    @property
    def what(self) -> str:
        """The path or the pattern, or `git`."""
        ...
    @property
    def why(self) -> str:
        """Why, such as `too_large` or `not_found`."""
        ...

@final
class Promise:
    """A file or symlink that a restore will bring back."""

    @property
    def path(self) -> str:
        """Where it is."""
        ...
    @property
    def mode(self) -> int:
        """The mode as git has it."""
        ...
    @property
    def id(self) -> str:
        """The id of its content."""
        ...

@final
class Receipt:
    """What a capture answers to a declaration; a restore is held to it."""

    @property
    def promised(self) -> list[Promise]:
        """What will be there after a restore."""
        ...
    @property
    def head(self) -> str | None:
        """The commit whose history is in the vault."""
        ...
    @property
    def missing(self) -> list[Missing]:
        """What was declared and did not get in."""
        ...
    @property
    def is_complete(self) -> bool:
        """All that was declared is in the snapshot."""
        ...

@final
class RemoteCopy:
    """A copy of a snapshot in a bucket, as far as this machine knows."""

    @property
    def bucket(self) -> str:
        """The bucket."""
        ...
    @property
    def key(self) -> str:
        """The key of the bundle; empty where nothing was uploaded."""
        ...
    @property
    def uploaded_at(self) -> datetime | None:
        """When it was uploaded."""
        ...
    @property
    def commit(self) -> str | None:
        """The commit that was uploaded."""
        ...
    @property
    def bytes(self) -> int | None:
        """The size of the bundle."""
        ...
    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the bundle."""
        ...
    @property
    def error(self) -> str | None:
        """Why the last upload failed."""
        ...

@final
class Snapshot:
    """What a vault knows of a snapshot."""

    @property
    def id(self) -> str:
        """The id."""
        ...
    @property
    def repo(self) -> str:
        """The name of the vault."""
        ...
    @property
    def workspace(self) -> Path:
        """The workspace that was captured."""
        ...
    @property
    def sandbox(self) -> str | None:
        """The sandbox whose workspace it is of, and the path inside; None for a directory of this machine."""
        ...
    @property
    def status(self) -> Literal["baseline", "snapshot", "open", "interrupted", "exited", "failed", "clean"]:
        """How it is best called: `baseline`, `snapshot`, `open`, `interrupted`, `exited`, `failed` or `clean`."""
        ...
    @property
    def started_at(self) -> datetime:
        """When the session began."""
        ...
    @property
    def captured_at(self) -> datetime:
        """When the newest state was captured."""
        ...
    @property
    def ended_at(self) -> datetime | None:
        """When the session ended."""
        ...
    @property
    def outcome(self) -> Literal["clean", "signalled", "failed", "manual", "baseline"] | None:
        """How the session ended: `clean`, `signalled`, `failed`, `manual` or `baseline`."""
        ...
    @property
    def exit_code(self) -> int | None:
        """The exit code of what ran."""
        ...
    @property
    def captures(self) -> int:
        """How many states the session has captured."""
        ...
    @property
    def label(self) -> str | None:
        """The name that people gave it."""
        ...
    @property
    def source(self) -> Literal["run", "sdk"]:
        """Who asked for it: `run` or `sdk`."""
        ...
    @property
    def agent(self) -> str | None:
        """The agent that worked in the workspace."""
        ...
    @property
    def retention(self) -> str | None:
        """How long it is to be kept, such as `168h`."""
        ...
    @property
    def commit(self) -> str:
        """The commit that holds the newest state."""
        ...
    @property
    def tree(self) -> str:
        """The tree of that commit."""
        ...
    @property
    def branch(self) -> str | None:
        """The branch that the workspace was on."""
        ...
    @property
    def head(self) -> str | None:
        """The commit that the workspace was at."""
        ...
    @property
    def head_at_start(self) -> str | None:
        """The commit that the workspace was at when the session began."""
        ...
    @property
    def has_history(self) -> bool:
        """`head` is in the vault with all its history."""
        ...
    @property
    def files(self) -> int:
        """Files that were captured."""
        ...
    @property
    def bytes(self) -> int:
        """Their bytes."""
        ...
    @property
    def skipped(self) -> int:
        """Paths that were not captured, or not as they should be."""
        ...
    @property
    def receipt(self) -> Receipt | None:
        """What was to survive, and did."""
        ...
    @property
    def remote(self) -> RemoteCopy | None:
        """The copy in a bucket."""
        ...
    @property
    def is_mirrored(self) -> bool:
        """Its newest state is in the mirror, as far as is known."""
        ...

@final
class Restored:
    """What a restore did."""

    @property
    def id(self) -> str:
        """The snapshot."""
        ...
    @property
    def target(self) -> Path:
        """Where it was written."""
        ...
    @property
    def written(self) -> int:
        """Files that were written."""
        ...
    @property
    def untouched(self) -> int:
        """Files that were as they should be."""
        ...
    @property
    def deleted(self) -> int:
        """Files that were deleted."""
        ...
    @property
    def saved(self) -> str | None:
        """The snapshot of what was there before."""
        ...
    @property
    def renamed(self) -> list[tuple[str, str]]:
        """What has another name there than in the snapshot, and which."""
        ...
    @property
    def submodules(self) -> list[str]:
        """Submodules whose repositories have to be fetched."""
        ...
    @property
    def warnings(self) -> list[str]:
        """What else whoever restores should know."""
        ...

@final
class RestoredBranch:
    """A branch that a snapshot was put on."""

    @property
    def name(self) -> str:
        """Its name."""
        ...
    @property
    def commit(self) -> str:
        """The commit that it is at."""
        ...
    @property
    def was_there(self) -> bool:
        """It was there, at this very commit."""
        ...
    @property
    def files(self) -> int:
        """How many files it has."""
        ...
    @property
    def matches_workspace(self) -> bool:
        """The workspace is as the branch is."""
        ...

@final
class Unfinished:
    """A restore that was begun and has not ended: run it again."""

    @property
    def id(self) -> str:
        """The snapshot."""
        ...
    @property
    def target(self) -> Path:
        """Where it is written."""
        ...
    @property
    def is_new(self) -> bool:
        """The target was made by it."""
        ...
    @property
    def over(self) -> str | None:
        """The snapshot of what is overwritten."""
        ...
    @property
    def writes(self) -> list[str]:
        """What it writes."""
        ...
    @property
    def deletes(self) -> list[str]:
        """What it deletes."""
        ...

@final
class Bundle:
    """A file that holds a snapshot."""

    @property
    def id(self) -> str:
        """The snapshot."""
        ...
    @property
    def commit(self) -> str:
        """Its commit."""
        ...
    @property
    def path(self) -> Path:
        """Where the file is."""
        ...
    @property
    def bytes(self) -> int:
        """Its size."""
        ...
    @property
    def sha256(self) -> str:
        """The SHA-256 of the file."""
        ...
    @property
    def objects(self) -> int:
        """Objects in it."""
        ...
    @property
    def prerequisites(self) -> list[str]:
        """Commits that whoever reads it has to have."""
        ...

@final
class BundleHeader:
    """What a bundle says of itself; nothing of it is checked."""

    @property
    def refs(self) -> list[tuple[str, str]]:
        """Names, and the commits that they stand for."""
        ...
    @property
    def prerequisites(self) -> list[str]:
        """Commits that whoever reads it has to have."""
        ...

@final
class Imported:
    """What was taken from a bundle."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot, which is now in the vault."""
        ...
    @property
    def provenance(self) -> Literal["known", "bundle_alone"]:
        """How it is known that it is the one that was made: `known` or `bundle_alone`."""
        ...
    @property
    def objects(self) -> int:
        """Objects that the vault did not have."""
        ...
    @property
    def was_here(self) -> bool:
        """The vault had the snapshot already."""
        ...

@final
class Flaw:
    """What is wrong with an object, or with a snapshot as such."""

    @property
    def object(self) -> str | None:
        """The object."""
        ...
    @property
    def what(self) -> str:
        """What is wrong."""
        ...

@final
class Examined:
    """A snapshot that was looked at."""

    @property
    def id(self) -> str:
        """The snapshot."""
        ...
    @property
    def depth(self) -> Literal["reachable", "sums", "content"]:
        """How closely: `reachable`, `sums` or `content`."""
        ...
    @property
    def objects(self) -> int:
        """Objects that were looked at."""
        ...
    @property
    def flaws(self) -> list[Flaw]:
        """What is wrong."""
        ...
    @property
    def is_good(self) -> bool:
        """Nothing is wrong."""
        ...

@final
class Collected:
    """What a collection of garbage did."""

    @property
    def packs(self) -> int:
        """Packs that are there now."""
        ...
    @property
    def deleted(self) -> int:
        """Packs that were deleted."""
        ...
    @property
    def copied(self) -> int:
        """Objects that were copied to a new pack."""
        ...
    @property
    def freed(self) -> int:
        """Bytes that are free now."""
        ...

@final
class Pruned:
    """What a look at all snapshots led to."""

    @property
    def removed(self) -> list[str]:
        """Snapshots that were deleted, or would be, the oldest first."""
        ...
    @property
    def kept(self) -> dict[str, Literal["last_good", "live", "not_mirrored", "restoring", "moved"]]:
        """Snapshots that stay though a limit would have them go, and why: `last_good`, `live`, `not_mirrored`, `restoring` or `moved`."""
        ...

@final
class RepositoryRepaired:
    """What was done to the repository of a workspace, and what was left to its user."""

    @property
    def worktree(self) -> Path | None:
        """The directory of git of a linked worktree, where it was gone and was made again."""
        ...
    @property
    def locks(self) -> list[str]:
        """Locks that were removed, by their names."""
        ...
    @property
    def held(self) -> list[str]:
        """Locks that are too young: somebody may be at work."""
        ...
    @property
    def in_progress(self) -> list[Literal["merge", "rebase", "cherry_pick", "revert", "bisect"]]:
        """What is going on there, and is never touched."""
        ...

@final
class Repaired:
    """What a repair did."""

    @property
    def records(self) -> list[str]:
        """Snapshots whose record was written anew."""
        ...
    @property
    def refs(self) -> list[str]:
        """Snapshots whose name in git was written anew."""
        ...
    @property
    def indexes(self) -> int:
        """Packs whose index was made again."""
        ...
    @property
    def packs(self) -> int:
        """Packs with damaged objects, whose good ones were copied."""
        ...
    @property
    def lost(self) -> list[str]:
        """Objects that are lost."""
        ...
    @property
    def incomplete(self) -> list[str]:
        """Snapshots that lack some of them."""
        ...

@final
class MirroredRepo:
    """A vault that a mirror has something of."""

    @property
    def key(self) -> str:
        """Its name."""
        ...
    @property
    def snapshots(self) -> int:
        """How many snapshots."""
        ...
    @property
    def newest(self) -> str:
        """The newest of them."""
        ...
    @property
    def bytes(self) -> int:
        """The size of all bundles."""
        ...

@final
class MirroredSnapshot:
    """A snapshot that a mirror has."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot."""
        ...
    @property
    def is_whole(self) -> bool:
        """Its bundle is there and has its size."""
        ...

@final
class MirroredSnapshots:
    """The snapshots of a vault that a mirror has."""

    @property
    def snapshots(self) -> list[MirroredSnapshot]:
        """The newest of them."""
        ...
    @property
    def total(self) -> int:
        """How many there are in all."""
        ...
    @property
    def unreadable(self) -> list[str]:
        """Those whose manifest cannot be read."""
        ...

@final
class Fetched:
    """A snapshot that came from a mirror."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot, which is now in the vault."""
        ...
    @property
    def provenance(self) -> Literal["known", "bundle_alone"]:
        """How it is known that it is the one that was made: `known` or `bundle_alone`."""
        ...
    @property
    def was_here(self) -> bool:
        """The vault had it already."""
        ...

@final
class Verified:
    """A copy that was found as it should be."""

    @property
    def level(self) -> Literal["head", "digest", "full"]:
        """Which look it was: `head`, `digest` or `full`."""
        ...
    @property
    def provenance(self) -> Literal["known", "bundle_alone"]:
        """Whether it is what was uploaded from here, `known`, or is as the mirror says it is, `bundle_alone`."""
        ...
    @property
    def key(self) -> str:
        """The key of the bundle."""
        ...
    @property
    def bytes(self) -> int:
        """The size of the bundle."""
        ...
    @property
    def sha256(self) -> str | None:
        """Its SHA-256, where all of it was read."""
        ...

@final
class PortAccess:
    """Where a port answers over HTTP, and what requests to it must carry."""

    @property
    def url(self) -> str:
        """The URL, without a path."""
        ...
    @property
    def headers(self) -> dict[str, str]:
        """Headers for every request."""
        ...

@final
class SecretInfo:
    """A secret of the account; its value is never told."""

    @property
    def secret_id(self) -> str:
        """Its id."""
        ...
    @property
    def name(self) -> str:
        """Its name."""
        ...
    @property
    def current_version(self) -> int:
        """How often it got a value."""
        ...
    @property
    def metadata(self) -> dict[str, str]:
        """Free text pairs kept with it."""
        ...
    @property
    def created_at(self) -> datetime | None:
        """When it was made."""
        ...
    @property
    def updated_at(self) -> datetime | None:
        """When it last got a value."""
        ...

@final
class Volume:
    """A volume of the account."""

    @property
    def volume_id(self) -> str:
        """Its id."""
        ...
    @property
    def name(self) -> str:
        """Its name."""
        ...

@final
class VolumeEntry:
    """A path in a volume."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        ...
    @property
    def path(self) -> str:
        """The path."""
        ...
    @property
    def file_type(self) -> Literal["file", "directory", "symlink", "other"]:
        """What it is: `file`, `directory`, `symlink` or `other`."""
        ...
    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...
    @property
    def mode(self) -> int:
        """The permission bits."""
        ...
    @property
    def uid(self) -> int:
        """The owner's number."""
        ...
    @property
    def gid(self) -> int:
        """The group's number."""
        ...
    @property
    def accessed_at(self) -> datetime:
        """When it was last read."""
        ...
    @property
    def modified_at(self) -> datetime:
        """When the content was last modified."""
        ...
    @property
    def changed_at(self) -> datetime:
        """When it was last changed."""
        ...
    @property
    def symlink_target(self) -> str | None:
        """Where a symbolic link leads."""
        ...

@final
class BuildInfo:
    """A build of a template."""

    @property
    def build_id(self) -> str:
        """Its id."""
        ...
    @property
    def status(self) -> Literal["waiting", "building", "ready", "error"]:
        """How far it is: `waiting`, `building`, `ready` or `error`."""
        ...
    @property
    def created_at(self) -> datetime:
        """When it was asked for."""
        ...
    @property
    def updated_at(self) -> datetime:
        """When it last changed."""
        ...
    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        ...
    @property
    def cpu_count(self) -> int:
        """Cores of its sandboxes."""
        ...
    @property
    def memory_mb(self) -> int:
        """Memory of its sandboxes in MiB."""
        ...
    @property
    def disk_size_mb(self) -> int | None:
        """Disk of its sandboxes in MiB."""
        ...
    @property
    def envd_version(self) -> str | None:
        """The version of the daemon inside."""
        ...

@final
class Template:
    """A template."""

    @property
    def template_id(self) -> str:
        """Its id."""
        ...
    @property
    def build_id(self) -> str:
        """The build that it stands for."""
        ...
    @property
    def public(self) -> bool:
        """Other accounts may use it."""
        ...
    @property
    def names(self) -> list[str]:
        """Its names."""
        ...
    @property
    def aliases(self) -> list[str]:
        """Its names without the account's."""
        ...
    @property
    def created_at(self) -> datetime:
        """When it was made."""
        ...
    @property
    def updated_at(self) -> datetime:
        """When it last changed."""
        ...
    @property
    def last_spawned_at(self) -> datetime | None:
        """When a sandbox was last made from it."""
        ...
    @property
    def spawn_count(self) -> int:
        """How many sandboxes were made from it."""
        ...
    @property
    def build_count(self) -> int:
        """How many builds it had."""
        ...
    @property
    def build_status(self) -> Literal["waiting", "building", "ready", "error"] | None:
        """How far its newest build is."""
        ...
    @property
    def cpu_count(self) -> int:
        """Cores of its sandboxes."""
        ...
    @property
    def memory_mb(self) -> int:
        """Memory of its sandboxes in MiB."""
        ...
    @property
    def disk_size_mb(self) -> int:
        """Disk of its sandboxes in MiB."""
        ...
    @property
    def envd_version(self) -> str:
        """The version of the daemon inside."""
        ...
    @property
    def builds(self) -> list[BuildInfo] | None:
        """Its builds, where they were asked for."""
        ...

@final
class Tag:
    """A name for one build of a template."""

    @property
    def tag(self) -> str:
        """The tag."""
        ...
    @property
    def build_id(self) -> str:
        """The build."""
        ...
    @property
    def created_at(self) -> datetime:
        """When it was given."""
        ...

@final
class AssignedTags:
    """What a build got."""

    @property
    def build_id(self) -> str:
        """The build."""
        ...
    @property
    def tags(self) -> list[str]:
        """The tags."""
        ...

@final
class BuildAnswer:
    """How far a build is."""

    @property
    def status(self) -> Literal["waiting", "building", "ready", "error"]:
        """`waiting`, `building`, `ready` or `error`."""
        ...
    @property
    def logs(self) -> list[LogLine]:
        """The log from the asked line on."""
        ...
    @property
    def message(self) -> str | None:
        """What went wrong."""
        ...
    @property
    def step(self) -> str | None:
        """The step that went wrong."""
        ...

@final
class PersistConfig:
    """How work is kept: how often it is saved, how long, what of it, and where copies go."""

    def __new__(cls) -> Self: ...
    @staticmethod
    def load(user: _Path | None = None, project: _Path | None = None) -> PersistConfig:
        """Lays the files of a user and of a project over the defaults; one that is not there says nothing."""
        ...
    def with_user_file(self, text: bytes) -> PersistConfig:
        """Lays the text of a user's file over what is settled."""
        ...
    def with_project_file(self, text: bytes) -> PersistConfig:
        """Lays the text of a project's file over what is settled; it may only narrow what is captured."""
        ...
    @property
    def interval(self) -> float | None:
        """How often the work of a sandbox in use is saved, in seconds; None only before pauses and destroys."""
        ...
    @property
    def retention(self) -> _Retention:
        """How long snapshots are kept, as `Vault.prune` takes it."""
        ...
    @property
    def rules(self) -> _CaptureRules:
        """What is captured, as `Vault.capture` takes it."""
        ...
    @property
    def mirror(self) -> MirrorConfig | None:
        """Where copies go; None is nowhere."""
        ...

@final
class SettingsChange:
    """What came of a change of settings."""

    @property
    def changed(self) -> list[str]:
        """The keys that say something else now."""
        ...
    @property
    def pinned(self) -> list[str]:
        """The keys that were left as they are, as a higher layer has fixed them."""
        ...

@final
class PersistSettings:
    """The settings of a host in layers: what its code fixes, over what its user wrote, over what was chosen while it ran."""

    def __new__(cls) -> Self: ...
    @staticmethod
    def load(user: _Path | None = None, chosen: _Path | None = None) -> PersistSettings:
        """Reads the file of a user, and the one that `save` wrote; one that is not there says nothing."""
        ...
    def with_host(self, text: bytes) -> PersistSettings:
        """Returns settings in which the code of the host fixes this, over whatever files and requests say."""
        ...
    def resolve(self) -> PersistConfig:
        """Settles all layers."""
        ...
    def pinned(self) -> list[str]:
        """The keys that can be chosen no more, in order."""
        ...
    def update(self, change: bytes) -> SettingsChange:
        """Changes what was chosen: JSON, where an absent key stays and null takes back what was chosen for it."""
        ...
    def save(self, chosen: _Path) -> None:
        """Writes what was chosen, for `load`."""
        ...

@final
class MirrorConfig:
    """Where copies of snapshots go, and when."""

    @staticmethod
    def s3(bucket: str, **options: Unpack[_S3Options]) -> MirrorConfig:
        """Amazon S3, or a server that speaks its protocol."""
        ...
    @staticmethod
    def gcs(bucket: str, **options: Unpack[_GcsOptions]) -> MirrorConfig:
        """Google Cloud Storage."""
        ...
    @staticmethod
    def azure(account: str, container: str, **options: Unpack[_AzureOptions]) -> MirrorConfig:
        """Azure Blob Storage."""
        ...
    @staticmethod
    def file(path: _Path, **options: Unpack[_MirrorOptions]) -> MirrorConfig:
        """A directory, such as one of a network file system."""
        ...

@final
class Orphan:
    """A bundle of a mirror that no manifest speaks of."""

    @property
    def repo(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def uploaded_at(self) -> datetime: ...
    @property
    def is_superseded(self) -> bool: ...

@final
class Resumed:
    """What became of a queued upload."""

    @property
    def id(self) -> str:
        """The snapshot."""
        ...
    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot with its copy; None where the upload failed."""
        ...
    @property
    def error(self) -> SandboxError | None:
        """Why the upload failed."""
        ...

@final
class RestoreReport:
    """What a restore put back: the snapshot, or None when there was none; and what was promised and found there again."""

    def __new__(cls, snapshot: str | None = None, *, receipt: Any = None) -> Self: ...
    @property
    def snapshot(self) -> str | None: ...
    @property
    def receipt(self) -> Any: ...

@final
class OrphanReport:
    """What was found, and how much was looked at."""

    @property
    def findings(self) -> list[Finding]:
        """What provider and registry do not agree about."""
        ...
    @property
    def sandboxes(self) -> int:
        """How many sandboxes the provider listed."""
        ...
    @property
    def records(self) -> int:
        """How many records the registry listed."""
        ...

@final
class Step:
    """One thing to do. Only a plan makes it."""

    @property
    def finding(self) -> Finding:
        """What it is about."""
        ...
    @property
    def destroys(self) -> str | None:
        """The sandbox that is destroyed; None when only a record is forgotten."""
        ...

@final
class StepOutcome:
    """What became of a step."""

    @property
    def step(self) -> Step:
        """The step."""
        ...
    @property
    def outcome(self) -> Literal["done", "held", "changed", "failed"]:
        """`held`: somebody is at work on its key; `changed`: it is not true any more. Nothing was done then."""
        ...
    @property
    def error(self) -> SandboxError | None:
        """Why it failed."""
        ...

@final
class ReconcilePlan:
    """What is to be done about a report, and what is left alone and why. Nothing has been done yet."""

    @property
    def steps(self) -> list[Step]:
        """What is to be done, in order."""
        ...
    @property
    def kept(self) -> list[Kept]:
        """What is left alone, and why."""
        ...
    def retain(self, keep: Callable[[Step], object]) -> ReconcilePlan:
        """Returns a plan without the steps for which `keep` says no."""
        ...

@final
class SandboxAccess:
    """How a sandbox is reached from elsewhere: by host names, by its tokens, and by URLs that need none."""

    @property
    def traffic_token(self) -> str | None:
        """The token that requests to ports carry, where ports are not open to everybody."""
        ...
    @property
    def envd_token(self) -> str | None:
        """The token of the daemon inside."""
        ...
    def host(self, port: int) -> str:
        """Returns the host of a port, without a scheme."""
        ...
    def port(self, port: int) -> PortAccess:
        """Says how a port is asked over HTTP."""
        ...
    def download_url(self, path: str, *, user: str | None = None, expires: float | None = None) -> str:
        """Returns a URL from which one file can be downloaded without any token; `expires` in seconds from now."""
        ...
    def upload_url(self, path: str, *, user: str | None = None, expires: float | None = None) -> str:
        """Returns a URL to which one file can be uploaded without any token; an empty path leaves it to the upload."""
        ...

@final
class Recipe:
    """How a template is made. Every call returns a recipe with one more step."""

    @staticmethod
    def from_image(image: str) -> Recipe:
        """Starts from a container image, such as `debian:12`."""
        ...
    @staticmethod
    def from_template(template: str) -> Recipe:
        """Starts from another template, such as `base`."""
        ...
    @staticmethod
    def from_dockerfile(path: _Path, *, arguments: Mapping[str, str] | None = None) -> Recipe:
        """Reads a Dockerfile of one stage; its directory is the context of its copies."""
        ...
    @staticmethod
    def from_dockerfile_text(text: str, context: _Path, *, arguments: Mapping[str, str] | None = None) -> Recipe:
        """Reads the text of a Dockerfile; its copies come from `context`."""
        ...
    def with_registry(self, username: str, password: str) -> Recipe:
        """Says how the registry of the image is entered: by a name and a password."""
        ...
    def with_aws_registry(self, access_key_id: str, secret_access_key: str, region: str) -> Recipe:
        """Says how the registry of the image is entered: Amazon's."""
        ...
    def with_gcp_registry(self, service_account_json: str) -> Recipe:
        """Says how the registry of the image is entered: Google's."""
        ...
    def with_context(self, directory: _Path) -> Recipe:
        """Sets the directory that copies come from; nothing outside of it is read."""
        ...
    def copy(self, source: str, target: str, *, user: str | None = None, mode: int | None = None) -> Recipe:
        """Copies a file or directory of the context; `*` and `?` stand for parts of names."""
        ...
    def run(self, command: str, *, user: str | None = None) -> Recipe:
        """Runs a command of the shell, as another user where one is given."""
        ...
    def env(self, name: str, value: str) -> Recipe:
        """Sets a variable for later steps and for sandboxes."""
        ...
    def workdir(self, path: str) -> Recipe:
        """Sets the directory of later steps and of sandboxes."""
        ...
    def user(self, name: str) -> Recipe:
        """Sets the user of later steps and of sandboxes."""
        ...
    def start_command(self, command: str) -> Recipe:
        """Sets the command that runs when a sandbox starts."""
        ...
    def ready_command(self, command: str) -> Recipe:
        """Sets the command whose success says that the start command is ready."""
        ...

@final
class DefaultTemplate:
    """What stands behind the template `base`, and is built when it is not there."""

    def __new__(cls, recipe: Recipe, name: str, **options: Unpack[_BuildOptions]) -> Self: ...

@final
class Providers:
    """The providers that a program can use, by name: each is made when it is asked for."""

    def __new__(cls, makers: Mapping[str, Callable[[], Provider | AsyncProvider]]) -> Self: ...
    @property
    def names(self) -> list[str]:
        """The names, sorted."""
        ...
    def from_name(self, name: str) -> Provider:
        """Makes the provider of this name."""
        ...
    def from_env(self) -> Provider:
        """Makes the provider that `SANDHOLD_PROVIDER` names."""
        ...
    def async_from_name(self, name: str) -> AsyncProvider:
        """Makes the provider of this name, for event loops."""
        ...
    def async_from_env(self) -> AsyncProvider:
        """Makes the provider that `SANDHOLD_PROVIDER` names, for event loops."""
        ...

@final
class Items(Generic[_T_co]):
    """A listing, item by item."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> _T_co: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_raised: object) -> None: ...

@final
class AsyncItems(Generic[_T_co]):
    """A listing, item by item, for event loops."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> _T_co: ...
    def close(self) -> None:
        """Ends it; whoever waits for the next item gets the end."""
        ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_raised: object) -> None: ...

@disjoint_base
class Provider:
    """Where sandboxes are. Its calls are about a sandbox by its id and do not connect to it."""

    @property
    def name(self) -> str:
        """The provider's stable name."""
        ...
    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...
    @property
    def fingerprint(self) -> str:
        """Its endpoint and credential scope, which records are stored with; holds no secret."""
        ...
    def find(self, id: str) -> SandboxInfo | None:
        """Looks for a sandbox by its id, without waking it; None when the provider itself says that it is gone."""
        ...
    def find_key(self, key: str, *, owner: str | None = None) -> builtins.list[SandboxInfo]:
        """Looks for all sandboxes that carry a key's tags, without waking them."""
        ...
    def list(self, *, owner: str | None = None, key: str | None = None, states: Sequence[_State] | None = None, metadata: Mapping[str, str] | None = None) -> Items[SandboxInfo]:
        """Lists sandboxes: those that match all that is given."""
        ...
    def pause(self, id: str, *, memory: _Memory = "kept") -> Literal["paused", "already_paused"]:
        """Pauses a sandbox; `memory` says whether its processes are kept."""
        ...
    def destroy(self, id: str) -> Literal["destroyed", "already_gone"]:
        """Destroys a sandbox with all that belongs to it, without waking it."""
        ...
    def set_lease(self, id: str, lease: float) -> None:
        """Sets the lease of a sandbox to end so many seconds from now."""
        ...
    def snapshot(self, id: str, *, name: str | None = None, memory: _Memory = "kept") -> SnapshotInfo:
        """Takes a snapshot of a sandbox, which goes on; its id is a template's name too."""
        ...
    def list_snapshots(self, *, sandbox: str | None = None, name: str | None = None) -> Items[SnapshotInfo]:
        """Lists snapshots: those that match all that is given."""
        ...
    def delete_snapshot(self, id: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a snapshot."""
        ...
    def fork(self, id: str, key: str, *, owner: str | None = None, lease: float | None = None) -> SandboxInfo:
        """Makes a second sandbox that goes on as this one does, and gives it a key: acquire that key to use it."""
        ...
    def logs(self, id: str, *, since: datetime | None = None, limit: int | None = None) -> Items[LogLine]:
        """Tells the lines of a sandbox's log."""
        ...
    def metrics(self, id: str) -> Metrics:
        """Tells what a sandbox uses."""
        ...
    def update_network(self, id: str, network: Literal["none", "loopback", "host"]) -> None:
        """Changes what the processes of a running sandbox see of the network."""
        ...

@disjoint_base
class AsyncProvider:
    """Where sandboxes are, for event loops. Its calls are about a sandbox by its id and do not connect to it."""

    @property
    def name(self) -> str:
        """The provider's stable name."""
        ...
    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...
    @property
    def fingerprint(self) -> str:
        """Its endpoint and credential scope, which records are stored with; holds no secret."""
        ...
    async def find(self, id: str) -> SandboxInfo | None:
        """Looks for a sandbox by its id, without waking it; None when the provider itself says that it is gone."""
        ...
    async def find_key(self, key: str, *, owner: str | None = None) -> builtins.list[SandboxInfo]:
        """Looks for all sandboxes that carry a key's tags, without waking them."""
        ...
    async def list(self, *, owner: str | None = None, key: str | None = None, states: Sequence[_State] | None = None, metadata: Mapping[str, str] | None = None) -> AsyncItems[SandboxInfo]:
        """Lists sandboxes: those that match all that is given."""
        ...
    async def pause(self, id: str, *, memory: _Memory = "kept") -> Literal["paused", "already_paused"]:
        """Pauses a sandbox; `memory` says whether its processes are kept."""
        ...
    async def destroy(self, id: str) -> Literal["destroyed", "already_gone"]:
        """Destroys a sandbox with all that belongs to it, without waking it."""
        ...
    async def set_lease(self, id: str, lease: float) -> None:
        """Sets the lease of a sandbox to end so many seconds from now."""
        ...
    async def snapshot(self, id: str, *, name: str | None = None, memory: _Memory = "kept") -> SnapshotInfo:
        """Takes a snapshot of a sandbox, which goes on; its id is a template's name too."""
        ...
    async def list_snapshots(self, *, sandbox: str | None = None, name: str | None = None) -> AsyncItems[SnapshotInfo]:
        """Lists snapshots: those that match all that is given."""
        ...
    async def delete_snapshot(self, id: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a snapshot."""
        ...
    async def fork(self, id: str, key: str, *, owner: str | None = None, lease: float | None = None) -> SandboxInfo:
        """Makes a second sandbox that goes on as this one does, and gives it a key: acquire that key to use it."""
        ...
    async def logs(self, id: str, *, since: datetime | None = None, limit: int | None = None) -> AsyncItems[LogLine]:
        """Tells the lines of a sandbox's log."""
        ...
    async def metrics(self, id: str) -> Metrics:
        """Tells what a sandbox uses."""
        ...
    async def update_network(self, id: str, network: Literal["none", "loopback", "host"]) -> None:
        """Changes what the processes of a running sandbox see of the network."""
        ...

@final
class LocalProvider(Provider):
    """Sandboxes on this machine: isolated processes that outlive the program that made them."""

    def __new__(cls, **options: Unpack[_LocalOptions]) -> Self: ...
    @property
    def home(self) -> os.PathLike[str]:
        """The state directory."""
        ...
    def import_template(self, directory: _Path, *, names: Sequence[str] | None = None) -> SnapshotInfo:
        """Makes a template of a directory that holds a whole root: the unpacked file system of an image."""
        ...
    def probe(self) -> dict[str, Any]:
        """Finds out what isolation works on this machine, by trying it."""
        ...

@final
class AsyncLocalProvider(AsyncProvider):
    """Sandboxes on this machine: isolated processes that outlive the program that made them, for event loops."""

    def __new__(cls, **options: Unpack[_LocalOptions]) -> Self: ...
    @property
    def home(self) -> os.PathLike[str]:
        """The state directory."""
        ...
    async def import_template(self, directory: _Path, *, names: Sequence[str] | None = None) -> SnapshotInfo:
        """Makes a template of a directory that holds a whole root: the unpacked file system of an image."""
        ...
    async def probe(self) -> dict[str, Any]:
        """Finds out what isolation works on this machine, by trying it."""
        ...

@final
class E2bProvider(Provider):
    """E2B's cloud, a self-hosted E2B, or any server that speaks its protocol."""

    def __new__(cls, **options: Unpack[_E2bOptions]) -> Self: ...
    @property
    def templates(self) -> Templates:
        """The templates of the account."""
        ...
    @property
    def secrets(self) -> Secrets:
        """The secrets of the account."""
        ...
    @property
    def volumes(self) -> Volumes:
        """The volumes of the account."""
        ...
    def access(self, id: str) -> SandboxAccess:
        """Says how a sandbox is reached from elsewhere. Connects to it, which wakes a paused one."""
        ...
    def detail(self, id: str) -> dict[str, Any]:
        """Returns the facts about a sandbox in E2B's own words."""
        ...
    def update_network_policy(self, id: str, **options: Unpack[_NetworkUpdate]) -> None:
        """Replaces the whole network policy of a running sandbox."""
        ...

@final
class AsyncE2bProvider(AsyncProvider):
    """E2B's cloud, a self-hosted E2B, or any server that speaks its protocol, for event loops."""

    def __new__(cls, **options: Unpack[_E2bOptions]) -> Self: ...
    @property
    def templates(self) -> AsyncTemplates:
        """The templates of the account."""
        ...
    @property
    def secrets(self) -> AsyncSecrets:
        """The secrets of the account."""
        ...
    @property
    def volumes(self) -> AsyncVolumes:
        """The volumes of the account."""
        ...
    async def access(self, id: str) -> SandboxAccess:
        """Says how a sandbox is reached from elsewhere. Connects to it, which wakes a paused one."""
        ...
    async def detail(self, id: str) -> dict[str, Any]:
        """Returns the facts about a sandbox in E2B's own words."""
        ...
    async def update_network_policy(self, id: str, **options: Unpack[_NetworkUpdate]) -> None:
        """Replaces the whole network policy of a running sandbox."""
        ...

@final
class Templates:
    """The templates of an account."""

    def exists(self, name: str) -> bool:
        """Tells whether a name is taken, by a template of this account or of another."""
        ...
    def start(self, recipe: Recipe, name: str, **options: Unpack[_BuildOptions]) -> TemplateBuild:
        """Starts a build and returns while it runs."""
        ...
    def build(self, recipe: Recipe, name: str, **options: Unpack[_BuildOptions]) -> TemplateBuild:
        """Builds a template and waits for its end."""
        ...
    def list(self) -> Items[Template]:
        """Lists the templates of the account."""
        ...
    def get(self, name: str) -> Template:
        """Returns a template with its builds."""
        ...
    def delete(self, name: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a template with its builds."""
        ...
    def set_public(self, name: str, public: bool) -> None:
        """Says whether other accounts may use a template."""
        ...
    def tags(self, name: str) -> builtins.list[Tag]:
        """Returns the tags of a template."""
        ...
    def assign_tags(self, target: str, tags: Sequence[str]) -> AssignedTags:
        """Gives the build that `target`, a `name:tag`, stands for more tags."""
        ...
    def remove_tags(self, name: str, tags: Sequence[str]) -> None:
        """Takes tags away from a template."""
        ...

@final
class AsyncTemplates:
    """The templates of an account, for event loops."""

    async def exists(self, name: str) -> bool:
        """Tells whether a name is taken, by a template of this account or of another."""
        ...
    async def start(self, recipe: Recipe, name: str, **options: Unpack[_BuildOptions]) -> AsyncTemplateBuild:
        """Starts a build and returns while it runs."""
        ...
    async def build(self, recipe: Recipe, name: str, **options: Unpack[_BuildOptions]) -> AsyncTemplateBuild:
        """Builds a template and waits for its end."""
        ...
    async def list(self) -> AsyncItems[Template]:
        """Lists the templates of the account."""
        ...
    async def get(self, name: str) -> Template:
        """Returns a template with its builds."""
        ...
    async def delete(self, name: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a template with its builds."""
        ...
    async def set_public(self, name: str, public: bool) -> None:
        """Says whether other accounts may use a template."""
        ...
    async def tags(self, name: str) -> builtins.list[Tag]:
        """Returns the tags of a template."""
        ...
    async def assign_tags(self, target: str, tags: Sequence[str]) -> AssignedTags:
        """Gives the build that `target`, a `name:tag`, stands for more tags."""
        ...
    async def remove_tags(self, name: str, tags: Sequence[str]) -> None:
        """Takes tags away from a template."""
        ...

@final
class TemplateBuild:
    """A build that was begun."""

    @property
    def template_id(self) -> str:
        """The id of the template."""
        ...
    @property
    def build_id(self) -> str:
        """The id of the build."""
        ...
    @property
    def names(self) -> list[str]:
        """The names of the template."""
        ...
    def status(self, *, logs_offset: int = 0) -> BuildAnswer:
        """Says how far the build is, with the log from this line on."""
        ...
    def logs(self) -> Items[LogLine]:
        """Tells the lines of the log up to the end of the build; a build that fails ends them with an error."""
        ...
    def wait(self) -> None:
        """Waits for the end."""
        ...

@final
class AsyncTemplateBuild:
    """A build that was begun, for event loops."""

    @property
    def template_id(self) -> str:
        """The id of the template."""
        ...
    @property
    def build_id(self) -> str:
        """The id of the build."""
        ...
    @property
    def names(self) -> list[str]:
        """The names of the template."""
        ...
    async def status(self, *, logs_offset: int = 0) -> BuildAnswer:
        """Says how far the build is, with the log from this line on."""
        ...
    async def logs(self) -> AsyncItems[LogLine]:
        """Tells the lines of the log up to the end of the build; a build that fails ends them with an error."""
        ...
    async def wait(self) -> None:
        """Waits for the end."""
        ...

@final
class Secrets:
    """The secrets of an account."""

    def create(self, name: str, value: str, *, metadata: Mapping[str, str] | None = None) -> SecretInfo:
        """Stores a secret. A second one of the same name is refused."""
        ...
    def update(self, secret: str, value: str, *, metadata: Mapping[str, str] | None = None) -> SecretInfo:
        """Gives a secret, by id or name, another value."""
        ...
    def get(self, secret: str) -> SecretInfo:
        """Returns facts about a secret, by id or name."""
        ...
    def list(self) -> Items[SecretInfo]:
        """Lists the secrets of the account."""
        ...
    def delete(self, secret: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a secret, by id or name."""
        ...

@final
class AsyncSecrets:
    """The secrets of an account, for event loops."""

    async def create(self, name: str, value: str, *, metadata: Mapping[str, str] | None = None) -> SecretInfo:
        """Stores a secret. A second one of the same name is refused."""
        ...
    async def update(self, secret: str, value: str, *, metadata: Mapping[str, str] | None = None) -> SecretInfo:
        """Gives a secret, by id or name, another value."""
        ...
    async def get(self, secret: str) -> SecretInfo:
        """Returns facts about a secret, by id or name."""
        ...
    async def list(self) -> AsyncItems[SecretInfo]:
        """Lists the secrets of the account."""
        ...
    async def delete(self, secret: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a secret, by id or name."""
        ...

@final
class Volumes:
    """The volumes of an account."""

    def create(self, name: str) -> VolumeContent:
        """Makes a volume and opens its content. A second one of the same name is refused."""
        ...
    def open(self, id: str) -> VolumeContent:
        """Opens the content of a volume."""
        ...
    def list(self) -> builtins.list[Volume]:
        """Lists the volumes of the account."""
        ...
    def delete(self, id: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a volume with its content."""
        ...

@final
class AsyncVolumes:
    """The volumes of an account, for event loops."""

    async def create(self, name: str) -> AsyncVolumeContent:
        """Makes a volume and opens its content. A second one of the same name is refused."""
        ...
    async def open(self, id: str) -> AsyncVolumeContent:
        """Opens the content of a volume."""
        ...
    async def list(self) -> builtins.list[Volume]:
        """Lists the volumes of the account."""
        ...
    async def delete(self, id: str) -> Literal["destroyed", "already_gone"]:
        """Deletes a volume with its content."""
        ...

@final
class VolumeContent:
    """The files of one volume."""

    @property
    def id(self) -> str:
        """The volume's id."""
        ...
    @property
    def name(self) -> str:
        """The volume's name."""
        ...
    def stat(self, path: str) -> VolumeEntry:
        """Returns facts about a path."""
        ...
    def change(self, path: str, *, uid: int | None = None, gid: int | None = None, mode: int | None = None) -> VolumeEntry:
        """Changes the owner, group or permission bits of a path."""
        ...
    def remove(self, path: str) -> None:
        """Removes a path with all that is in it."""
        ...
    def list(self, path: str, *, depth: int = 1) -> builtins.list[VolumeEntry]:
        """Lists a directory, so many levels deep."""
        ...
    def make_dir(self, path: str, *, uid: int | None = None, gid: int | None = None, mode: int | None = None, force: bool = False) -> VolumeEntry:
        """Makes a directory, and its parents with `force`."""
        ...
    def read(self, path: str) -> Download:
        """Reads a file as a stream of bytes."""
        ...
    def write(self, path: str, body: _Body, *, uid: int | None = None, gid: int | None = None, mode: int | None = None, force: bool = False) -> VolumeEntry:
        """Writes a file, and over one that is there with `force`. The body is as for `Sandbox.write`; it is sent once."""
        ...

@final
class AsyncVolumeContent:
    """The files of one volume, for event loops."""

    @property
    def id(self) -> str:
        """The volume's id."""
        ...
    @property
    def name(self) -> str:
        """The volume's name."""
        ...
    async def stat(self, path: str) -> VolumeEntry:
        """Returns facts about a path."""
        ...
    async def change(self, path: str, *, uid: int | None = None, gid: int | None = None, mode: int | None = None) -> VolumeEntry:
        """Changes the owner, group or permission bits of a path."""
        ...
    async def remove(self, path: str) -> None:
        """Removes a path with all that is in it."""
        ...
    async def list(self, path: str, *, depth: int = 1) -> builtins.list[VolumeEntry]:
        """Lists a directory, so many levels deep."""
        ...
    async def make_dir(self, path: str, *, uid: int | None = None, gid: int | None = None, mode: int | None = None, force: bool = False) -> VolumeEntry:
        """Makes a directory, and its parents with `force`."""
        ...
    async def read(self, path: str) -> AsyncDownload:
        """Reads a file as a stream of bytes."""
        ...
    async def write(self, path: str, body: _AsyncBody, *, uid: int | None = None, gid: int | None = None, mode: int | None = None, force: bool = False) -> VolumeEntry:
        """Writes a file, and over one that is there with `force`. The body is as for `Sandbox.write`; it is sent once."""
        ...

@final
class Registry:
    """What is kept about keys. Hosts that are given the same one share it; an operator looks at it."""

    def __new__(cls, url: str) -> Self: ...
    def scope(self) -> Literal["process", "machine", "cluster"]:
        """Says how far it reaches: `process`, `machine` or `cluster`."""
        ...
    def load(self, key: str, *, owner: str | None = None) -> Record | None:
        """Returns the record of a key. Takes no lease."""
        ...
    def list(self, *, owner: str | None = None, provider: str | None = None, phases: Sequence[_Phase] | None = None, min_age: float | None = None) -> Items[Record]:
        """Lists the records, by owner and key. Takes no lease."""
        ...

@final
class AsyncRegistry:
    """What is kept about keys, for event loops. Hosts that are given the same one share it; an operator looks at it."""

    def __new__(cls, url: str) -> Self: ...
    async def scope(self) -> Literal["process", "machine", "cluster"]:
        """Says how far it reaches: `process`, `machine` or `cluster`."""
        ...
    async def load(self, key: str, *, owner: str | None = None) -> Record | None:
        """Returns the record of a key. Takes no lease."""
        ...
    async def list(self, *, owner: str | None = None, provider: str | None = None, phases: Sequence[_Phase] | None = None, min_age: float | None = None) -> AsyncItems[Record]:
        """Lists the records, by owner and key. Takes no lease."""
        ...

@final
class Reconciler:
    """Compares what a provider has with what a registry knows, plans what may be done, and does it when it is told to."""

    def __new__(cls, provider: Provider | AsyncProvider, registry: str | Registry | AsyncRegistry, *, owner: str | None = None, min_age: float | None = None) -> Self: ...
    def orphans(self) -> OrphanReport:
        """Reports what the provider has and the registry has not, and the reverse. Changes nothing."""
        ...
    def plan(self, report: OrphanReport, *, unrecorded: _Disposal = "keep", duplicates: _Disposal = "keep", missing: _Disposal = "keep") -> ReconcilePlan:
        """Plans what this policy allows: `keep` or `remove` for each kind of finding. Changes nothing, and asks nobody."""
        ...
    def apply(self, plan: ReconcilePlan) -> list[StepOutcome]:
        """Does what was planned and is still true, each step under the lease of its key."""
        ...

@final
class AsyncReconciler:
    """Compares what a provider has with what a registry knows, plans what may be done, and does it when it is told to, for event loops."""

    def __new__(cls, provider: Provider | AsyncProvider, registry: str | Registry | AsyncRegistry, *, owner: str | None = None, min_age: float | None = None) -> Self: ...
    async def orphans(self) -> OrphanReport:
        """Reports what the provider has and the registry has not, and the reverse. Changes nothing."""
        ...
    async def plan(self, report: OrphanReport, *, unrecorded: _Disposal = "keep", duplicates: _Disposal = "keep", missing: _Disposal = "keep") -> ReconcilePlan:
        """Plans what this policy allows: `keep` or `remove` for each kind of finding. Changes nothing, and asks nobody."""
        ...
    async def apply(self, plan: ReconcilePlan) -> list[StepOutcome]:
        """Does what was planned and is still true, each step under the lease of its key."""
        ...

@final
class Vault:
    """A store of snapshots on this machine, outside of every workspace."""

    def __new__(cls, home: _Path, key: str) -> Self: ...
    @staticmethod
    def in_repo(workspace: _Path, key: str) -> Vault:
        """Keeps snapshots in the git repository of a workspace, where no clone has them."""
        ...
    @property
    def key(self) -> str:
        """The name of the vault."""
        ...
    def git_dir(self) -> Path:
        """Returns the directory of its objects."""
        ...
    def snapshots(self) -> list[Snapshot]:
        """Lists the snapshots, the newest first."""
        ...
    def snapshot(self, id: str) -> Snapshot:
        """Returns a snapshot by its id, or by a beginning of it that no other has."""
        ...
    def capture(self, workspace: _Path, **options: Unpack[_CaptureOptions]) -> Snapshot:
        """Takes a snapshot of a directory of this machine."""
        ...
    def capture_baseline(self, workspace: _Path, **options: Unpack[_CaptureOptions]) -> Snapshot | None:
        """Takes a snapshot of the state before a run; None where that state is known."""
        ...
    def capture_sandbox(self, sandbox: Sandbox | AsyncSandbox, path: str, *, name: str | None = None, **options: Unpack[_CaptureOptions]) -> Snapshot | None:
        """Takes a snapshot of a directory inside a sandbox; None where nothing has changed since its last one."""
        ...
    def restore_sandbox(self, sandbox: Sandbox | AsyncSandbox, path: str, id: str, *, name: str | None = None, **options: Unpack[_RestoreOptions]) -> Restored:
        """Puts a snapshot back into a directory inside a sandbox."""
        ...
    def newest_of_sandbox(self, key: str, path: str) -> Snapshot | None:
        """Returns the newest snapshot of a directory inside the sandbox of a key."""
        ...
    def side_manifest(self, id: str) -> dict[str, Any]:
        """Returns what git cannot hold of a snapshot: what was left out and why, empty directories, nested repositories."""
        ...
    def restore(self, id: str, target: _Path, **options: Unpack[_RestoreOptions]) -> Restored:
        """Makes a directory of this machine what a snapshot says."""
        ...
    def restore_branch(self, id: str, workspace: _Path, *, name: str | None = None) -> RestoredBranch:
        """Puts a snapshot on a branch of a workspace's repository, and touches no file."""
        ...
    def restore_patch(self, id: str, file: _Path) -> int:
        """Writes a snapshot as a patch against the commit that its workspace was at, and returns its size."""
        ...
    def unfinished_restores(self) -> list[Unfinished]:
        """Lists restores that have begun and not ended."""
        ...
    def write_bundle(self, id: str, path: _Path, *, since: Sequence[str] | None = None, branch: str | None = None, budget: float | None = None) -> Bundle:
        """Writes a snapshot to a file that git can read."""
        ...
    def bundle_header(self, path: _Path) -> BundleHeader:
        """Returns what a bundle says of itself."""
        ...
    def import_bundle(self, path: _Path, **options: Unpack[_ImportOptions]) -> Imported:
        """Takes a snapshot out of a bundle that a vault wrote, and checks all of it."""
        ...
    def adopt_bundle(self, path: _Path, **options: Unpack[_AdoptOptions]) -> Imported:
        """Takes a snapshot out of a bundle that git wrote."""
        ...
    def verify(self, id: str, *, depth: _Depth = "content", budget: float | None = None) -> Examined:
        """Looks at a snapshot as closely as is asked for: `reachable`, `sums` or `content`."""
        ...
    def verify_all(self, *, depth: _Depth = "content", budget: float | None = None) -> list[Examined]:
        """Looks at every snapshot."""
        ...
    def gc(self, *, min_age: float | None = None, max_packs: int | None = None, budget: float | None = None) -> Collected:
        """Deletes objects that no snapshot needs."""
        ...
    def prune(self, **options: Unpack[_Retention]) -> Pruned:
        """Deletes the snapshots whose time is over, and those above the limits; times in seconds, 0 is for ever."""
        ...
    def set_retention(self, id: str, retention: str | None) -> Snapshot:
        """Sets how long one snapshot is kept, such as `168h`; None leaves it to the rule for all."""
        ...
    def repair(self, *, budget: float | None = None) -> Repaired:
        """Makes whole what can be made whole again, and throws nothing away."""
        ...
    def repair_repository(self, workspace: _Path, *, main: _Path | None = None, head: str | None = None, lock_age: float | None = None) -> RepositoryRepaired:
        """Puts right what keeps git from working in a workspace: old locks, and with `main` the directory of git that a linked worktree of that repository has lost."""
        ...
    def begin(self, workspace: _Path, **options: Unpack[_CaptureOptions]) -> Session:
        """Begins snapshots that accompany a run. Nothing is captured yet."""
        ...
    def resume(self, id: str, **options: Unpack[_CaptureOptions]) -> Session:
        """Goes on with a session that another host began, such as one that died."""
        ...

@final
class AsyncVault:
    """A store of snapshots on this machine, outside of every workspace, for event loops."""

    def __new__(cls, home: _Path, key: str) -> Self: ...
    @staticmethod
    def in_repo(workspace: _Path, key: str) -> AsyncVault:
        """Keeps snapshots in the git repository of a workspace, where no clone has them."""
        ...
    @property
    def key(self) -> str:
        """The name of the vault."""
        ...
    async def git_dir(self) -> Path:
        """Returns the directory of its objects."""
        ...
    async def snapshots(self) -> list[Snapshot]:
        """Lists the snapshots, the newest first."""
        ...
    async def snapshot(self, id: str) -> Snapshot:
        """Returns a snapshot by its id, or by a beginning of it that no other has."""
        ...
    async def capture(self, workspace: _Path, **options: Unpack[_CaptureOptions]) -> Snapshot:
        """Takes a snapshot of a directory of this machine."""
        ...
    async def capture_baseline(self, workspace: _Path, **options: Unpack[_CaptureOptions]) -> Snapshot | None:
        """Takes a snapshot of the state before a run; None where that state is known."""
        ...
    async def capture_sandbox(self, sandbox: Sandbox | AsyncSandbox, path: str, *, name: str | None = None, **options: Unpack[_CaptureOptions]) -> Snapshot | None:
        """Takes a snapshot of a directory inside a sandbox; None where nothing has changed since its last one."""
        ...
    async def restore_sandbox(self, sandbox: Sandbox | AsyncSandbox, path: str, id: str, *, name: str | None = None, **options: Unpack[_RestoreOptions]) -> Restored:
        """Puts a snapshot back into a directory inside a sandbox."""
        ...
    async def newest_of_sandbox(self, key: str, path: str) -> Snapshot | None:
        """Returns the newest snapshot of a directory inside the sandbox of a key."""
        ...
    async def side_manifest(self, id: str) -> dict[str, Any]:
        """Returns what git cannot hold of a snapshot: what was left out and why, empty directories, nested repositories."""
        ...
    async def restore(self, id: str, target: _Path, **options: Unpack[_RestoreOptions]) -> Restored:
        """Makes a directory of this machine what a snapshot says."""
        ...
    async def restore_branch(self, id: str, workspace: _Path, *, name: str | None = None) -> RestoredBranch:
        """Puts a snapshot on a branch of a workspace's repository, and touches no file."""
        ...
    async def restore_patch(self, id: str, file: _Path) -> int:
        """Writes a snapshot as a patch against the commit that its workspace was at, and returns its size."""
        ...
    async def unfinished_restores(self) -> list[Unfinished]:
        """Lists restores that have begun and not ended."""
        ...
    async def write_bundle(self, id: str, path: _Path, *, since: Sequence[str] | None = None, branch: str | None = None, budget: float | None = None) -> Bundle:
        """Writes a snapshot to a file that git can read."""
        ...
    async def bundle_header(self, path: _Path) -> BundleHeader:
        """Returns what a bundle says of itself."""
        ...
    async def import_bundle(self, path: _Path, **options: Unpack[_ImportOptions]) -> Imported:
        """Takes a snapshot out of a bundle that a vault wrote, and checks all of it."""
        ...
    async def adopt_bundle(self, path: _Path, **options: Unpack[_AdoptOptions]) -> Imported:
        """Takes a snapshot out of a bundle that git wrote."""
        ...
    async def verify(self, id: str, *, depth: _Depth = "content", budget: float | None = None) -> Examined:
        """Looks at a snapshot as closely as is asked for: `reachable`, `sums` or `content`."""
        ...
    async def verify_all(self, *, depth: _Depth = "content", budget: float | None = None) -> list[Examined]:
        """Looks at every snapshot."""
        ...
    async def gc(self, *, min_age: float | None = None, max_packs: int | None = None, budget: float | None = None) -> Collected:
        """Deletes objects that no snapshot needs."""
        ...
    async def prune(self, **options: Unpack[_Retention]) -> Pruned:
        """Deletes the snapshots whose time is over, and those above the limits; times in seconds, 0 is for ever."""
        ...
    async def set_retention(self, id: str, retention: str | None) -> Snapshot:
        """Sets how long one snapshot is kept, such as `168h`; None leaves it to the rule for all."""
        ...
    async def repair(self, *, budget: float | None = None) -> Repaired:
        """Makes whole what can be made whole again, and throws nothing away."""
        ...
    async def repair_repository(self, workspace: _Path, *, main: _Path | None = None, head: str | None = None, lock_age: float | None = None) -> RepositoryRepaired:
        """Puts right what keeps git from working in a workspace: old locks, and with `main` the directory of git that a linked worktree of that repository has lost."""
        ...
    async def begin(self, workspace: _Path, **options: Unpack[_CaptureOptions]) -> AsyncSession:
        """Begins snapshots that accompany a run. Nothing is captured yet."""
        ...
    async def resume(self, id: str, **options: Unpack[_CaptureOptions]) -> AsyncSession:
        """Goes on with a session that another host began, such as one that died."""
        ...

@final
class Session:
    """Snapshots that accompany a run: one, which each capture moves along."""

    @property
    def id(self) -> str | None:
        """The snapshot that each capture moves along; None before the first."""
        ...
    def capture(self) -> Snapshot | None:
        """Captures the state of now; None where nothing has changed."""
        ...
    def end(self, outcome: Literal["clean", "signalled", "failed"], *, exit_code: int | None = None) -> Snapshot | None:
        """Captures for the last time and says how it ended: `clean`, `signalled` or `failed`."""
        ...

@final
class AsyncSession:
    """Snapshots that accompany a run: one, which each capture moves along, for event loops."""

    @property
    def id(self) -> str | None:
        """The snapshot that each capture moves along; None before the first."""
        ...
    async def capture(self) -> Snapshot | None:
        """Captures the state of now; None where nothing has changed."""
        ...
    async def end(self, outcome: Literal["clean", "signalled", "failed"], *, exit_code: int | None = None) -> Snapshot | None:
        """Captures for the last time and says how it ended: `clean`, `signalled` or `failed`."""
        ...

@final
class Mirror:
    """A bucket or a directory that holds copies of snapshots, with the credentials that the environment has."""

    def __new__(cls, config: MirrorConfig) -> Self: ...
    def check(self) -> None:
        """Finds out whether it can be reached, written and read."""
        ...
    def repos(self) -> list[MirroredRepo]:
        """Lists the vaults that it has something of."""
        ...
    def snapshots(self, repo: str) -> MirroredSnapshots:
        """Lists the snapshots that it has of a vault, the newest first."""
        ...
    def orphans(self, repo: str) -> list[Orphan]:
        """Lists bundles of a vault that no manifest speaks of."""
        ...
    def delete_orphan(self, orphan: Orphan) -> None:
        """Deletes a bundle that no manifest speaks of."""
        ...
    def upload(self, vault: Vault | AsyncVault, id: str, *, budget: float | None = None) -> Snapshot:
        """Copies a snapshot there, within so many seconds; default 20 minutes."""
        ...
    def resume(self, vault: Vault | AsyncVault) -> list[Resumed]:
        """Goes on with every upload that was asked for and is not done."""
        ...
    def queued(self, vault: Vault | AsyncVault) -> list[str]:
        """Lists the snapshots whose upload was asked for and is not done."""
        ...
    def verify(self, vault: Vault | AsyncVault, id: str, *, level: Literal["head", "digest", "full"] = "head") -> Verified:
        """Looks at the copy of a snapshot: `head`, `digest` or `full`."""
        ...
    def fetch(self, vault: Vault | AsyncVault, id: str, *, repo: str | None = None) -> Fetched:
        """Brings a snapshot from there into a vault; `repo` names the vault that it is of, where that is another one."""
        ...
    def restore(self, vault: Vault | AsyncVault, id: str, target: _Path, **options: Unpack[_RestoreOptions]) -> Restored:
        """Makes a directory of this machine what a snapshot says, and brings the snapshot from there where the vault has it not."""
        ...

@final
class AsyncMirror:
    """A bucket or a directory that holds copies of snapshots, with the credentials that the environment has, for event loops."""

    def __new__(cls, config: MirrorConfig) -> Self: ...
    async def check(self) -> None:
        """Finds out whether it can be reached, written and read."""
        ...
    async def repos(self) -> list[MirroredRepo]:
        """Lists the vaults that it has something of."""
        ...
    async def snapshots(self, repo: str) -> MirroredSnapshots:
        """Lists the snapshots that it has of a vault, the newest first."""
        ...
    async def orphans(self, repo: str) -> list[Orphan]:
        """Lists bundles of a vault that no manifest speaks of."""
        ...
    async def delete_orphan(self, orphan: Orphan) -> None:
        """Deletes a bundle that no manifest speaks of."""
        ...
    async def upload(self, vault: Vault | AsyncVault, id: str, *, budget: float | None = None) -> Snapshot:
        """Copies a snapshot there, within so many seconds; default 20 minutes."""
        ...
    async def resume(self, vault: Vault | AsyncVault) -> list[Resumed]:
        """Goes on with every upload that was asked for and is not done."""
        ...
    async def queued(self, vault: Vault | AsyncVault) -> list[str]:
        """Lists the snapshots whose upload was asked for and is not done."""
        ...
    async def verify(self, vault: Vault | AsyncVault, id: str, *, level: Literal["head", "digest", "full"] = "head") -> Verified:
        """Looks at the copy of a snapshot: `head`, `digest` or `full`."""
        ...
    async def fetch(self, vault: Vault | AsyncVault, id: str, *, repo: str | None = None) -> Fetched:
        """Brings a snapshot from there into a vault; `repo` names the vault that it is of, where that is another one."""
        ...
    async def restore(self, vault: Vault | AsyncVault, id: str, target: _Path, **options: Unpack[_RestoreOptions]) -> Restored:
        """Makes a directory of this machine what a snapshot says, and brings the snapshot from there where the vault has it not."""
        ...

@final
class Sandboxes:
    """The sandboxes of one owner at one provider: acquire them by key, let them go, get the same ones back."""

    def __new__(cls, provider: Provider | AsyncProvider, **options: Unpack[_HostOptions]) -> Self: ...
    def acquire(self, key: str, **options: Unpack[_AcquireOptions]) -> Sandbox:
        """Finds, connects or creates the one sandbox of a key."""
        ...
    def lazy(self, key: str, **options: Unpack[_AcquireOptions]) -> Sandbox:
        """Returns a value of the key's sandbox that is acquired by its first use."""
        ...
    def find(self, key: str) -> SandboxInfo | None:
        """Looks for the sandbox that a key has, without waking or making one."""
        ...
    def confirm_move(self, key: str) -> bool:
        """Says that credentials or endpoint were changed on purpose: a key's sandbox that is not found under them counts as gone. Returns whether they differed."""
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

    def __new__(cls, provider: Provider | AsyncProvider, **options: Unpack[_HostOptions]) -> Self: ...
    async def acquire(self, key: str, **options: Unpack[_AcquireOptions]) -> AsyncSandbox:
        """Finds, connects or creates the one sandbox of a key."""
        ...
    async def lazy(self, key: str, **options: Unpack[_AcquireOptions]) -> AsyncSandbox:
        """Returns a value of the key's sandbox that is acquired by its first use."""
        ...
    async def find(self, key: str) -> SandboxInfo | None:
        """Looks for the sandbox that a key has, without waking or making one."""
        ...
    async def confirm_move(self, key: str) -> bool:
        """Says that credentials or endpoint were changed on purpose: a key's sandbox that is not found under them counts as gone. Returns whether they differed."""
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
