"""The console's login: cookies, other sites, wrong tokens, several processes; and the headers of each answer."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2 as httpx
import pytest
import sqlalchemy as sa

from paceline.server.access.authenticator import create_token, rotate_token
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from tests.effort import combinations

OWN = {"Origin": "http://paceline", "Sec-Fetch-Site": "same-origin"}
CONFIG = {"configName": "c", "maxPerWindow": 5, "windowSize": "PT1S"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path / 'console.db'}")


@asynccontextmanager
async def client(settings: Settings, url: str = "http://paceline") -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url) as opened,
    ):
        yield opened


async def made(settings: Settings, name: str, *scopes: str) -> str:
    async with open_access_store(settings) as store:
        secret, _ = await create_token(store, name, scopes)
    return secret


async def log_in(http: httpx.AsyncClient, secret: str) -> httpx.Response:
    return await http.post("/console/session", json={"token": secret}, headers={"Origin": str(http.base_url)})


def as_header(http: httpx.AsyncClient) -> dict[str, str]:
    """A client's cookies, for another client to send."""
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in http.cookies.items())}


async def test_a_login_shows_what_its_scopes_allow_and_no_more(settings: Settings) -> None:
    secret = await made(settings, "reader", "read")
    async with client(settings) as http:
        nobody = (await http.get("/console/session")).json()
        assert nobody == {
            "loginRequired": True,
            "name": None,
            "scopes": [],
            "names": [],
            "expiresAt": None,
            "openid": False,
        }
        assert (await http.get("/api/v1/forecast")).status_code == 401
        answer = await log_in(http, secret)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["name"], answer.json()["scopes"]) == ("reader", ["read"])
        assert (await http.get("/console/session")).json() == answer.json()
        assert (await http.get("/api/v1/forecast")).status_code == 200
        slot = {"eventId": "e", "requestedTime": "2027-03-01T16:00:00Z"}
        refused = await http.post("/api/v1/slots", json=slot, headers=OWN)
        assert refused.status_code == 403
        assert "scope assign" in refused.json()["detail"]
        refused = await http.get("/admin/plans")
        assert refused.status_code == 403
        assert "scope view" in refused.json()["detail"]


async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        cookie = (await log_in(http, secret)).headers["set-cookie"]
        pattern = r"paceline-session=[\w-]{43}; Max-Age=(43200|43199|43198); Path=/; HttpOnly; SameSite=Strict"
        assert re.fullmatch(pattern, cookie), cookie
        assert secret not in cookie
    async with client(settings, "https://paceline") as http:
        cookie = (await log_in(http, secret)).headers["set-cookie"]
        assert cookie.startswith("__Host-paceline-session=")
        assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")
        assert (await http.get("/admin/plans")).status_code == 200


