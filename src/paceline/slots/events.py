"""Log lines and spans of the scheduler. One line per transaction; single slots are logged at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paceline import tracing
from paceline.durations import format_instant, from_ms
from paceline.errors import PacelineError, SlotsExhausted
from paceline.slots.booking.packing import Booking
from paceline.slots.model import AssignedSlot, PolicyVersion, SlotRequest, TracedRequest
from paceline.slots.ports import LockHolder
from paceline.tracing import Attributes

log = logging.getLogger("paceline.slots")


def log_bookings(name: str, batch: Sequence[SlotRequest], bookings: Sequence[Booking]) -> None:
    """Logs what a transaction booked; formats nothing below the log level."""
    if SlotsExhausted in map(type, bookings):
        refused = [at for at, booking in enumerate(bookings) if isinstance(booking, SlotsExhausted)]
        first = batch[refused[0]].event_id
        others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        log.error(
            "Lookahead exhausted: could not assign slot for event %s%s after searching %s up to its horizon",
            first,
            others,
            name,
            extra={"event_id": first, "config": name},
        )
    if not log.isEnabledFor(logging.INFO):
        return
    slots = [booking for booking in bookings if isinstance(booking, AssignedSlot)]
    new = [slot for slot in slots if not slot.existing]
    if len(new) > 1:
        log.info("Assigned %d slots of %s, the first for eventId=%s", len(new), name, new[0].event_id)
    for slot in slots if log.isEnabledFor(logging.DEBUG) or len(new) == 1 else ():
        fields = {"event_id": slot.event_id, "config": name}
        if slot.existing:
            log.debug("Idempotent hit for eventId=%s", slot.event_id, extra=fields)
        else:
            window = format_instant(from_ms(slot.window_start_ms))
            level = logging.INFO if len(new) == 1 else logging.DEBUG
            log.log(level, "Assigned slot for eventId=%s in window=%s", slot.event_id, window, extra=fields)


def log_contention(name: str) -> None:
    log.warning("Window contention on %s: another writer was first, trying again", name, extra={"config": name})


def log_stuck(name: str, holder: LockHolder) -> None:
    log.warning("The config %s is locked by %s: its bookings wait", name, holder, extra={"config": name})


def log_cache_miss(name: str) -> None:
    log.info("Config cache miss for %s, loaded from DB", name, extra={"config": name})


def log_change(version: PolicyVersion, history: Sequence[PolicyVersion]) -> None:
    """A policy became active; `history` holds what it replaced."""
    before = next((earlier.policy.max_per_window for earlier in history if earlier.version < version.version), None)
    fields = {"config": version.name, "config_version": version.version}
    now = version.policy.max_per_window
    if before is None:
        log.info("Config created: %s maxPerWindow=%d", version.name, now, extra=fields)
    else:
        log.info("Config updated: %s maxPerWindow=%d->%d", version.name, before, now, extra=fields)


def trace_bookings(name: str, batch: Sequence[SlotRequest], bookings: Sequence[Booking] | PacelineError) -> None:
    """One span per request that is part of a trace, from the request to the commit of its transaction."""
    for at, request in enumerate(batch):
        if isinstance(request, TracedRequest):
            booking = bookings if isinstance(bookings, PacelineError) else bookings[at]
            attributes: Attributes = {
                "paceline.event_id": request.event_id,
                "paceline.config": name,
                "paceline.batch_size": len(batch),
            }
            origin = request.origin
            span = tracing.begin("slots.assign", attributes, parent=origin.traceparent, at_ns=origin.at_ns)
            if isinstance(booking, PacelineError):
                span.end({"paceline.outcome": "refused"}, failed=type(booking).__name__)
            else:
                span.end({"paceline.outcome": "existing" if booking.existing else "assigned"})
