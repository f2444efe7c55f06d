"""The rows of payments that move with their items and slots. Loaded by everything that opens a queue, so it imports
little."""

from __future__ import annotations

from paceline.dispatch.ports import Follower
from paceline.server.settings import Settings
from paceline.slots.carriers import SlotCarrier
from paceline_payments.model import ITEM_TYPE, OWNER
from paceline_payments.settings import PaymentSettings
from paceline_payments.stores.moves import PaymentFollower
from paceline_payments.stores.slot_carrier import PaymentCarrier


def followers(settings: Settings) -> dict[str, Follower]:
    four_eyes = settings.section(PaymentSettings).four_eyes
    return {ITEM_TYPE: PaymentFollower(audit_key(settings), four_eyes=four_eyes)}


def carriers(_settings: Settings) -> dict[str, SlotCarrier]:
    return {OWNER: PaymentCarrier()}


def audit_key(settings: Settings) -> bytes:
    """The key of the audit's chains; none if there is none."""
    key = settings.audit_key
    return b"" if key is None else key.get_secret_value().encode()