async def test_changes_are_recorded_under_the_tokens_name(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        assert (await http.post("/admin/rate-limit/config", json=CONFIG, headers=OWN)).status_code == 200
        [entry] = (await http.get("/admin/audit")).json()
        assert (entry["caller"], entry["path"], entry["status"]) == ("operator", "/admin/rate-limit/config", 200)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://paceline.evil.example"},
        {"Origin": "http://paceline:81"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://paceline", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    ],
)
async def test_another_sites_page_changes_nothing_with_our_cookie(settings: Settings, headers: dict[str, str]) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        for method, path in (
            ("POST", "/admin/rate-limit/config"),
            ("PUT", "/admin/plans/p"),
            ("DELETE", "/api/v1/slots/e"),
            ("PATCH", "/admin/dispatch/PAYMENT"),
            ("DELETE", "/console/session"),
        ):
            refused = await http.request(method, path, headers=headers)
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:paceline:problem:cross-site"), method
        assert (await http.get("/admin/audit")).json() == []
        bearer = {"Authorization": f"Bearer {secret}", **headers}
        assert (await http.post("/admin/rate-limit/config", json=CONFIG, headers=bearer)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://paceline"}, {"Sec-Fetch-Site": "same-origin"}, {**OWN}, {"Origin": "https://PACELINE"}],
)
async def test_our_own_page_may(settings: Settings, headers: dict[str, str]) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        assert (await http.post("/admin/rate-limit/config", json=CONFIG, headers=headers)).status_code == 200


async def test_without_tokens_nobody_logs_in_and_other_sites_still_change_nothing(settings: Settings) -> None:
    async with client(settings) as http:
        session = (await http.get("/console/session")).json()
        assert (session["loginRequired"], session["name"], session["expiresAt"]) == (False, "anyone", None)
        assert (await log_in(http, "anything")).json() == session
        assert "set-cookie" not in (await log_in(http, "anything")).headers
        crossing = {"Origin": "http://evil.example"}
        for more in ({}, {"Authorization": "Bearer x"}):
            refused = await http.post("/admin/rate-limit/config", json=CONFIG, headers={**crossing, **more})
            assert refused.status_code == 403
            assert (await http.get("/admin/audit", headers={**crossing, **more})).status_code == 403
        assert (await http.get("/admin/audit", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403
        assert (await http.get("/admin/audit", headers={"Sec-Fetch-Site": "none"})).status_code == 200  # typed
        assert (await http.post("/admin/rate-limit/config", json=CONFIG)).status_code == 200


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("http://127.0.0.1:8080", 200),
        ("http://[::1]:8080", 200),
        ("http://localhost:8080", 200),
        ("http://app.localhost", 200),
        ("http://paceline:8080", 200),
        ("http://127.0.0.1.evil.example:8080", 403),
        ("http://evil.example", 403),
        ("http://localhost.evil.example:8080", 403),
        ("http://localhost.:8080", 200),
        ("http://evil.example.", 403),
    ],
)
async def test_without_tokens_a_name_pointed_at_this_machine_reads_and_changes_nothing(
    settings: Settings, url: str, status: int
) -> None:
    async with client(settings, url) as http:
        own = {"Origin": url}
        # Over plain HTTP, browsers send no origin for reads of their own origin.
        origins: list[dict[str, str]] = [own, {"Sec-Fetch-Site": "same-origin"}, {}]
        shown = [{"Authorization": "Bearer x"}, {"Authorization": "Basic x"}, {"Cookie": "paceline-session=x"}]
        for origin, more in [*((origin, {}) for origin in origins), *combinations(origins, shown)]:
            headers = {**origin, **more}
            changed = await http.post("/admin/rate-limit/config", json=CONFIG, headers=headers)
            assert changed.status_code == status, headers
            for path in ("/admin/audit", "/api/v1/forecast?events=1", "/metrics", "/console/session"):
                assert (await http.get(path, headers=headers)).status_code == status, (path, headers)
        assert (await http.get("/health/live")).status_code == 200
        await made(settings, "operator", "admin")
    async with client(settings, url) as http:
        await log_in(http, "wrong")
        assert (await http.post("/admin/rate-limit/config", json=CONFIG, headers=own)).status_code == 401


async def test_logging_out_ends_the_session_in_every_process(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http, client(settings) as other:
        await log_in(http, secret)
        stolen = as_header(http)
        assert (await other.get("/admin/plans", headers=stolen)).status_code == 200
        ended = await http.delete("/console/session", headers=OWN)
        assert ended.status_code == 204
        assert ended.headers["set-cookie"].startswith("paceline-session=; Max-Age=0; Path=/; HttpOnly")
        assert not http.cookies
        for service in (http, other):
            refused = await service.get("/admin/plans", headers=stolen)
            assert refused.status_code == 401
            assert "session has ended" in refused.json()["detail"]


async def test_a_revoked_token_ends_its_sessions_with_the_next_request(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    await made(settings, "other", "admin")
    async with client(settings) as http, client(settings) as other:
        await log_in(http, secret)
        cookies = as_header(http)
        for service in (http, other):
            assert (await service.get("/admin/plans", headers=cookies)).status_code == 200
        async with open_access_store(settings) as store:
            await store.revoke("operator")
        for service in (http, other):
            assert (await service.get("/admin/plans", headers=cookies)).status_code == 401
            assert (await service.get("/console/session", headers=cookies)).json()["name"] is None


async def test_a_token_that_was_rotated_opens_by_both_secrets_until_the_overlap_ends_and_expires_with_both(
    settings: Settings,
) -> None:
    first = await made(settings, "operator", "admin")
    await made(settings, "other", "admin")

    async def rotated(overlap: timedelta) -> str:
        async with open_access_store(settings) as store:
            secret, _ = await rotate_token(store, "operator", overlap)
        return secret

    async def statuses(*tokens: str) -> list[int]:
        async with client(settings) as http:  # a process that has read no token before
            sent = [{"Authorization": f"Bearer {token}"} for token in tokens]
            return [(await http.get("/admin/plans", headers=headers)).status_code for headers in sent]

    second = await rotated(timedelta(hours=1))
    assert await statuses(first, second) == [200, 200]
    third = await rotated(timedelta(0))
    assert await statuses(first, second, third) == [401, 401, 200]
    with sqlite3.connect(settings.database_url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE paceline_token SET expires_at = '2026-01-01 00:00:00.000000' WHERE name = 'operator'")
    database.close()
    assert await statuses(third) == [401]
    async with client(settings) as http:
        assert (await log_in(http, third)).status_code == 401


async def test_each_request_is_logged_with_the_callers_token_and_address(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await http.get("/admin/plans", headers={"Authorization": f"Bearer {secret}"})
        await http.get("/admin/plans", headers={"Authorization": "Bearer guessed"})
        await log_in(http, secret)
        await http.get("/admin/plans")
    lines = [line for line in "".join(capsys.readouterr()).splitlines() if "path=/admin/plans" in line]
    callers = [re.findall(r"caller=(\S+)", line) for line in lines]
    assert callers == [["operator"], ["-"], ["operator"]]
    assert all("address=127.0.0.1" in line for line in lines)


async def test_sessions_expire(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        assert (await http.get("/admin/plans")).status_code == 200
        with sqlite3.connect(settings.database_url.removeprefix("sqlite:///")) as database:
            database.execute("UPDATE paceline_session SET expires_at = '2026-01-01 00:00:00.000000'")
        database.close()
        assert (await http.get("/admin/plans")).status_code == 401


async def test_a_cookie_that_was_tampered_with_is_worth_nothing(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        good = http.cookies["paceline-session"]
        http.cookies.clear()
        for value in (good[:-1], good + "A", good.swapcase(), secret, "", "operator", "a=b", "\xff".encode().hex()):
            cookie = {"Cookie": f"theme=dark; paceline-session={value}"}
            assert (await http.get("/admin/plans", headers=cookie)).status_code == 401, value
        assert (await http.get("/admin/plans", headers={"Cookie": f"a=b; paceline-session={good}"})).status_code == 200
        # A token that is wrong is wrong, whatever cookie comes with it.
        wrong = {"Cookie": f"paceline-session={good}", "Authorization": "Bearer wrong"}
        assert (await http.get("/admin/plans", headers=wrong)).status_code == 401


async def test_another_schemes_login_does_not_shadow_the_session(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        assert (await http.get("/admin/plans", headers={"Authorization": "Basic eDp5"})).status_code == 200
        crossing = {"Authorization": "Basic eDp5", "Origin": "http://evil.example"}
        assert (await http.post("/admin/rate-limit/config", json=CONFIG, headers=crossing)).status_code == 403


async def test_logging_in_again_ends_the_earlier_session_of_that_browser(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        earlier = as_header(http)
        assert (await log_in(http, "wrong")).status_code == 401
        assert (await http.get("/admin/plans")).status_code == 200
        await log_in(http, secret)
        assert (await http.get("/admin/plans")).status_code == 200
        http.cookies.clear()
        assert (await http.get("/admin/plans", headers=earlier)).status_code == 401


async def test_guessing_is_slowed_down_and_the_owner_is_not_locked_out_by_logging_in_often(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        for _ in range(15):
            assert (await log_in(http, secret)).status_code == 200
        for _ in range(10):
            refused = await log_in(http, "wrong")
            assert refused.status_code == 401
            assert refused.headers["content-type"] == "application/problem+json"
        refused = await log_in(http, "wrong")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        # A new user at the same address is not locked out with the guesser.
        assert (await log_in(http, secret)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [{}, {"token": 5}, {"token": ""}, {"token": "x" * 513}, {"token": "x", "remember": True}, [], {"token": None}],
)
async def test_a_login_that_makes_no_sense_is_refused(settings: Settings, body: object) -> None:
    await made(settings, "operator", "admin")
    async with client(settings) as http:
        assert (await http.post("/console/session", json=body)).status_code == 400
        half = await http.post(
            "/console/session", content=rb'{"token": "\ud800"}', headers={"Content-Type": "application/json"}
        )
        assert half.status_code == 400
        assert (await http.post("/console/session", data={"token": "x"})).status_code == 415


async def test_a_login_with_a_large_body_is_refused_unread(settings: Settings) -> None:
    await made(settings, "operator", "admin")
    async with client(settings) as http:
        for content in (b"x" * 5000, b'{"token": "' + b"x" * 4096 + b'"}'):
            refused = await http.post("/console/session", content=content, headers={"Content-Type": "application/json"})
            assert (refused.status_code, refused.headers["connection"]) == (413, "close")


async def test_a_made_up_session_costs_no_database_read(settings: Settings) -> None:
    secret = await made(settings, "operator", "admin")
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    app = create_app(settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://paceline") as http:
            assert (await log_in(http, secret)).status_code == 200
            good = http.cookies["paceline-session"]
            http.cookies.clear()
            sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
            try:
                flipped = good[:-2] + ("AA" if good[-2:] != "AA" else "QQ")
                for value in (flipped, "x", "", "A" * 43, "é" * 20, secrets.token_urlsafe(32)):
                    cookie = {b"Cookie": f"paceline-session={value}".encode()}
                    assert (await http.get("/admin/plans", headers=cookie)).status_code == 401
                    assert (await http.get("/console/session", headers=cookie)).json()["name"] is None
                assert [line for line in statements if "paceline_session" in line or "paceline_token" in line] == []
                cookie = {b"Cookie": f"paceline-session={good}".encode()}
                assert (await http.get("/admin/plans", headers=cookie)).status_code == 200
                assert [line for line in statements if "paceline_session" in line] != []
            finally:
                sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)


async def test_the_longest_token_fits_however_it_is_escaped(settings: Settings) -> None:
    await made(settings, "operator", "admin")
    async with client(settings) as http:
        content = b'{"token": "' + rb"\u00e9" * 512 + b'"}'
        refused = await http.post("/console/session", content=content, headers={"Content-Type": "application/json"})
        assert refused.status_code == 401


async def test_made_up_names_are_cut_short_in_the_answer(settings: Settings) -> None:
    async with client(settings) as http:
        refused = await http.post("/admin/rate-limit/config", json={"k" * 1_000_000: 1})
        assert refused.status_code == 400
        assert len(refused.content) < 4096
        assert refused.json()["field"] == "k" * 128 + "…"


@pytest.mark.parametrize("path", ["/", "/console/app.js", "/health/live", "/health/ready", "/metrics", "/admin/plans"])
async def test_head_is_get_without_a_body(settings: Settings, path: str) -> None:
    async with client(settings) as http:
        head, got = await http.head(path), await http.get(path)
        assert (head.status_code, head.content, got.status_code) == (200, b"", 200)
        assert head.headers["content-type"] == got.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
        assert (await http.head("/api/v1/limits/acquire")).status_code == 405


async def test_no_secret_is_logged(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    secret = await made(settings, "operator", "admin")
    async with client(settings) as http:
        await log_in(http, secret)
        session = http.cookies["paceline-session"]
        await log_in(http, "a-wrong-token")
        await http.get("/admin/plans")
    written = "".join(capsys.readouterr())
    assert "logged in" in written
    assert "login refused" in written
    for hidden in (secret, session, "a-wrong-token"):
        assert hidden not in written
