"""Logging in to the console with an account of an OpenID provider, which runs here."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import uvicorn
from click.testing import CliRunner
from joserfc.jwk import RSAKey

from paceline.errors import ConfigurationError
from paceline.server.access import oidc
from paceline.server.cli import app
from paceline.server.cli.doctor import service
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.server.wiring.access import oidc_provider
from paceline.testing import eventually
from tests.integration.openid_provider import CLIENT, SECRET, OpenIdProvider, path_and_query

SCOPES = '{"ops": "admin", "billing": "read assign"}'


@pytest.fixture
async def provider() -> AsyncIterator[OpenIdProvider]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        running = OpenIdProvider(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server = uvicorn.Server(uvicorn.Config(running.app, log_config=None, lifespan="off"))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server.serve([listening]))
        await eventually(lambda: server.started)
        yield running
        server.should_exit = True
        await serving


def settings(tmp_path: Path, provider: OpenIdProvider, **changes: Any) -> Settings:
    chosen = {"issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET, "scopes": SCOPES}
    return Settings(database_url=f"sqlite:///{tmp_path / 'oidc.db'}", oidc=chosen | changes)


@asynccontextmanager
async def browser(chosen: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(chosen)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline") as opened,
    ):
        yield opened


async def test_the_doctor_asks_the_provider(tmp_path: Path, provider: OpenIdProvider) -> None:
    [answering] = await service.examine(settings(tmp_path, provider))
    assert (answering.name, answering.ok) == ("oidc", True)
    [another] = await service.examine(settings(tmp_path, provider, issuer=f"{provider.issuer}/"))
    assert not another.ok
    assert "another issuer" in another.summary
    [incomplete] = await service.examine(settings(tmp_path, provider, scopes={}))
    assert "is required with an issuer" in incomplete.summary
    [silent] = await service.examine(settings(tmp_path, provider, issuer="http://127.0.0.1:1"))
    assert "does not answer" in silent.summary
    assert silent.advice == "check PACELINE_OIDC_ISSUER and that the provider runs"


async def come_back(http: httpx.AsyncClient) -> httpx.Response:
    """All of a login, up to the provider's answer."""
    begun = await http.get("/console/oidc/login")
    assert begun.status_code == 302, begun.text
    async with httpx.AsyncClient() as outside:
        answered = await outside.get(begun.headers["location"])
    return await http.get(path_and_query(answered.headers["location"]))


async def test_a_group_decides_what_a_person_may_do(tmp_path: Path, provider: OpenIdProvider) -> None:
    async with browser(settings(tmp_path, provider)) as http:
        assert (await http.get("/admin/plans")).status_code == 401, "nobody is let in because there is no token"
        assert (await http.get("/console/session")).json()["openid"] is True
        answer = await come_back(http)
        assert answer.status_code == 200
        assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
        assert provider.redirects == {"http://paceline/console/oidc/callback"}
        session = (await http.get("/console/session")).json()
        assert re.fullmatch(r"oidc:anna#[0-9a-f]{8}", session["name"])
        assert session["scopes"] == ["admin"]
        assert (await http.get("/admin/plans")).status_code == 200
        plan = {"algorithm": "token_bucket", "capacity": 1, "perSecond": 1}
        own = {"Origin": "http://paceline", "Sec-Fetch-Site": "same-origin"}
        assert (await http.put("/admin/plans/p", json=plan, headers=own)).status_code == 200
        assert (await http.get("/admin/audit")).json()[0]["caller"] == session["name"]
        provider.person["groups"] = ["billing", "others"]
        assert (await come_back(http)).status_code == 200
        assert (await http.get("/console/session")).json()["scopes"] == ["assign", "read"]
        assert (await http.get("/admin/plans")).status_code == 403
        assert (await http.delete("/console/session", headers=own)).status_code == 204
        assert (await http.get("/admin/plans")).status_code == 401


async def test_a_group_that_a_person_left_gives_them_nothing_from_the_next_check_on(
    tmp_path: Path, provider: OpenIdProvider
) -> None:
    async with browser(settings(tmp_path, provider, check_seconds=0)) as http:
        assert (await come_back(http)).status_code == 200
        assert (await http.get("/admin/plans")).status_code == 200
        provider.person["groups"] = ["billing"]
        assert (await http.get("/admin/plans")).status_code == 403
        assert (await http.get("/console/session")).json()["scopes"] == ["assign", "read"]
        provider.person["groups"] = ["others"]
        assert (await http.get("/console/session")).json()["name"] is None
        provider.person["groups"] = ["ops"]
        assert (await http.get("/admin/plans")).status_code == 401, "the session has ended"


PLAN = {"algorithm": "token_bucket", "capacity": 1, "perSecond": 1}
OWN = {"Origin": "http://paceline", "Sec-Fetch-Site": "same-origin"}
TEAMS = {
    "scopes": '{"team-a": "admin", "team-b": "view", "all": "view", "billing": "assign"}',
    "names": '{"team-a": "team-a-* shared", "team-b": ["team-b-*"], "billing": "billing"}',
}


