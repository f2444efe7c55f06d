"""Flask: the decorator and the rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from flask import Flask, Response, abort, current_app, request

from paceline import AsyncLimiter, Concurrency, FixedWindow, Limiter, Plan
from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.integrations.flask import PathRule, client_address, everyone, header, install, principal, rate_limit

PLANS = [Plan("small", FixedWindow(limit=1, window="PT1H")), Plan("large", FixedWindow(limit=5, window="P1D"))]
KEY = {"X-API-Key": "ada"}
View = Callable[..., Any]


def make(*rules: PathRule, **options: Any) -> Flask:
    app = Flask(__name__)
    app.testing = True
    install(app, Limiter(plans=PLANS), rules, **options)
    return app


def test_stacked_decorators_are_one_atomic_chain() -> None:
    app = make()

    @app.get("/<name>")
    @rate_limit("small", key=header("X-API-Key"))
    @rate_limit("large", key=client_address())
    def view(name: str) -> str:
        return f"hello {name}"

    client = app.test_client()
    first = client.get("/ada", headers=KEY)
    assert first.text == "hello ada"
    assert first.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=4;t=86400'
    denied = client.get("/ada", headers=KEY)
    assert denied.status_code == 429
    assert denied.mimetype == "application/problem+json"
    assert denied.headers["RateLimit"] == '"small";r=0;t=3600, "large";r=4;t=86400'
    assert denied.headers["Retry-After"] == "3600"
    assert client.get("/ada").status_code == 400


def signed_in(view: View) -> View:
    """Somebody else's decorator, of the usual kind."""

    @wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return current_app.ensure_sync(view)(*args, **kwargs) if "X-API-Key" in request.headers else ("who?", 401)

    return checked


@pytest.mark.parametrize("is_async", [False, True])
def test_a_decorator_between_two_limits_stays(is_async: bool) -> None:
    if is_async:
        pytest.importorskip("asgiref")

    async def hello_async() -> str:
        return "hello"

    inner = rate_limit("small", key=everyone("all"))(hello_async if is_async else lambda: "hello")
    app = make()
    app.add_url_rule("/", "view", rate_limit("large", key=everyone("all"))(signed_in(inner)))
    client = app.test_client()
    stranger = client.get("/")
    assert (stranger.status_code, stranger.text) == (401, "who?")
    assert stranger.headers.get_all("RateLimit") == ['"large";r=4;t=86400']
    known = client.get("/", headers=KEY)
    assert known.text == "hello"
    assert known.headers.get_all("RateLimit") == ['"large";r=3;t=86400, "small";r=0;t=3600']
    assert client.get("/", headers=KEY).status_code == 429
    assert client.get("/").status_code == 401


def test_limits_are_stacked_beside_another_decorator() -> None:
    app = make()
    limited = rate_limit("small", key=everyone("all"))(rate_limit("large", key=everyone("all"))(lambda: "hello"))
    app.add_url_rule("/", "view", rate_limit("large", key=everyone("others"))(signed_in(limited)))
    fields = app.test_client().get("/", headers=KEY).headers.get_all("RateLimit")
    assert fields == ['"large";r=4;t=86400, "small";r=0;t=3600, "large";r=4;t=86400']


def test_what_marked_a_view_between_two_limits_is_seen() -> None:
    def for_admins(view: View) -> View:
        view.role = "admin"  # type: ignore[attr-defined]
        return view

    app = make()
    inner = for_admins(rate_limit("small", key=everyone("all"))(lambda: "hello"))
    app.add_url_rule("/", "view", rate_limit("large", key=everyone("all"))(inner))
    assert vars(app.view_functions["view"])["role"] == "admin"
    assert app.test_client().get("/").headers["RateLimit"] == '"large";r=4;t=86400, "small";r=0;t=3600'


def test_a_pushed_application_context_keeps_no_fields() -> None:
    app = make()
    app.add_url_rule("/", "view", rate_limit("large", key=everyone("all"))(lambda: "hello"))
    app.add_url_rule("/free", "free", lambda: "hello")
    client = app.test_client()
    with app.app_context():
        fields = [client.get("/").headers.get_all("RateLimit") for _ in range(2)]
        assert fields == [['"large";r=4;t=86400'], ['"large";r=3;t=86400']]
        assert client.get("/free").headers.get_all("RateLimit") == []


def test_rules_and_decorators_both_tell() -> None:
    app = make(PathRule("/*", "large", key=everyone("all")))

    @app.get("/")
    @rate_limit("small", key=header("X-API-Key", default="anonymous"))
    def view() -> Response:
        return Response("hello")

    client = app.test_client()
    fields = client.get("/").headers
    assert fields.get_all("RateLimit") == ['"large";r=4;t=86400, "small";r=0;t=3600']
    assert client.get("/").status_code == 429
    assert client.get("/nowhere").status_code == 404
    assert [client.get("/nowhere").status_code for _ in range(3)] == [404, 404, 429]


