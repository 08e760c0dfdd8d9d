"""Snapshots of work: vaults, bundles, mirrors, settings, and hooks that Python has written."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Literal

import pytest
import sandhold
from sandhold import (
    AsyncMirror,
    AsyncSandbox,
    AsyncSandboxes,
    AsyncVault,
    LocalProvider,
    Mirror,
    MirrorConfig,
    PersistConfig,
    PersistSettings,
    RestoreReport,
    Sandbox,
    Sandboxes,
    Vault,
    VaultHook,
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with a file, an ignored secret and one that is too large."""
    work = tmp_path / "work"
    (work / "deep").mkdir(parents=True)
    (work / "deep/file").write_text("precious")
    (work / ".env").write_text("TOKEN=hush")
    (work / "large").write_bytes(bytes(2000))
    return work


def a_snapshot_is_taken_told_and_put_back(tmp_path: Path, work: Path) -> None:
    vault = Vault(tmp_path / "vaults", "tests")
    phases: list[str] = []
    taken = vault.capture(work, label="first", agent="tester", max_file=1000, progress=lambda phase, *_: phases.append(phase))
    assert (taken.label, taken.agent, taken.status, taken.files, taken.skipped) == ("first", "tester", "snapshot", 1, 2)
    assert taken.captured_at.tzinfo is not None and not taken.is_mirrored and taken.remote is None
    assert phases
    side = vault.side_manifest(taken.id)
    assert {(left["path"], left["reason"]) for left in side["skipped"]} == {(".env", "env_file"), ("large", "too_large")}
    assert [snapshot.id for snapshot in vault.snapshots()] == [taken.id]
    assert vault.snapshot(taken.id).tree == taken.tree
    (work / "deep/file").write_text("changed")
    with pytest.raises(sandhold.InvalidStateError) as dirty:
        vault.restore(taken.id, work)
    assert dirty.value.reason == "dirty" and (work / "deep/file").read_text() == "changed"
    report = vault.restore(taken.id, work, on_dirty="capture")
    assert (report.id, report.written, (work / "deep/file").read_text()) == (taken.id, 1, "precious")
    assert report.saved is not None and vault.snapshot(report.saved).files > 0
    elsewhere = vault.restore(taken.id, tmp_path / "copy")
    assert elsewhere.target == tmp_path / "copy" and (tmp_path / "copy/deep/file").read_text() == "precious"
    assert vault.verify(taken.id).is_good and all(seen.is_good for seen in vault.verify_all(depth="sums"))
    assert vault.unfinished_restores() == []
    assert (vault.git_dir() / "objects").is_dir()


def a_declaration_of_what_must_survive_gets_a_receipt(tmp_path: Path, work: Path) -> None:
    vault = Vault(tmp_path / "vaults", "tests")
    taken = vault.capture(work, survive_paths=["deep/file", "missing"], max_file=1000)
    assert taken.receipt is not None and not taken.receipt.is_complete
    assert [promise.path for promise in taken.receipt.promised] == ["deep/file"]
    assert [missing.what for missing in taken.receipt.missing] == ["missing"]


