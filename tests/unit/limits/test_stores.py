"""Which store a URL names, and what asking for it loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline import AsyncLimiter, Limiter
from paceline.errors import ConfigurationError
from paceline.limits.stores import async_limit_store, limit_store


def test_limits_in_memory_load_no_database_library() -> None:
    script = (
        "import sys; from paceline import AsyncLimiter, Limiter; Limiter('memory://'); AsyncLimiter('memory://');"
        "print(*sorted({'sqlalchemy', 'alembic', 'pydantic', 'redis', 'psycopg'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "\n"


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("url", "deadline", "kept"),
    [
        ("redis://nowhere", None, 0.5),
        ("redis://nowhere?timeout=2", None, 2),
        ("redis+sentinel://nowhere/main?timeout=2", 0.1, 0.1),
    ],
)
def test_a_deadline_is_the_limiters_or_the_urls(kind: Any, url: str, deadline: float | None, kept: float) -> None:
    assert kind(url, deadline=deadline)._store._client.url.timeout == kept


@pytest.mark.parametrize("url", ["mysql://host/db", "memcached://host", "nonsense", ""])
def test_an_unknown_store_is_refused_when_it_is_named(url: str) -> None:
    for opened in (limit_store, async_limit_store):
        with pytest.raises(ConfigurationError, match="no known limit store"):
            opened(url)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("url", ["memory://?max_keys=10", "memory://limits", "memory:/limits", "memory:///limits.db"])
def test_a_memory_url_that_says_more_is_refused(kind: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match="takes no host, path or options"):
        kind(url)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("observer", [5, "metrics", print])
def test_an_observer_that_can_not_be_told_is_refused(kind: Any, observer: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"observer: .* is no AdmissionObserver"):
        kind(observer=observer)


@pytest.mark.parametrize("factory", [limit_store, async_limit_store])
def test_unknown_stores_are_refused_by_name(factory: object) -> None:
    assert callable(factory)
    with pytest.raises(ConfigurationError, match="'mongodb' is no known limit store"):
        factory("mongodb://h")
    with pytest.raises(ConfigurationError, match="'oracle'"):
        factory("oracle://h/service")


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("host://", "needs a name of up to 64"),
        ("host://../shadow", "needs a name of up to 64"),
        ("host://.hidden", "needs a name of up to 64"),
        (f"host://{'x' * 65}", "needs a name of up to 64"),
        ("host://shop?megabytes=0", "megabytes="),
        ("host://shop?megabytes=1.5", "megabytes="),
        ("host://shop?size=4", r"\?size=4 can't be used"),
    ],
)
def test_a_host_url_that_can_not_be_used_is_refused(kind: Any, url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        kind(url)


def test_limits_of_a_host_need_linux_or_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(ConfigurationError, match="works on Linux and macOS, not on win32; use redis://"):
        Limiter("host://shop")
