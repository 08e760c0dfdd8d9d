"""The package as others get it: its types, its helper, its README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sandhold

PACKAGE = Path(sandhold.__file__).parent
README = Path(__file__).parent.parent / "README.md"


def the_stubs_say_what_the_package_has(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "sandhold"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def every_call_of_the_tests_is_typed() -> None:
    pytest.importorskip("mypy")
    config = Path(__file__).parent.parent / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", os.devnull, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def the_first_example_of_the_readme_runs_as_it_is_pasted(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    environment["HOME"] = str(tmp_path)
    said = []
    for example in examples[:2]:
        command = [sys.executable, "-c", example]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    home = tmp_path / ".local/state/sandhold"
    sandhold.Sandboxes(sandhold.LocalProvider(home=home)).destroy("session-42")
    assert said[0] == "created\n1 notes.md\n\n"
    assert said[1].startswith("1\n2\n3\nExitStatus(code=0")


@pytest.mark.skipif(not (PACKAGE / "_bin/sandhold-helper").exists(), reason="needs a package with its helper")
def a_helper_that_lost_its_executable_bit_runs_as_a_copy(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "site/sandhold")
    (tmp_path / "site/sandhold/_bin/sandhold-helper").chmod(0o644)
    program = (
        "from sandhold import LocalProvider, Sandboxes\n"
        f"host = Sandboxes(LocalProvider(home={str(tmp_path / 'state')!r}))\n"
        "print(host.acquire('k').shell('echo runs').stdout)\nhost.destroy('k')"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "runs\n\n", done.stderr
    assert [path.name[:16] for path in (tmp_path / "state/helpers").iterdir()] == ["sandhold-helper-"]


def an_e2b_provider_is_made_of_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(sandhold.UnauthenticatedError):
        sandhold.E2bProvider()
    provider = sandhold.E2bProvider(api_key="hush", domain="own.example", request_timeout=1.5, headers={"a": "b"})
    assert provider.name == "e2b" and "hush" not in repr(provider)
    with pytest.raises(sandhold.InvalidArgumentError, match="public_traffic"):
        sandhold.E2bProvider(api_key="k", public_traffic="some")  # type: ignore[arg-type]


def an_unreachable_provider_is_never_read_as_gone() -> None:
    provider = sandhold.E2bProvider(api_key="e2b_0", api_url="http://127.0.0.1:1", request_timeout=0.2)
    with pytest.raises(sandhold.UnavailableError) as refused:
        sandhold.Sandboxes(provider).find("key")
    assert refused.value.retryable and refused.value.__cause__ is not None
