"""E2B's protocol from Python: what is absent and what is an error, and what an account has beside sandboxes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sandhold
from sandhold import AsyncE2bProvider, AsyncSandboxes, DefaultTemplate, E2bProvider, LocalProvider, Recipe, Sandbox, Sandboxes

from scripted import Answer, Asked, scripted

AT = "2026-01-02T03:04:05Z"


def options(url: str) -> dict[str, Any]:
    return {"api_key": "e2b_0", "api_url": url, "volume_url": url, "retry": {"max_retries": 0}}


@pytest.mark.parametrize("message", ["not found", "", "Sandbox doesn't exist", "nö", "x" * 5000, "internal", "null"])
def a_sandbox_is_absent_by_the_code_alone(message: str) -> None:
    with scripted(lambda asked: (404, {"code": 404, "message": message})) as script:
        assert E2bProvider(**options(script.url)).find("i0") is None

        async def find() -> object:
            return await AsyncE2bProvider(**options(script.url)).find("i0")

        assert asyncio.run(find()) is None
        assert {asked.method for asked in script.asked} == {"GET"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "unauthenticated"),
        (403, "permission_denied"),
        (429, "rate_limited"),
        (500, "unexpected"),
        (502, "unavailable"),
        (503, "unavailable"),
        (200, "unexpected"),
    ],
)
def an_error_is_never_none_and_makes_nothing(status: int, kind: str) -> None:
    def answer(asked: Asked) -> Answer:
        body: Any = b"no JSON: not found" if status == 200 else {"code": status, "message": "sandbox not found"}
        return status, body, {"retry-after": "2"}

    with scripted(answer) as script:
        provider = E2bProvider(**options(script.url))
        host = Sandboxes(provider)
        calls: list[Callable[[], object]] = [lambda: provider.find("i0"), lambda: host.find("key"), lambda: host.acquire("key")]
        for call in calls:
            with pytest.raises(sandhold.SandboxError) as refused:
                call()
            assert refused.value.kind == kind and type(refused.value) is sandhold._errors.BY_KIND[kind]
            assert refused.value.retry_after == (2.0 if status == 429 else refused.value.retry_after)

        async def acquire() -> None:
            await AsyncSandboxes(AsyncE2bProvider(**options(script.url))).acquire("key")

        with pytest.raises(sandhold.SandboxError) as refused:
            asyncio.run(acquire())
        assert refused.value.kind == kind
        assert script.count("POST") == script.count("DELETE") == 0


def what_a_command_says_is_no_absence(provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    output = sandbox.shell("echo sandbox not found >&2; exit 44")
    assert (output.exit.code, output.stderr.text()) == (44, "sandbox not found\n")
    assert sandbox.info().state == "running"


def a_create_that_was_answered_by_an_error_is_not_repeated() -> None:
    def answer(asked: Asked) -> Answer:
        return (200, [], {}) if asked.method == "GET" else (400, {"code": 400, "message": "no such template"})

    with scripted(answer) as script:
        with pytest.raises(sandhold.InvalidArgumentError):
            Sandboxes(E2bProvider(**options(script.url))).acquire("key")
        assert script.count("POST", "/v2/sandboxes") == 1 and script.count("DELETE") == 0


def a_sandbox_is_reached_from_elsewhere_by_hosts_and_signed_urls() -> None:
    connected = {
        "sandboxID": "i0", "templateID": "base", "clientID": "c", "envdVersion": "0.4.0",
        "envdAccessToken": "inside", "trafficAccessToken": "outside", "domain": "own.example",
        "startedAt": AT, "endAt": "2126-01-02T03:04:05Z", "state": "running", "cpuCount": 1, "memoryMB": 512, "diskSizeMB": 1,
    }  # fmt: skip
    with scripted(lambda asked: (200, connected)) as script:
        access = E2bProvider(**options(script.url)).access("i0")
    assert access.host(3000) == "3000-i0.own.example"
    assert (access.traffic_token, access.envd_token) == ("outside", "inside")
    port = access.port(3000)
    assert port.url == "https://3000-i0.own.example" and port.headers == {"e2b-traffic-access-token": "outside"}
    assert "signature_expiration" not in access.download_url("/a b", user="root")
    assert "username=root" in access.download_url("/a b", user="root") and "signature=" in access.download_url("/a b")
    assert "signature_expiration=" in access.upload_url("", expires=60)
    assert "inside" not in repr(access) + access.upload_url("")
    with pytest.raises(sandhold.InvalidArgumentError, match="expires"):
        access.upload_url("", expires=-1)


def the_secrets_of_an_account_are_kept_and_never_told() -> None:
    def answer(asked: Asked) -> Answer:
        info = {"secretID": "s1", "name": "token", "currentVersion": 1, "metadata": {"a": "b"}, "createdAt": AT}
        if asked.method == "DELETE":
            return 404, {"code": 404, "message": ""}
        if asked.path == "/secrets" and asked.method == "GET":
            return 200, [info], {"x-next-token": "more"}
        if asked.path.startswith("/secrets?"):
            return 200, [{**info, "secretID": "s2"}]
        return 201 if asked.path == "/secrets" else 200, info

    with scripted(answer) as script:
        secrets = E2bProvider(**options(script.url)).secrets
        made = secrets.create("token", "hush", metadata={"a": "b"})
        assert (made.secret_id, made.metadata, "hush" in repr(made)) == ("s1", {"a": "b"}, False)
        assert script.asked[-1].json() == {"name": "token", "value": "hush", "metadata": {"a": "b"}}
        assert secrets.update("token", "other").current_version == 1 and secrets.get("s1").name == "token"
        assert [info.secret_id for info in secrets.list()] == ["s1", "s2"]
        assert secrets.delete("s1") == "already_gone"

        async def ids() -> list[str]:
            listing = await AsyncE2bProvider(**options(script.url)).secrets.list()
            return [info.secret_id async for info in listing]

        assert asyncio.run(ids()) == ["s1", "s2"]


def the_files_of_a_volume_are_read_and_written() -> None:
    entry = {"name": "f", "type": "file", "path": "/f", "size": 3, "mode": 0o644, "uid": 1, "gid": 2, "atime": AT, "mtime": AT, "ctime": AT}

    def answer(asked: Asked) -> Answer:
        if asked.path == "/volumes" and asked.method == "GET":
            return 200, [{"volumeID": "v1", "name": "data"}]
        if asked.path.startswith("/volumes"):
            return 200, {"volumeID": "v1", "name": "data", "token": "hush"}
        if asked.method == "GET" and "/file" in asked.path:
            return 200, b"abc"
        return 200, entry

    with scripted(answer) as script:
        volumes = E2bProvider(**options(script.url)).volumes
        assert [(volume.volume_id, volume.name) for volume in volumes.list()] == [("v1", "data")]
        content = volumes.open("v1")
        assert (content.id, content.name) == ("v1", "data")
        written = content.write("/f", iter([b"a", b"bc"]), mode=0o600, force=True)
        assert (written.file_type, written.uid, written.modified_at.year) == ("file", 1, 2026)
        assert script.asked[-1].body == b"abc" and "mode=384" in script.asked[-1].path
        assert b"".join(content.read("/f")) == b"abc"


def a_template_is_built_and_its_log_followed(tmp_path: Path) -> None:
    (tmp_path / "app.txt").write_text("1")
    states = itertools.chain(["building"], itertools.repeat("ready"))

    def answer(asked: Asked) -> Answer:
        if asked.path == "/v3/templates":
            return 202, {"templateID": "t1", "buildID": "b1", "names": ["mine"]}
        if "/files/" in asked.path:
            return 201, {"present": True}
        if "/status" in asked.path:
            offset = int(asked.path.split("logsOffset=")[1].split("&")[0])
            lines = [{"timestamp": AT, "message": "step 1", "level": "info"}][offset:]
            return 200, {"templateID": "t1", "buildID": "b1", "status": next(states), "logEntries": lines}
        return 202, {}

    with scripted(answer) as script:
        recipe = Recipe.from_image("debian:12").with_context(tmp_path).copy("app.txt", "/srv/", mode=0o600)
        recipe = recipe.run("make", user="root").env("A", "b").workdir("/srv").start_command("serve").ready_command("true")
        build = E2bProvider(**options(script.url)).templates.start(recipe, "mine", tags=["v1"], cpu_count=2, memory_mb=512)
        assert (build.template_id, build.build_id, build.names) == ("t1", "b1", ["mine"])
        asked = {asked.path: asked for asked in script.asked}
        assert asked["/v3/templates"].json() == {"name": "mine", "tags": ["v1"], "cpuCount": 2, "memoryMB": 512}
        steps = asked["/v2/templates/t1/builds/b1"].json()
        assert [step["type"] for step in steps["steps"]] == ["COPY", "RUN", "ENV", "WORKDIR"] and steps["startCmd"] == "serve"
        assert [line.message for line in build.logs()] == ["step 1"]
        build.wait()
        assert build.status().status == "ready"
    assert Recipe.from_dockerfile_text("FROM debian:12\nRUN true\n", tmp_path)
    with pytest.raises(sandhold.UnsupportedError):
        Recipe.from_dockerfile_text("FROM a AS b\nFROM c\n", tmp_path)
    with pytest.raises(sandhold.InvalidArgumentError):
        Recipe.from_dockerfile(tmp_path / "missing")
    template = DefaultTemplate(recipe, "mine", cpu_count=1)
    E2bProvider(api_key="k", default_template=template, network={"allow_out": ["example.com"]}, retry={"max_retries": 0})
    with pytest.raises(TypeError, match="colour"):
        E2bProvider(api_key="k", network={"colour": 1})  # type: ignore[arg-type]
