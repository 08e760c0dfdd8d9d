"""Sandboxes on this machine for every test, each with a key of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandhold import LocalProvider, Sandboxes

_keys = itertools.count()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def provider(home: Path) -> LocalProvider:
    return LocalProvider(home=home)


@pytest.fixture
def key(provider: LocalProvider) -> Iterator[str]:
    """A key whose sandbox goes with the test."""
    key = f"key-{next(_keys)}"
    yield key
    Sandboxes(provider).destroy(key)


@pytest.fixture
def host(provider: LocalProvider) -> Callable[..., Sandboxes]:
    """Makes a host."""

    def make(**options: Any) -> Sandboxes:
        return Sandboxes(provider, **options)

    return make


@pytest.fixture
def sandbox(provider: LocalProvider, key: str) -> Any:
    return Sandboxes(provider).acquire(key)