async def written(http: httpx.AsyncClient, name: str) -> int:
    return (await http.put(f"/admin/plans/{name}", json=PLAN, headers=OWN)).status_code


async def test_a_group_with_names_sees_and_changes_only_its_own(tmp_path: Path, provider: OpenIdProvider) -> None:
    provider.person["groups"] = ["ops"]
    async with browser(settings(tmp_path, provider)) as http:
        await come_back(http)
        for name in ("team-a-1", "team-b-1", "shared"):
            assert await written(http, name) == 200
    async with browser(settings(tmp_path, provider, check_seconds=0, **TEAMS)) as http:

        async def seen() -> list[str]:
            return [plan["name"] for plan in (await http.get("/admin/plans")).json()["plans"]]

        provider.person["groups"] = ["team-a"]
        await come_back(http)
        assert await seen() == ["shared", "team-a-1"]
        assert (await http.get("/admin/plans/team-b-1")).status_code == 403
        assert (await written(http, "team-b-1"), await written(http, "team-a-2")) == (403, 200)
        provider.person["groups"] = ["team-a", "team-b"]
        assert await seen() == ["shared", "team-a-1", "team-a-2", "team-b-1"]
        assert await written(http, "team-a-3") == 403, "one of the teams may only view"
        provider.person["groups"] = ["team-a", "all"]
        assert await seen() == ["shared", "team-a-1", "team-a-2"], "a group without names lifts no bound"
        assert await written(http, "team-a-3") == 200
        provider.person["groups"] = ["all"]
        assert await seen() == ["shared", "team-a-1", "team-a-2", "team-a-3", "team-b-1"]


async def test_groups_with_names_that_permit_nothing_in_common_are_told_so(
    tmp_path: Path, provider: OpenIdProvider
) -> None:
    provider.person["groups"] = ["team-b", "billing"]
    async with browser(settings(tmp_path, provider, **TEAMS)) as http:
        assert (await come_back(http)).status_code == 403


async def test_an_account_that_the_provider_closed_ends_its_sessions(tmp_path: Path, provider: OpenIdProvider) -> None:
    async with browser(settings(tmp_path, provider, check_seconds=0)) as http:
        assert (await come_back(http)).status_code == 200
        assert (await http.get("/admin/plans")).status_code == 200
        provider.leave()
        assert (await http.get("/admin/plans")).status_code == 401


async def test_settings_that_give_a_group_less_hold_for_open_sessions(tmp_path: Path, provider: OpenIdProvider) -> None:
    async with browser(settings(tmp_path, provider)) as http:
        assert (await come_back(http)).status_code == 200
        cookies = http.cookies
    async with browser(settings(tmp_path, provider, scopes='{"ops": "read"}')) as http:
        http.cookies = cookies
        assert (await http.get("/console/session")).json()["scopes"] == ["read"]
        assert (await http.get("/admin/plans")).status_code == 403


async def test_a_login_that_can_not_be_checked_again_is_short(tmp_path: Path, provider: OpenIdProvider) -> None:
    provider.refreshes = False
    async with browser(settings(tmp_path, provider)) as http:
        assert (await come_back(http)).status_code == 200
        expires_at = datetime.fromisoformat((await http.get("/console/session")).json()["expiresAt"])
    assert expires_at <= datetime.now(UTC) + timedelta(hours=1)


async def test_two_people_of_one_name_are_two_callers(tmp_path: Path, provider: OpenIdProvider) -> None:
    async with browser(settings(tmp_path, provider)) as http, browser(settings(tmp_path, provider)) as other:
        assert (await come_back(http)).status_code == 200
        provider.person["sub"] = "u2"
        assert (await come_back(other)).status_code == 200
        names = {(await each.get("/console/session")).json()["name"] for each in (http, other)}
    assert len(names) == 2


async def test_an_operator_sees_and_ends_sessions(tmp_path: Path, provider: OpenIdProvider) -> None:
    own = {"Origin": "http://paceline", "Sec-Fetch-Site": "same-origin"}
    async with browser(settings(tmp_path, provider)) as http, browser(settings(tmp_path, provider)) as operator:
        assert (await come_back(http)).status_code == 200
        provider.person |= {"sub": "u2", "preferred_username": "olga"}
        assert (await come_back(operator)).status_code == 200
        newest, anna = (await operator.get("/admin/sessions")).json()
        assert newest["caller"].startswith("oidc:olga#")
        assert (anna["groups"], anna["caller"][:10]) == (["ops"], "oidc:anna#")
        assert (await operator.delete("/admin/sessions/nobody", headers=own)).status_code == 404
        ended = await operator.delete(f"/admin/sessions/{anna['id']}", headers=own)
        assert [each["id"] for each in ended.json()] == [anna["id"]]
        assert (await http.get("/admin/plans")).status_code == 401
        assert (await operator.get("/admin/plans")).status_code == 200
        arguments = {"PACELINE_DATABASE_URL": f"sqlite:///{tmp_path / 'oidc.db'}"}
        listed = await asyncio.to_thread(CliRunner().invoke, app, ["sessions", "list", "--json"], env=arguments)
        assert [each["id"] for each in json.loads(listed.output)] == [newest["id"]]
        done = await asyncio.to_thread(CliRunner().invoke, app, ["sessions", "end", newest["caller"]], env=arguments)
        assert done.exit_code == 0, done.output
        assert (await operator.get("/admin/plans")).status_code == 401


