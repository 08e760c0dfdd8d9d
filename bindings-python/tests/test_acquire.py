"""One key, one sandbox: from threads and from event loops."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import sandhold
from sandhold import AsyncSandboxes, LocalProvider, Sandbox, Sandboxes


def a_key_has_one_sandbox_whoever_asks(provider: LocalProvider, key: str) -> None:
    first = Sandboxes(provider).acquire(key)
    assert (first.outcome, first.key, first.owner, first.provider) == ("created", key, "default", "local")
    assert first.facts is not None and first.facts.how == "fresh" and not first.facts.attached
    again = Sandboxes(provider).acquire(key)
    assert again.outcome == "connected" and again.provider_id == first.provider_id
    assert again.facts is not None and again.facts.attached and again.facts.how == "attached"

    async def connect() -> tuple[str | None, str | None]:
        third = await AsyncSandboxes(provider).acquire(key)
        return third.outcome, third.provider_id

    assert asyncio.run(connect()) == ("connected", first.provider_id)


def a_sandbox_outlives_the_program_that_made_it(home: Path, provider: LocalProvider, key: str) -> None:
    program = (
        "import sys\nfrom sandhold import LocalProvider, Sandboxes\n"
        "sandbox = Sandboxes(LocalProvider(home=sys.argv[1])).acquire(sys.argv[2])\n"
        "sandbox.write('work.txt', 'kept')\nprint(sandbox.provider_id)"
    )
    done = subprocess.run([sys.executable, "-c", program, home, key], capture_output=True, text=True, check=True)
    sandbox = Sandboxes(provider).acquire(key)
    assert sandbox.outcome == "connected" and sandbox.provider_id == done.stdout.strip()
    assert sandbox.read_text("work.txt") == "kept"


def a_sandbox_that_is_gone_is_replaced_and_the_facts_name_the_old_one(provider: LocalProvider, key: str, tmp_path: Path) -> None:
    registry = f"sqlite:{tmp_path}/registry.sqlite"
    first = Sandboxes(provider, registry=registry).acquire(key)
    Sandboxes(provider).destroy(key)
    host = Sandboxes(provider, registry=registry)
    with pytest.raises(sandhold.GoneError) as gone:
        host.acquire(key, replace_when_gone="fail")
    assert gone.value.kind == "gone"
    second = host.acquire(key)
    assert second.outcome == "created"
    assert second.facts is not None and second.facts.replaced == first.provider_id


@pytest.mark.parametrize("registry", ["memory:", "file:{}/records", "sqlite:{}/registry.sqlite"])
def every_registry_remembers_its_key(provider: LocalProvider, key: str, tmp_path: Path, registry: str) -> None:
    host = Sandboxes(provider, registry=registry.format(tmp_path))
    assert host.acquire(key).outcome == "created"
    assert host.acquire(key).outcome == "connected"
    found = host.find(key)
    assert found is not None and (found.key, found.state) == (key, "running")


def a_detached_value_admits_no_call_and_leaves_the_sandbox_alone(provider: LocalProvider, key: str) -> None:
    with Sandboxes(provider).acquire(key) as sandbox:
        sandbox.write("a", b"1")
    with pytest.raises(sandhold.InvalidStateError) as refused:
        sandbox.stat("a")
    assert refused.value.reason == "detached"
    assert Sandboxes(provider).acquire(key).read_bytes("a") == b"1"


def a_stopped_sandbox_wakes_with_its_processes_when_it_is_used(sandbox: Sandbox) -> None:
    process = sandbox.start("sleep 1000", tag="sleeper")
    assert sandbox.stop() == "paused"
    assert sandbox.info().state == "paused"
    assert [found.pid for found in sandbox.processes() if found.tag == "sleeper"] == [process.pid]
    assert sandbox.pause() == "paused" and sandbox.pause() == "already_paused"
    sandbox.resume()
    assert sandbox.info().state == "running"


def a_destroyed_sandbox_is_gone_for_every_caller(provider: LocalProvider, key: str) -> None:
    sandbox = Sandboxes(provider).acquire(key)
    assert sandbox.destroy() == "destroyed"
    with pytest.raises(sandhold.SandboxError):
        sandbox.shell("true")
    assert Sandboxes(provider).find(key) is None
    assert Sandboxes(provider).destroy(key) == "already_gone"


def a_lazy_value_acquires_at_its_first_use_and_a_clone_is_another_sandbox(provider: LocalProvider, key: str) -> None:
    lazy = Sandboxes(provider).lazy(key, env={"GREETING": "hello"})
    assert lazy.provider_id is None and lazy.outcome is None and lazy.facts is None
    assert str(lazy.shell("echo $GREETING").stdout) == "hello\n"
    assert lazy.provider_id is not None
    clone = lazy.clone_with(env={"GREETING": "goodbye"})
    try:
        assert str(clone.shell("echo $GREETING").stdout) == "goodbye\n"
        assert clone.provider_id not in (None, lazy.provider_id) and clone.key != key
    finally:
        clone.destroy()


def a_spec_that_differs_is_a_conflict(provider: LocalProvider, key: str) -> None:
    host = Sandboxes(provider)
    host.acquire(key, network="none", lease=60.5, resources={"pids": None})
    with pytest.raises(sandhold.ConflictError) as conflict:
        host.acquire(key, network="loopback")
    assert conflict.value.kind == "conflict" and not conflict.value.retryable
    assert host.acquire(key, network="loopback", on_spec_conflict="keep").outcome == "connected"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"network": "internet"}, "network"),
        ({"lease": -1.0}, "lease"),
        ({"deadline": float("nan")}, "deadline"),
        ({"kind": "huge"}, "kind"),
        ({"exclusion": ""}, "exclusion"),
        ({"on_gone": "panic"}, "on_gone"),
        ({"resources": {"pids": -1}}, "pids"),
    ],
)
def a_bad_value_names_its_argument_and_makes_nothing(
    provider: LocalProvider, key: str, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(sandhold.InvalidArgumentError, match=name) as refused:
        Sandboxes(provider).acquire(key, **options)
    assert refused.value.context["argument"] == name
    assert isinstance(refused.value, ValueError)
    assert Sandboxes(provider).find(key) is None


@pytest.mark.parametrize(
    ("options", "name"),
    [({"env": 1}, "env"), ({"template": b"base"}, "template"), ({"colour": "red"}, "colour"), ({"on_start": 1}, "on_start")],
)
def an_argument_of_a_wrong_type_or_name_is_a_type_error_that_names_it(
    provider: LocalProvider, key: str, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(TypeError, match=name):
        Sandboxes(provider).acquire(key, **options)


@pytest.mark.parametrize("registry", ["redis://u:hush@h", "sqlite:relative", "postgres:hush", ""])
def a_bad_registry_is_refused_without_its_secrets(provider: LocalProvider, registry: str) -> None:
    with pytest.raises(sandhold.InvalidArgumentError) as refused:
        Sandboxes(provider, registry=registry)
    assert "hush" not in str(refused.value)
    assert refused.value.context["argument"] == "registry"


def every_kind_of_error_has_a_class_of_its_own() -> None:
    kinds = sandhold._native.error_kinds()
    assert sorted(sandhold._errors.BY_KIND) == sorted(kinds)
    for kind, raised in sandhold._errors.BY_KIND.items():
        assert raised.kind == kind and issubclass(raised, sandhold.SandboxError)
        assert getattr(sandhold, raised.__name__) is raised and raised.__name__ in sandhold.__all__
        assert raised.__name__ == "".join(map(str.capitalize, kind.split("_"))) + "Error"


def an_error_keeps_its_fields_when_it_is_pickled(sandbox: Sandbox) -> None:
    with pytest.raises(sandhold.NotFoundError) as missing:
        sandbox.read_text("missing")
    error = missing.value
    assert (error.kind, error.outcome, error.retryable, error.retry_after) == ("not_found", "not_started", False, None)
    assert error.provider == "local" and error.operation == "read" and "missing" in error.message
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.context == error.context


def every_run_of_asyncio_and_every_thread_uses_one_host(provider: LocalProvider, key: str) -> None:
    host = AsyncSandboxes(provider)

    async def use() -> str | None:
        sandbox = await host.acquire(key)
        return (await sandbox.exec(["true"])).exit.success and sandbox.provider_id or None

    ids = {asyncio.run(use()) for _ in range(10)}
    found: list[str | None] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(use()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 1 and None not in ids and found == list(ids) * 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def a_forked_child_is_told_so(sandbox: Sandbox) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = "nothing was raised"
        try:
            sandbox.stat("/")
        except sandhold.InvalidStateError as error:
            told = error.reason or ""
        except BaseException as error:
            told = repr(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 1000) == b"forked"
    os.close(reader)
    assert sandbox.stat("/").file_type == "directory"
