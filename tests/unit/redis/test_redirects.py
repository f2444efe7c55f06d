"""What an error of Redis means: another server, an outage, a refusal, or a wrong setting."""

from __future__ import annotations

import hiredis
import pytest

from paceline.errors import StoreError, StoreRefused, StoreUnavailable
from paceline.redis.redirects import Action, Redirect, SlotMap, redirect_of, store_error
from paceline.redis.url import Address

HERE = Address("h", 1)


@pytest.mark.parametrize(
    ("text", "redirect"),
    [
        ("NOSCRIPT No matching script.", Redirect(Action.WITH_SCRIPT)),
        ("MOVED 3999 127.0.0.1:6381", Redirect(Action.MOVED, Address("127.0.0.1", 6381))),
        ("MOVED 3999 :6381", Redirect(Action.MOVED, Address("h", 6381))),
        ("ASK 3999 ::1:6381", Redirect(Action.ASK, Address("::1", 6381))),
        ("READONLY You can't write against a read only replica.", Redirect(Action.NEW_MASTER)),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Redirect(Action.TRY_AGAIN)),
        (
            "ERR Error running script (call to f_x): @user_script:9: @user_script: 9: -READONLY You can't write",
            Redirect(Action.NEW_MASTER),
        ),
    ],
)
def test_a_command_that_was_not_run_is_redirected(text: str, redirect: Redirect) -> None:
    assert redirect_of(hiredis.ReplyError(text), HERE) == redirect


@pytest.mark.parametrize(
    "text",
    [
        "LOADING Redis is loading the dataset in memory",
        "CLUSTERDOWN The cluster is down",
        "ERR max number of clients reached",
        "MISCONF Redis is configured to save RDB snapshots",
        "ERR Error running script (call to f_x): @user_script:9: -OOM command not allowed when used memory > 'max'",
    ],
)
def test_a_redis_that_can_not_answer_is_unavailable(text: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"^Redis at h:1 "):
        redirect_of(hiredis.ReplyError(text), HERE)


def test_a_redis_that_will_not_answer_is_no_outage() -> None:
    assert type(store_error(hiredis.ReplyError("ERR MISCONFIGURED"), HERE)) is StoreError
    with pytest.raises(StoreError, match="refused"):
        redirect_of(hiredis.ReplyError("ERR MISCONFIGURED"), HERE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", "refuses the user name or the password"),
        ("ERR invalid password", "refuses the password"),
        ("NOAUTH Authentication required.", "wants a password"),
        ("ERR Client sent AUTH, but no password is set", "has no password set"),
        ("ERR AUTH <password> called without any password configured for the default user.", "has no password set"),
        ("NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", "'evalsha'"),
        ("NOPERM No permissions to access a key", "does not permit"),
        (
            "ERR Error running script (call to f_x): @user_script:9: The user executing the script can't run this "
            "command or subcommand",
            "does not permit",
        ),
        ("DENIED Redis is running in protected mode because protected mode is enabled", "protected mode"),
    ],
)
def test_a_login_error_names_the_setting_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(StoreRefused, match=message) as refused:
        redirect_of(hiredis.ReplyError(text), HERE)
    assert refused.value.setting == "redis_url"
    assert str(refused.value).startswith("redis_url: Redis at h:1 ")


def test_slots_without_an_owner_are_unavailable() -> None:
    slots = SlotMap([[0, 99, [b"", 7001, b"id"]], [100, 200, [b"other", 7002, b"id"], [b"replica", 7003, b"id"]]], HERE)
    assert [slots.owner(slot) for slot in (0, 99, 100)] == [
        Address("h", 7001),
        Address("h", 7001),
        Address("other", 7002),
    ]
    assert slots.masters == (Address("h", 7001), Address("other", 7002))
    with pytest.raises(StoreUnavailable):
        slots.owner(201)