def a_session_moves_one_snapshot_along(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        vault = AsyncVault(tmp_path / "vaults", "tests")
        session = await vault.begin(work)
        assert session.id is None
        first = await session.capture()
        assert first is not None and first.status == "open"
        (work / "deep/file").write_text("more")
        resumed = await vault.resume(first.id)
        second = await resumed.end("failed", exit_code=3)
        assert second is not None and (second.id, second.exit_code, second.status) == (first.id, 3, "exited")

    asyncio.run(main())


def a_bundle_carries_a_snapshot_to_another_vault(tmp_path: Path, work: Path) -> None:
    here, there = Vault(tmp_path / "here", "tests"), Vault(tmp_path / "there", "tests")
    taken = here.capture(work)
    bundle = here.write_bundle(taken.id, tmp_path / "bundle")
    assert bundle.path == tmp_path / "bundle" and bundle.bytes == bundle.path.stat().st_size
    assert taken.commit in [commit for _, commit in there.bundle_header(bundle.path).refs]
    got = there.import_bundle(bundle.path, expected=taken.commit)
    assert (got.snapshot.id, got.provenance, got.was_here) == (taken.id, "known", False)
    assert there.import_bundle(bundle.path).was_here
    there.restore(taken.id, tmp_path / "copy")
    assert (tmp_path / "copy/deep/file").read_text() == "precious"
    with pytest.raises(sandhold.InvalidArgumentError, match="expected") as refused:
        there.import_bundle(bundle.path, expected="no commit")
    assert refused.value.context["argument"] == "expected"


def what_is_pruned_is_told_and_the_last_good_one_stays(tmp_path: Path, work: Path) -> None:
    vault = Vault(tmp_path / "vaults", "tests")
    first = vault.capture(work)
    (work / "deep/file").write_text("more")
    second = vault.capture(work)
    dry = vault.prune(max_count=1, dry=True)
    assert dry.removed == [first.id] and len(vault.snapshots()) == 2
    assert vault.prune(max_count=1).removed == [first.id]
    assert vault.set_retention(second.id, "168h").retention == "168h"
    assert [snapshot.id for snapshot in vault.snapshots()] == [second.id]
    assert vault.gc(min_age=0.0).packs >= 1
    assert vault.repair().lost == []


def a_mirror_has_what_was_copied_there(tmp_path: Path, work: Path) -> None:
    mirror = Mirror(MirrorConfig.file(tmp_path / "mirror", prefix="team"))
    mirror.check()
    here = Vault(tmp_path / "here", "tests")
    taken = here.capture(work)
    assert mirror.queued(here) == []
    assert mirror.upload(here, taken.id).is_mirrored
    assert [(repo.key, repo.snapshots, repo.newest) for repo in mirror.repos()] == [("tests", 1, taken.id)]
    listed = mirror.snapshots("tests")
    assert [found.snapshot.id for found in listed.snapshots if found.is_whole] == [taken.id] and listed.total == 1
    assert mirror.verify(here, taken.id, level="full").sha256 is not None
    assert mirror.orphans("tests") == [] and mirror.resume(here) == []

    async def fetch() -> None:
        there = AsyncVault(tmp_path / "there", "tests")
        fetched = await AsyncMirror(MirrorConfig.file(tmp_path / "mirror", prefix="team")).fetch(there, taken.id)
        assert fetched.snapshot.id == taken.id and not fetched.was_here
        await there.restore(taken.id, tmp_path / "copy")

    asyncio.run(fetch())
    assert (tmp_path / "copy/deep/file").read_text() == "precious"


def a_bucket_without_credentials_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THE_KEY", raising=False)
    with pytest.raises(sandhold.UnauthenticatedError, match="THE_KEY") as missing:
        Mirror(MirrorConfig.s3("bucket", access_key_env="THE_KEY", endpoint="http://127.0.0.1:1", mode="all"))
    assert missing.value.reason == "credential"
    with pytest.raises(sandhold.InvalidArgumentError, match="mode"):
        MirrorConfig.gcs("bucket", mode="some")  # type: ignore[arg-type]


def the_work_inside_a_sandbox_is_captured_and_restored_on_demand(tmp_path: Path, provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    vault = Vault(tmp_path / "vaults", "tests")
    sandbox.write("project/file", "precious")
    taken = vault.capture_sandbox(sandbox, "/home/user/project")
    assert taken is not None and taken.sandbox == f"{key}:/home/user/project"
    newest = vault.newest_of_sandbox(key, "/home/user/project")
    assert newest is not None and newest.id == taken.id
    sandbox.remove("project/file")
    report = vault.restore_sandbox(sandbox, "/home/user/project", taken.id, on_dirty="capture")
    assert report.written == 1 and sandbox.read_text("project/file") == "precious"


def settings_change_what_a_hook_does(tmp_path: Path, provider: LocalProvider, key: str) -> None:
    settings = PersistSettings().with_host(b'{"snapshot": {"interval": "10m"}}')
    assert settings.pinned() == ["snapshot.interval"]
    change = settings.update(b'{"snapshot": {"interval": "1s"}, "capture": {"never": ["*.tmp"]}}')
    assert (change.changed, change.pinned) == (["capture.never"], ["snapshot.interval"])
    config = settings.resolve()
    assert config.interval == 600.0 and config.rules["never"] == ["*.tmp"] and config.mirror is None
    settings.save(tmp_path / "chosen.json")
    assert PersistSettings.load(chosen=tmp_path / "chosen.json").resolve().rules["never"] == ["*.tmp"]
    vault = Vault(tmp_path / "vaults", "tests")
    hook = VaultHook.of(vault, "/home/user/project", interval=0)
    sandbox = Sandboxes(provider, persist=hook).acquire(key)
    hook.apply(config)
    sandbox.write("project/kept", "1")
    sandbox.write("project/left.tmp", "2")
    sandbox.save()
    (taken,) = vault.snapshots()
    assert taken.files == 1
    vault.prune(**config.retention)
    with pytest.raises(sandhold.PermissionDeniedError) as refused:
        PersistConfig().with_project_file(b'{"mirror": {}}')
    assert refused.value.reason == "project_config"


class Shelf:
    """Keeps one file of each sandbox in memory."""

    interval = 0.05

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.said: list[str] = []
        self.ticked = threading.Event()

    def restore(self, sandbox: Sandbox, reason: Literal["created", "replaced"]) -> RestoreReport | None:
        self.said.append(reason)
        if sandbox.key not in self.kept:
            return None
        sandbox.write("work", self.kept[sandbox.key])
        return RestoreReport("the-one-of-" + sandbox.key, receipt={"work": ["kept", 1]})

    def _save(self, sandbox: Sandbox, why: str) -> None:
        self.said.append(why)
        if sandbox.exists("work"):
            self.kept[sandbox.key] = sandbox.read_bytes("work")

    def before_pause(self, sandbox: Sandbox) -> None:
        self._save(sandbox, "pause")

    def before_destroy(self, sandbox: Sandbox) -> None:
        self._save(sandbox, "destroy")

    def tick(self, sandbox: Sandbox) -> None:
        self._save(sandbox, "tick")
        self.ticked.set()


def a_hook_written_in_python_keeps_the_work(provider: LocalProvider, key: str) -> None:
    shelf = Shelf()
    host = Sandboxes(provider, persist=shelf)
    sandbox = host.acquire(key)
    assert sandbox.facts is not None and sandbox.facts.restored is None
    sandbox.write("work", "precious")
    assert shelf.ticked.wait(30)
    sandbox.pause()
    sandbox.destroy()
    again = host.acquire(key)
    assert again.facts is not None and again.facts.restored == f"the-one-of-{key}" and again.facts.receipt == {"work": ["kept", 1]}
    assert again.read_text("work") == "precious"
    assert {"created", "tick", "pause", "destroy"} <= set(shelf.said)


def a_hook_of_coroutines_runs_on_the_loop_and_what_it_raises_keeps_the_sandbox(provider: LocalProvider, key: str) -> None:
    class Refusing:
        full = False

        def __init__(self) -> None:
            self.loops: set[object] = set()

        async def restore(self, sandbox: AsyncSandbox, reason: Literal["created", "replaced"]) -> None:
            self.loops.add(asyncio.get_running_loop())

        async def before_pause(self, sandbox: AsyncSandbox) -> None:
            raise OSError("the shelf is full")

        async def before_destroy(self, sandbox: AsyncSandbox) -> None:
            self.loops.add(asyncio.get_running_loop())

        async def tick(self, sandbox: AsyncSandbox) -> None:
            await sandbox.write("saved", "1")

    async def main() -> None:
        hook = Refusing()
        host = AsyncSandboxes(provider, persist=hook)
        sandbox = await host.acquire(key)
        await sandbox.save()
        assert await sandbox.read_text("saved") == "1"
        with pytest.raises(sandhold.SandboxError) as refused:
            await sandbox.pause()
        assert isinstance(refused.value.__cause__, OSError)
        assert (await sandbox.info()).state == "running"
        await sandbox.destroy()
        assert hook.loops == {asyncio.get_running_loop()}

    asyncio.run(main())


def a_hook_that_lacks_a_call_is_refused_by_name(provider: LocalProvider) -> None:
    class Half:
        def restore(self, sandbox: Sandbox, reason: str) -> None: ...

    with pytest.raises(TypeError, match="persist.*before_pause"):
        Sandboxes(provider, persist=Half())  # type: ignore[arg-type]
