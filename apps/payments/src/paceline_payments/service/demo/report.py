"""The plan of a demo run, and the calls that the bank saw."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from paceline.durations import format_instant
from paceline_payments.downstream.simulator import Call, Simulator, peak_per_second
from paceline_payments.feed import Rejection
from paceline_payments.model import AcceptedPayment, IntakeResult, PaymentStatus
from paceline_payments.service.shapes.payments import DemoReport
from paceline_payments.service.shapes.reconciliation import ReconciliationShown


@dataclass(slots=True)
class Plan:
    """When each payment is to be made."""

    payments: int
    tps: int
    at: datetime
    scheduled: dict[str, float] = field(default_factory=dict)
    """Payment -> seconds after the requested instant."""
    rejected: list[Rejection] = field(default_factory=list)
    _monotonic_of_at: float = 0.0

    def __post_init__(self) -> None:
        self._monotonic_of_at = time.monotonic() + self.at.timestamp() - time.time()

    def note(self, outcomes: Sequence[IntakeResult]) -> None:
        """Records when accepted payments are scheduled."""
        for outcome in outcomes:
            if isinstance(outcome, AcceptedPayment):
                self.scheduled[outcome.payment_id] = (outcome.scheduled_time - self.at).total_seconds()

    def seconds(self, call: Call) -> float:
        """When a call arrived, in seconds after the requested instant."""
        return call.at_us / 1e6 - self._monotonic_of_at


class Fault(NamedTuple):
    """What went wrong in a run, on purpose, and when: in seconds after the requested instant."""

    name: str
    begin: float
    end: float
    """The same as `begin`, if it was a moment."""

    def __str__(self) -> str:
        """As the report and the picture name it."""
        if self.begin == self.end:
            return f"{self.name}: at {self.begin:.1f} s"
        return f"{self.name}: from {self.begin:.1f} to {self.end:.1f} s"


@dataclass(slots=True)
class Report:
    """The end of a run, in figures."""

    plan: Plan
    calls: list[Call]
    executed_once: int
    executed_more_than_once: int
    never_executed: int
    peak_per_second: int
    turned_away: int
    """Calls that the bank rejected with 429."""
    drift: list[float]
    """Seconds from each payment's slot to its execution."""
    statuses: Mapping[str, int]
    dead_letters: int
    reconciliation: ReconciliationShown | None = None
    """With chaos: the comparison with the bank's record."""
    late_calls: int = 0
    """With chaos: calls that arrived although the kill switch was off."""
    faults: Sequence[Fault] = ()

    @classmethod
    def of(cls, plan: Plan, bank: Simulator, statuses: Mapping[PaymentStatus, int], dead_letters: int) -> Report:
        executed = [call for call in bank.calls if call.executed]
        times = Counter(call.payment_id for call in executed)
        return cls(
            plan,
            list(bank.calls),
            sum(times[payment_id] == 1 for payment_id in plan.scheduled),
            sum(count > 1 for count in times.values()),
            sum(payment_id not in times for payment_id in plan.scheduled),
            peak_per_second(call.at_us for call in bank.calls),
            sum(call.status == 429 for call in bank.calls),
            sorted(plan.seconds(call) - plan.scheduled[call.payment_id] for call in executed),
            {status.value: count for status, count in sorted(statuses.items())},
            dead_letters,
        )

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return (
            self.executed_once == len(self.plan.scheduled) == self.plan.payments
            and self.executed_more_than_once == 0
            and self.peak_per_second <= self.plan.tps
            and self.dead_letters == 0
            and self.late_calls == 0
            and (self.reconciliation is None or self.reconciliation.clean)
        )

    def shape(self) -> DemoReport:
        chaos: dict[str, object] = {}
        if self.reconciliation is not None:
            chaos = {"reconciled": self.reconciliation, "calls_while_off": self.late_calls}
        return DemoReport.of(
            self.plan,
            self,
            accepted=len(self.plan.scheduled),
            calls=len(self.calls),
            drift_seconds={name: round(value, 3) for name, value in self.drifts().items()},
            **chaos,
        )

    def drifts(self) -> dict[str, float]:
        if not self.drift:
            return {}
        return {
            "median": statistics.median(self.drift),
            "p95": self.drift[int(0.95 * (len(self.drift) - 1))],
            "max": self.drift[-1],
        }

    def lines(self) -> list[str]:
        """The report for people."""
        plan = self.plan
        last = max(plan.scheduled.values(), default=0.0)
        drift = ", ".join(f"{name} {value:+.2f} s" for name, value in self.drifts().items())
        again = len(self.calls) - self.executed_once - self.turned_away
        statuses = ", ".join(f"{count} {status}" for status, count in self.statuses.items())
        lines = [f"line {line.line} was rejected: {line.reason}" for line in plan.rejected[:5]]
        return [
            *lines,
            f"{len(plan.scheduled)} payments wanted {format_instant(plan.at)}; the plan spread them over {last:.0f} s",
            f"{_mark(self.executed_once == plan.payments)} executed exactly once: {self.executed_once} "
            f"(more than once: {self.executed_more_than_once}, never: {self.never_executed})",
            f"{_mark(self.peak_per_second <= plan.tps)} most calls in any sliding second: "
            f"{self.peak_per_second} of {plan.tps} allowed "
            f"({self.turned_away} turned away)",
            f"{_mark(not self.dead_letters)} dead letters: {self.dead_letters}; "
            f"{again} calls failed or repeated on the way",
            f"  execution after the planned time: {drift}",
            f"  statuses: {statuses}",
            *self._chaos_lines(),
        ]

    def _chaos_lines(self) -> list[str]:
        result = self.reconciliation
        if result is None:
            return []
        named = [
            f"  {one.payment_id} ({one.field}): here {one.here or '-'}, bank {one.bank or '-'}"
            for one in (
                *result.missing_at_bank,
                *result.missing_here,
                *result.different,
                *result.unknown,
                *result.stuck,
            )
        ]
        return [
            *(f"  {fault}" for fault in self.faults),
            f"{_mark(not self.late_calls)} calls while the kill switch was off: {self.late_calls}",
            f"{_mark(result.clean)} reconciliation with the bank: {result.matched} matched, "
            f"{sum(result.counts.values())} differences",
            *named[:10],
        ]


def _mark(good: bool) -> str:
    return "✔" if good else "✘"
