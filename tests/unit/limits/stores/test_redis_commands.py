from __future__ import annotations

from itertools import product

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import FixedWindow, TokenBucket
from paceline.errors import ConfigurationError, StoreError, StoreRefused, StoreUnavailable
from paceline.limits.keys import KeyStart
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore
from paceline.limits.stores.redis_commands import Commands, check_slots, common_slot, hold_name, names
from paceline.redis.redirects import Action, Redirect, SlotMap, redirect_of, store_error
from paceline.redis.url import Address

HERE = Address("h", 1)
RULE = Rule("gold", FixedWindow(5, "PT1S"))


def test_keys_are_named_as_documented() -> None:
    assert names([Charge("user:123", RULE)]) == [b"rate_limiter:{user:123}:gold"]
    assert hold_name([Charge("user:123", RULE)], "h1").startswith(b"rate_limiter_hold:{user:123}:h1:")


words = st.text(alphabet="ab{}:%", min_size=1, max_size=6)


@given(st.lists(st.tuples(words, words), min_size=2, max_size=30, unique=True))
def test_no_two_states_share_a_name_and_no_name_has_an_empty_tag(pairs: list[tuple[str, str]]) -> None:
    charges = [Charge(key, Rule(plan, RULE.spec)) for key, plan in pairs]
    stored = names(charges)
    assert len(set(stored)) == len(stored)
    for name in stored:
        assert name.partition(b"{")[2].partition(b"}")[0]


@given(words, st.lists(words, min_size=1, max_size=4))
def test_plans_of_one_key_share_a_slot(key: str, plans: list[str]) -> None:
    chain = [Charge(key, Rule(plan, RULE.spec)) for plan in plans]
    tags = {name.partition(b"{")[2].partition(b"}")[0] for name in [*names(chain), hold_name(chain, "a}b")]}
    assert len(tags) == 1
    common_slot(chain)


def test_the_hot_path_sends_what_deciding_sends() -> None:
    commands = Commands()
    other = Rule("other", TokenBucket(3, 1), shadow=True)
    for key, cost in product(["k", "}odd", "%", "ünicode"], [1, 3]):
        for chain in ([Charge(key, RULE, cost)], [Charge(key, RULE, cost), Charge("two", other, cost)]):
            assert commands.spending(chain) == commands.deciding(chain, True, None, None)


async def test_a_chain_over_slots_is_refused_before_anything_is_sent() -> None:
    chain = [Charge("a", RULE), Charge("b", RULE)]
    nowhere = "redis+cluster://127.0.0.1:1"
    with pytest.raises(ConfigurationError, match="'a' and 'b'"):
        RedisLimitStore(nowhere).decide(chain)
    with pytest.raises(ConfigurationError, match="'a' and 'b'"):
        await AsyncRedisLimitStore(nowhere).decide(chain)
    assert common_slot([Charge("{t}a", RULE), Charge("{t}b", RULE)]) == common_slot([Charge("{t}", RULE)])


def refused(keys: list[list[KeyStart]]) -> bool:
    try:
        check_slots(keys)
    except ConfigurationError:
        return True
    return False


@given(st.lists(st.tuples(words, st.text(alphabet="ab{}:%", max_size=4)), min_size=2, max_size=3))
def test_a_chain_refused_by_its_prefixes_is_refused_whatever_follows(parts: list[tuple[str, str]]) -> None:
    chain = [Charge(prefix + rest, RULE) for prefix, rest in parts]
    if refused([[KeyStart(prefix, False)] for prefix, _ in parts]):
        with pytest.raises(ConfigurationError):
            common_slot(chain)


@given(st.lists(words, min_size=2, max_size=3))
def test_constant_keys_are_refused_exactly_when_their_chain_is(keys: list[str]) -> None:
    starts = [[KeyStart(key, True)] for key in keys]
    try:
        common_slot([Charge(key, RULE) for key in keys])
    except ConfigurationError:
        assert refused(starts)
    else:
        assert not refused(starts)


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