@pytest.mark.parametrize(
    ("changes", "person"),
    [
        ({}, {"groups": ["others"]}),
        ({}, {"groups": None}),
        ({"aud": "another"}, {}),
        ({"aud": [CLIENT, "another"]}, {}),
        ({"iss": "http://another"}, {}),
        ({"nonce": "another"}, {}),
        ({"exp": 1_700_000_000}, {}),
    ],
)
async def test_what_proves_nobody_opens_no_session(
    tmp_path: Path, provider: OpenIdProvider, changes: dict[str, Any], person: dict[str, Any]
) -> None:
    provider.changes, provider.person = changes, provider.person | person
    async with browser(settings(tmp_path, provider)) as http:
        answer = await come_back(http)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        assert (await http.get("/console/session")).json()["name"] is None


async def test_another_key_of_the_same_name_is_not_believed_and_a_new_key_is(
    tmp_path: Path, provider: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "KEYS_AGE_SECONDS", -1.0)
    async with browser(settings(tmp_path, provider)) as http:
        provider.signing = RSAKey.generate_key(2048, {"kid": "first"}, private=True)
        assert (await come_back(http)).status_code == 403
        provider.key = provider.signing = RSAKey.generate_key(2048, {"kid": "second"}, private=True)
        assert (await come_back(http)).status_code == 200


async def test_a_login_that_was_not_begun_here_ends_nowhere(tmp_path: Path, provider: OpenIdProvider) -> None:
    async with browser(settings(tmp_path, provider)) as http, browser(settings(tmp_path, provider)) as other:
        begun = await http.get("/console/oidc/login")
        async with httpx.AsyncClient() as outside:
            answered = await outside.get(begun.headers["location"])
        back = path_and_query(answered.headers["location"])
        assert (await other.get(back)).status_code == 401, "somebody else's browser: no cookie"
        assert (await http.get(back.replace("state=", "state=x"))).status_code == 401
        forged = {"Cookie": "paceline-oidc=" + http.cookies["paceline-oidc"][:-4] + "0000"}
        assert (await other.get(back, headers=forged)).status_code == 401
        assert (await http.get(back)).status_code == 200
        assert (await http.get(back)).status_code == 401, "a second time"


async def test_a_provider_that_is_down_or_another_one_is_reported(tmp_path: Path, provider: OpenIdProvider) -> None:
    async with browser(settings(tmp_path, provider, issuer="http://127.0.0.1:9")) as http:
        assert (await http.get("/console/oidc/login")).status_code == 503
    provider.issuer += "/other"
    chosen = settings(tmp_path, provider, issuer=provider.issuer.removesuffix("/other"))
    async with browser(chosen) as http:
        assert (await http.get("/console/oidc/login")).status_code == 403


async def test_without_a_provider_there_is_no_such_login(tmp_path: Path) -> None:
    async with browser(Settings(database_url=f"sqlite:///{tmp_path / 'plain.db'}")) as http:
        assert (await http.get("/console/oidc/login")).status_code == 404
        assert (await http.get("/console/session")).json()["openid"] is False


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        ({"issuer": "https://login.example.com"}, "PACELINE_OIDC_CLIENT_ID"),
        ({"issuer": "https://login.example.com", "client_id": "x"}, "PACELINE_OIDC_SCOPES"),
        ({"issuer": "http://login.example.com", "client_id": "x", "scopes": SCOPES}, "PACELINE_OIDC_ISSUER"),
        (
            {"issuer": "https://login.example.com", "client_id": "x", "scopes": '{"ops": "root"}'},
            "PACELINE_OIDC_SCOPES.ops.0",
        ),
        ({"issuer": "https://login.example.com", "client_id": "x", "scopes": "ops"}, "PACELINE_OIDC_SCOPES"),
        *(
            (
                {"issuer": "https://login.example.com", "client_id": "x", "scopes": SCOPES, "names": names},
                "PACELINE_OIDC_NAMES",
            )
            for names in ('{"ops": ""}', '{"ops": "team-*-a"}', '{"sales": "sales-*"}')
        ),
    ],
)
def test_settings_that_can_not_work_are_refused_by_name(chosen: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: "):
        oidc_provider(Settings.load(oidc=chosen))
