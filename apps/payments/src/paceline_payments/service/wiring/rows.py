"""The rows of payments that move with their items and slots. Loaded by everything that opens a queue, so it imports
little."""

from __future__ import annotations

from paceline.dispatch.ports import Follower
from paceline.slots.carriers import SlotCarrier
from paceline_payments.model import ITEM_TYPE, OWNER
from paceline_payments.stores.moves import PaymentFollower
from paceline_payments.stores.slot_carrier import PaymentCarrier


def followers() -> dict[str, Follower]:
    return {ITEM_TYPE: PaymentFollower()}


def carriers() -> dict[str, SlotCarrier]:
    return {OWNER: PaymentCarrier()}
