"""What is sent to Redis: names of keys, slots of a cluster, and calls that share one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import FixedWindow, TokenBucket
from paceline.errors import ConfigurationError
from paceline.limits.keys import KeyStart
from paceline.limits.model import Charge, Rule
from paceline.limits.stores.redis import AsyncRedisLimitStore
from paceline.limits.stores.redis_blocking import RedisLimitStore
from paceline.limits.stores.redis_commands import (
    MAX_TIMES,
    Commands,
    check_slots,
    common_slot,
    hold_name,
    names,
    runs_of,
)

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


def test_equal_chains_share_a_run_unless_another_is_between_them() -> None:
    one, two = Rule("one", FixedWindow(5, "PT1M")), Rule("two", FixedWindow(5, "PT1M"))
    a, b = [Charge("a", one)], [Charge("b", one)]
    assert [run.positions for run in runs_of([a, b, a, b, a])] == [[0, 2, 4], [1, 3]]
    assert [run.positions for run in runs_of([a, [Charge("a", two)], a])] == [[0], [1], [2]]
    both = [Charge("a", one), Charge("b", one)]
    assert [run.positions for run in runs_of([both, b, both])] == [[0], [1], [2]]
    assert [len(run.positions) for run in runs_of([a] * (MAX_TIMES + 1))] == [MAX_TIMES, 1]
