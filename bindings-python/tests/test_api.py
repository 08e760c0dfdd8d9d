"""The list of what users call in the three languages, held against this package and its stubs."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import sandhold

LIST = Path(__file__).parent.parent.parent / "docs/api.json"
TABLE: dict[str, Any] = json.loads(LIST.read_text()) if LIST.exists() else {}
STUB = (Path(sandhold.__file__).parent / "_native.pyi").read_text()
DECLARED = {node.name: node for node in ast.parse(STUB).body if isinstance(node, ast.ClassDef)}
ALIASES = {
    node.targets[0].id: ast.unparse(node.value)
    for node in ast.parse(STUB).body
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
}

pytestmark = pytest.mark.skipif(not TABLE, reason="needs docs/api.json of the repository")


def listed(*parts: Any) -> set[str]:
    texts = [text for part in parts for text in (part if isinstance(part, dict) else [part or ""])]
    return {name for text in texts for name in text.split()}


def entries(part: str) -> dict[str, set[str]]:
    """The names that each entry has here."""
    said = {}
    for name, entry in TABLE.get(part, {}).items():
        inherited = TABLE["options"].get(entry.get("with"), {})
        said[name] = listed(entry["all"], entry.get("bindings"), entry.get("python"), inherited.get("all"), inherited.get("bindings"))
    for name, more in TABLE.get("python", {}).get(part, {}).items():
        said[name] = said.get(name, set()) | listed(more)
    return said


def members(name: str) -> set[str]:
    return {member for member, _ in inspect.getmembers(getattr(sandhold, name)) if not member.startswith("_")}


def fields(name: str) -> dict[str, ast.AnnAssign]:
    """The keys of a TypedDict, with those of its bases."""
    own = {node.target.id: node for node in DECLARED[name].body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    bases = [fields(base.id) for base in DECLARED[name].bases if isinstance(base, ast.Name) and base.id in DECLARED]
    return {key: node for base in [*bases, own] for key, node in base.items()}


@pytest.mark.parametrize(("name", "wanted"), [*entries("classes").items(), *entries("values").items()])
def every_class_has_what_the_list_says_for_threads_and_for_event_loops(name: str, wanted: set[str]) -> None:
    assert members(name) == wanted
    if hasattr(sandhold, "Async" + name):
        assert members("Async" + name) == wanted


@pytest.mark.parametrize(("name", "wanted"), entries("options").items())
def every_option_is_one_of_the_list(name: str, wanted: set[str]) -> None:
    assert set(fields("_" + name)) == wanted


def the_list_has_every_class_of_the_package() -> None:
    classes = {name for name in sandhold.__all__ if not issubclass(getattr(sandhold, name), sandhold.SandboxError)}
    known = set(entries("classes")) | set(entries("values"))
    assert classes - {name for known_name in known for name in (known_name, "Async" + known_name)} == set()


@pytest.mark.parametrize(("at", "words"), [(said["at"], said["are"]) for said in TABLE.get("words", {}).values()])
def the_words_are_those_of_the_list(at: str, words: str) -> None:
    name, member = at.split(".")
    if "_" + name in DECLARED:
        said = ast.unparse(fields("_" + name)[member].annotation)
    else:
        (method,) = [node for node in DECLARED[name].body if isinstance(node, ast.FunctionDef) and node.name == member]
        assert method.returns is not None
        said = ast.unparse(method.returns)
    said = re.sub(r"\b_\w+", lambda alias: ALIASES.get(alias[0], alias[0]), said)
    assert set(re.findall(r"'(\w+)'", said)) == set(words.split())


@pytest.mark.parametrize(("at", "value"), TABLE.get("defaults", {}).items())
def every_default_is_told_as_it_is(at: str, value: dict[str, int]) -> None:
    name, member = at.split(".")
    ((unit, number),) = value.items()
    text = {"seconds": f"{number} s", "bytes": f"{number >> 20} MiB", "count": f"{number}"}[unit]
    line = STUB.splitlines()[fields("_" + name)[member].lineno - 1]
    assert re.search(rf"# .*Default {text}\b", line), line
