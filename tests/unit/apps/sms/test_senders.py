"""Who a message is from."""

from __future__ import annotations

from collections import Counter

import pytest

from paceline.errors import ConfigurationError
from paceline_sms.senders import Senders

POOL = [f"+1500555000{n}" for n in range(4)]
PHONES = [f"+1212555{n:04}" for n in range(2000)]


def test_the_longest_prefix_wins() -> None:
    senders = Senders({"+": ["4711"], "+4": ["Four"], "+491": ["Mobile"], "+49": ["Shop"]})
    numbers = ("+491701234567", "+493012345678", "+441632960001", "+12125550100", None)
    assert [senders.sender_of(phone) for phone in numbers] == ["Mobile", "Shop", "Four", "4711", None]
    assert Senders({"+49": ["Shop"]}).sender_of("+12125550100") is None


def test_a_recipient_keeps_its_sender_and_the_pool_is_shared_evenly() -> None:
    before, after = Senders({"+1": POOL}), Senders({"+1": [*reversed(POOL), "+15005550009"]})
    chosen = {phone: before.sender_of(phone) for phone in PHONES}
    assert {phone: Senders({"+1": POOL[::-1]}).sender_of(phone) for phone in PHONES} == chosen
    assert all(400 < count < 600 for count in Counter(chosen.values()).values())
    moved = {phone for phone in PHONES if after.sender_of(phone) != chosen[phone]}
    assert {after.sender_of(phone) for phone in moved} == {"+15005550009"}
    assert 300 < len(moved) < 500


@pytest.mark.parametrize(
    "pools",
    [
        {"49": ["Shop"]},
        {"+49": []},
        {"+49": ["a name too long"]},
        {"+49": ["Schön"]},
        {"+49": ["--"]},
        {"+x": ["Shop"]},
    ],
)
def test_what_is_no_sender_is_refused_at_the_start(pools: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigurationError, match="senders"):
        Senders(pools)
