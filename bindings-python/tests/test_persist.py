"""Work that outlives its sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
import sandhold
from sandhold import LocalProvider, Sandboxes, VaultHook


def the_work_of_a_key_comes_back_after_a_destroy(provider: LocalProvider, key: str, tmp_path: Path) -> None:
    work = VaultHook(tmp_path / "vaults", "tests", "/home/user/project", interval=0)
    host = Sandboxes(provider, persist=work)
    first = host.acquire(key)
    assert first.facts is not None and first.facts.restored is None
    first.write("project/file", "precious")
    first.destroy()
    second = Sandboxes(provider, persist=work).acquire(key)
    assert second.outcome == "created" and second.provider_id != first.provider_id
    assert second.facts is not None and second.facts.restored is not None
    assert second.read_text("project/file") == "precious"


def a_save_on_demand_needs_a_hook(provider: LocalProvider, key: str, tmp_path: Path) -> None:
    with pytest.raises(sandhold.InvalidStateError) as refused:
        Sandboxes(provider).acquire(key).save()
    assert refused.value.reason == "no_persist"
    work = VaultHook(tmp_path / "vaults", "tests", "/home/user/project")
    sandbox = Sandboxes(provider, persist=work).acquire(key)
    sandbox.write("project/file", "precious")
    sandbox.save()
    assert any((tmp_path / "vaults").rglob("*.pack"))


def a_bad_vault_names_its_argument(tmp_path: Path) -> None:
    with pytest.raises(sandhold.InvalidArgumentError) as refused:
        VaultHook(tmp_path, "", "/home/user")
    assert refused.value.context["argument"] == "key"
    with pytest.raises(sandhold.InvalidArgumentError, match="interval"):
        VaultHook(tmp_path, "tests", "/home/user", interval=-1)