def test_async_views_work() -> None:
    pytest.importorskip("asgiref")
    app = make()

    @app.get("/")
    @rate_limit("small", key=everyone("all"))
    async def view() -> str:
        return "hello"

    client = app.test_client()
    assert client.get("/").text == "hello"
    assert client.get("/").status_code == 429


def test_the_principal_is_the_servers_or_the_applications() -> None:
    app = make()
    app.add_url_rule("/", "view", rate_limit("small", key=principal())(lambda: "hello"))
    client = app.test_client()
    assert client.get("/", environ_overrides={"REMOTE_USER": "ada"}).status_code == 200
    assert client.get("/", environ_overrides={"REMOTE_USER": "ada"}).status_code == 429
    assert client.get("/", environ_overrides={"REMOTE_USER": "bob"}).status_code == 200
    assert client.get("/", headers={"Authorization": "Basic YWRhOng="}).status_code == 400

    chosen = make(principal=lambda request: request.args.get("as"))
    chosen.add_url_rule("/", "view", rate_limit("small", key=principal())(lambda: "hello"))
    assert chosen.test_client().get("/?as=ada").status_code == 200
    assert chosen.test_client().get("/").status_code == 400


def test_functions_are_given_the_request() -> None:
    app = make()

    @app.get("/")
    @rate_limit("large", key=lambda request: request.args["k"], cost=lambda request: int(request.args["n"]))
    def view() -> str:
        return str(request.args["n"])

    client = app.test_client()
    assert client.get("/?k=a&n=4").headers["RateLimit"] == '"large";r=1;t=86400'
    assert client.get("/?k=a&n=2").status_code == 429
    # The function vouches for what it gives: an application that takes any number from a client has a mistake.
    with pytest.raises(ConfigurationError, match="above the capacity"):
        client.get("/?k=a&n=6")


def test_an_async_key_is_the_applications_mistake() -> None:
    async def find(request: object) -> str:
        return "ada"

    app = make()
    app.add_url_rule("/", "view", rate_limit("small", key=find)(lambda: "hello"))
    with pytest.raises(ConfigurationError, match="async"):
        app.test_client().get("/")


def test_a_denial_raised_by_the_application_is_answered() -> None:
    app, own = make(), Limiter(plans=PLANS)

    @app.get("/")
    def view() -> str:
        decision = own.acquire("k", ["small"])
        if not decision:
            raise RateLimitExceeded(decision)
        return "hello"

    client = app.test_client()
    assert client.get("/").status_code == 200
    denied = client.get("/")
    assert denied.status_code == 429
    assert denied.headers["Retry-After"] == "3600"


def test_mistakes_are_named() -> None:
    app = Flask(__name__)
    app.testing = True
    app.add_url_rule("/", "view", rate_limit("small", key=everyone("all"))(lambda: "hello"))
    with pytest.raises(ConfigurationError, match="install"):
        app.test_client().get("/")
    with pytest.raises(ConfigurationError, match="Limiter"):
        install(app, AsyncLimiter(plans=PLANS))  # type: ignore[arg-type]


def test_an_error_of_the_view_is_settled_when_its_response_is_made() -> None:
    """A client that has read the response finds the charge settled and the place free, closed or not."""
    app, limiter = Flask("errors"), Limiter("memory://", plans=[Plan("places", Concurrency(2)), Plan("t", "100/hour")])
    install(app, limiter)

    @app.get("/boom")
    @rate_limit("places", key=header("X-Key"))
    def boom() -> str:
        raise RuntimeError

    @app.get("/status/<int:code>")
    @rate_limit("t", key=header("X-Key"), charge_when=lambda response: response.status_code == 401)
    def status(code: int) -> str:
        abort(code)

    client, headers = app.test_client(), {"X-Key": "k"}
    assert [client.get("/boom", headers=headers).status_code for _ in range(4)] == [500] * 4
    for code in (401, 403, 401, 403, 403):
        client.get(f"/status/{code}", headers=headers)
    assert limiter.peek("k", ["t"]).remaining == 98


def test_a_request_over_a_limit_that_does_not_block_gets_no_retry_after() -> None:
    app, limiter = Flask("watched"), Limiter("memory://")
    install(app, limiter)

    @app.get("/")
    @rate_limit("1/minute", key=header("X-Key"), block=False)
    def hello() -> str:
        return "hello"

    client = app.test_client()
    answers = [client.get("/", headers={"X-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert ["Retry-After" in answer.headers for answer in answers] == [False, False]
    assert "RateLimit" in answers[1].headers
