"""What can be asked of a provider about a sandbox by its id, and what operators do."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import sandhold
from sandhold import (
    AsyncLocalProvider,
    AsyncProvider,
    AsyncReconciler,
    AsyncSandboxes,
    E2bProvider,
    LocalProvider,
    Provider,
    Providers,
    Reconciler,
    Registry,
    Sandbox,
    Sandboxes,
    Step,
)


def a_sandbox_is_paused_leased_and_destroyed_by_its_id(provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    id = sandbox.provider_id
    assert id is not None
    found = provider.find(id)
    assert found is not None and (found.id, found.key, found.state) == (id, key, "running")
    assert [info.id for info in provider.find_key(key)] == [id]
    assert provider.find_key(key, owner="somebody-else") == []
    provider.set_lease(id, 3600.0)
    leased = provider.find(id)
    assert leased is not None and leased.expires_at is not None
    assert provider.pause(id) == "paused" and provider.pause(id) == "already_paused"
    assert [info.id for info in provider.list(key=key, states=["paused"])] == [id]
    assert list(provider.list(key=key, states=["running"])) == []
    assert provider.destroy(id) == "destroyed" and provider.destroy(id) == "already_gone"
    assert provider.find(id) is None


def a_provider_for_event_loops_has_the_same_calls(home: Path, key: str) -> None:
    async def main() -> None:
        provider = AsyncLocalProvider(home=home)
        sandbox = await AsyncSandboxes(provider).acquire(key)
        id = sandbox.provider_id
        assert id is not None
        assert [info.id async for info in await provider.list(key=key)] == [id]
        assert await provider.pause(id) == "paused"
        found = await provider.find(id)
        assert found is not None and found.state == "paused"
        assert await provider.destroy(id) == "destroyed"

    asyncio.run(main())
    for name in vars(Provider):
        assert hasattr(AsyncProvider, name), name


def a_provider_says_what_it_can_do_and_refuses_the_rest_before_anything_happens(provider: LocalProvider) -> None:
    assert provider.capabilities.pause and provider.capabilities.find_without_waking
    assert provider.fingerprint and provider.name == "local"
    if not provider.capabilities.fork:
        with pytest.raises(sandhold.UnsupportedError):
            provider.fork("local-none", "other")


def a_snapshot_is_a_template_of_new_sandboxes(provider: LocalProvider, key: str, sandbox: Sandbox) -> None:
    if not provider.capabilities.snapshot:
        pytest.skip("needs a provider with snapshots")
    sandbox.write("kept", "1")
    assert sandbox.provider_id is not None
    taken = provider.snapshot(sandbox.provider_id, memory="lost")
    try:
        assert [info.id for info in provider.list_snapshots(sandbox=sandbox.provider_id)] == [taken.id]
        other = Sandboxes(provider).acquire(key + "-copy", template=taken.id)
        assert other.read_text("kept") == "1"
        other.destroy()
    finally:
        assert provider.delete_snapshot(taken.id) == "destroyed"
    assert provider.delete_snapshot(taken.id) == "already_gone"


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda provider: provider.pause("x", memory="some"), "memory"),
        (lambda provider: provider.set_lease("x", -1.0), "lease"),
        (lambda provider: provider.list(states=["asleep"]), "states"),
        (lambda provider: provider.update_network("x", "internet"), "network"),
        (lambda provider: provider.find_key(""), "key"),
    ],
)
def a_bad_value_names_its_argument(provider: LocalProvider, call: Any, argument: str) -> None:
    with pytest.raises(sandhold.InvalidArgumentError, match=argument) as refused:
        call(provider)
    assert refused.value.context["argument"] == argument


def a_provider_is_made_by_its_name(home: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    providers = Providers({"local": lambda: LocalProvider(home=home), "e2b": E2bProvider})
    assert providers.names == ["e2b", "local"]
    host = Sandboxes(providers.from_name("local"), providers=providers)
    assert host.acquire(key).outcome == "created"
    with pytest.raises(sandhold.InvalidArgumentError, match="e2b, local") as unknown:
        providers.from_name("docker")
    assert unknown.value.reason == "unknown_provider"
    monkeypatch.delenv("SANDHOLD_PROVIDER", raising=False)
    with pytest.raises(sandhold.InvalidArgumentError, match="SANDHOLD_PROVIDER"):
        providers.from_env()
    monkeypatch.setenv("SANDHOLD_PROVIDER", "local")
    assert providers.from_env().name == providers.async_from_env().name == "local"
    with pytest.raises(TypeError, match="makers"):
        Providers({"local": 3})  # type: ignore[dict-item]

    def broken() -> LocalProvider:
        raise LookupError("no settings")

    with pytest.raises(sandhold.UnexpectedError) as failed:
        Providers({"local": broken}).from_name("local")
    assert isinstance(failed.value.__cause__, LookupError)


def a_registry_lists_what_it_knows_for_operators(provider: LocalProvider, key: str, tmp_path: Path) -> None:
    registry = Registry(f"file:{tmp_path}/records")
    sandbox = Sandboxes(provider, registry=registry).acquire(key, env={"A": "b"})
    (record,) = list(registry.list(phases=["ready"], provider="local"))
    assert (record.owner, record.key, record.id, record.phase) == ("default", key, sandbox.provider_id, "ready")
    assert record.generation == sandbox.generation and record.spec["env"] == {"A": "b"} and record.abandoned == []
    assert list(registry.list(phases=["paused"])) == [] and list(registry.list(min_age=3600.0)) == []
    loaded = registry.load(key)
    assert loaded is not None and loaded.version == record.version
    assert registry.load(key, owner="somebody-else") is None
    assert (registry.scope(), Registry("memory:").scope()) == ("machine", "process")


def two_hosts_meet_in_a_registry_of_memory(provider: LocalProvider, key: str) -> None:
    registry = Registry("memory:")
    first = Sandboxes(provider, registry=registry).acquire(key)
    assert Sandboxes(provider, registry=registry).acquire(key).provider_id == first.provider_id
    assert [record.key for record in registry.list()] == [key]


def an_operator_looks_plans_and_only_then_removes(tmp_path: Path) -> None:
    provider = LocalProvider(home=tmp_path / "state")
    registry = Registry(f"file:{tmp_path}/records")
    stray = Sandboxes(provider).acquire("stray")
    known = Sandboxes(provider, registry=registry).acquire("known")
    lost = Sandboxes(provider, registry=registry).acquire("lost")
    assert stray.provider_id and lost.provider_id
    provider.destroy(lost.provider_id)
    reconciler = Reconciler(provider, registry, min_age=0.0)
    assert {kept.why for kept in reconciler.plan(reconciler.orphans(), missing="remove").kept} == {"policy", "too_young"}
    # What its host wrote down long ago.
    for path in (tmp_path / "records").rglob("*"):
        if path.is_file() and '"lost"' in path.read_text(errors="ignore"):
            path.write_text(re.sub(r'"secs_since_epoch":\s*\d+', '"secs_since_epoch":1000000000', path.read_text()))
    report = reconciler.orphans()
    assert (report.sandboxes, report.records) == (2, 2)
    assert {(finding.kind, finding.key) for finding in report.findings} == {("unrecorded", "stray"), ("missing", "lost")}
    # Nothing is removed unless it is said.
    cautious = reconciler.plan(report)
    assert cautious.steps == [] and {kept.why for kept in cautious.kept} == {"policy"}
    plan = reconciler.plan(report, unrecorded="remove", missing="remove")
    (step,) = plan.steps
    assert step.destroys is None and step.finding.key == "lost" and str(step) == "forget the record of default/lost (missing)"
    assert [(kept.finding.key, kept.why) for kept in plan.kept] == [("stray", "too_young")]
    assert plan.retain(lambda step: False).steps == [] and registry.load("lost") is not None

    def refuse(step: Step) -> bool:
        raise LookupError("enough")

    with pytest.raises(LookupError):
        plan.retain(refuse)
    (done,) = reconciler.apply(plan)
    assert (done.outcome, done.error, str(done.step)) == ("done", None, str(step))
    assert registry.load("lost") is None and provider.find(stray.provider_id) is not None
    assert asyncio.run(_findings(provider, registry)) == ["unrecorded"]
    assert [done.outcome for done in reconciler.apply(plan)] == ["changed"]
    known.destroy()
    stray.destroy()


async def _findings(provider: LocalProvider, registry: Registry) -> list[str]:
    report = await AsyncReconciler(provider, registry, min_age=0.0).orphans()
    return [finding.kind for finding in report.findings]


def a_plan_that_needs_a_shared_registry_refuses_one_of_this_process(provider: LocalProvider) -> None:
    reconciler = Reconciler(provider, "memory:", owner="nobody")
    with pytest.raises(sandhold.UnsupportedError) as refused:
        reconciler.plan(reconciler.orphans(), unrecorded="remove")
    assert refused.value.reason == "exclusion"
    with pytest.raises(sandhold.InvalidArgumentError, match="duplicates"):
        reconciler.plan(reconciler.orphans(), duplicates="burn")  # type: ignore[arg-type]


def credentials_that_were_changed_on_purpose_are_confirmed(provider: LocalProvider, key: str) -> None:
    host = Sandboxes(provider)
    host.acquire(key)
    assert host.confirm_move(key) is False


def a_directory_is_a_template_and_a_probe_says_what_works(provider: LocalProvider, tmp_path: Path) -> None:
    probe = provider.probe()
    assert {"isolation", "limits"} <= set(probe) and probe["isolation"] is not None
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/made-here").write_text("1")
    made = provider.import_template(root, names=["made-here"])
    assert made.names == ["made-here"] and [info.id for info in provider.list_snapshots(name="made-here")] == [made.id]

    async def remove() -> None:
        other = AsyncLocalProvider(home=provider.home)
        assert set(await other.probe()) == set(probe)
        assert await other.delete_snapshot(made.id) == "destroyed"

    asyncio.run(remove())
    with pytest.raises(sandhold.NotFoundError):
        provider.import_template(tmp_path / "none")


def a_replacement_says_why(provider: LocalProvider, key: str) -> None:
    host = Sandboxes(provider)
    first = host.acquire(key, network="none")
    assert first.facts is not None and first.facts.replaced_because is None
    second = host.acquire(key, network="loopback", on_spec_conflict="replace", on_resume_failure="destroy")
    assert second.facts is not None
    assert (second.facts.replaced, second.facts.replaced_because) == (first.provider_id, "other_spec")
