"""Small histories for the checker's tests, written as a run writes them."""

from __future__ import annotations

from typing import Any

from tests.torture.history import History, Outcome, Record

WALL = 1_803_916_800.0
"""2027-03-01T16:00:00Z, when `at` is 0."""
PLANS = {
    "wide": {"algorithm": "fixed_window", "limit": 4, "window": "P1D"},
    "narrow": {"algorithm": "fixed_window", "limit": 3, "window": "P1D"},
    "span": {"algorithm": "sliding_log", "limit": 2, "window": "PT2S"},
    "bucket": {"algorithm": "token_bucket", "capacity": 2, "perSecond": 1},
}


class Story:
    """Collects records. `call` is a whole call, from its beginning to its end."""

    def __init__(self) -> None:
        self.records: list[Record] = [
            {
                "at": 0.0,
                "kind": "run",
                "seed": 1,
                "minutes": 1,
                "wall": WALL,
                "tps": 2,
                "plans": PLANS,
                "quota": 2,
                "redis": False,
            }
        ]
        self._calls = 0

    def add(self, at: float, kind: str, **members: Any) -> Story:
        self.records.append({"at": at, "kind": kind, **members})
        return self

    def call(
        self, began: float, ended: float, op: str, request: Record, outcome: Outcome = "ok", **answer: Any
    ) -> Story:
        self._calls += 1
        self.add(began, "invoke", call=self._calls, op=op, **request)
        return self.add(ended, "complete", call=self._calls, outcome=outcome, **answer)

    def fault(self, began: float, ended: float) -> Story:
        self._calls += 1
        self.add(began, "fault", fault=self._calls, what="kill", target="service-1")
        return self.add(ended, "healed", fault=self._calls)

    def acquire(self, began: float, ended: float, left: int, *, cost: int = 1, allowed: bool = True) -> Story:
        """An `acquire` of the plan `wide`, of 4, which leaves so many."""
        request = {"key": "k", "plans": ["wide"], "cost": cost}
        return self.call(began, ended, "limits.acquire", request, allowed=allowed, remaining={"wide": left})

    def lost(self, began: float, op: str = "limits.acquire", **request: Any) -> Story:
        """A call without an answer."""
        request = {"key": "k", "plans": ["wide"], "cost": 1} | request
        return self.call(began, began + 1, op, request, "unknown")

    def book(self, began: float, event: str, at: str, *, version: int = 1, existing: bool = False) -> Story:
        """A booking at second `at` of the minute, in a window of two seconds."""
        answer: Record = {
            "scheduledTime": f"2027-03-01T16:00:{at}Z",
            "windowStart": f"2027-03-01T16:00:{int(float(at)) // 2 * 2:02}Z",
        }
        request = {"event": event, "requested": "2027-03-01T16:00:02.000Z"}
        return self.call(began, began + 0.1, "slots.book", request, configVersion=version, existing=existing, **answer)

    def stored(self, table: str, **columns: Any) -> Story:
        return self.add(99.0, "final", table=table, **columns)

    def slot(self, event: str, second: float) -> Story:
        return self.stored("slot", event=event, window=WALL + second // 2 * 2, scheduled=WALL + second)

    def bank(self, at: float, key: str, status: int = 201, *, executed: bool = True) -> Story:
        return self.add(at, "bank", method="POST", key=key, status=status, executed=executed)

    def submit(self, key: str, status: str | None = None) -> Story:
        """A payment that was accepted, and its status when all is over."""
        self.call(0.5, 0.6, "payments.submit", {"payment": key, "due": WALL + 1})
        return self if status is None else self.stored("payment", payment=key, status=status)

    def send(self, text: str, outcome: Outcome = "ok") -> Story:
        return self.call(0.5, 0.6, "messages.send", {"user": 7, "text": text}, outcome)

    def sms(self, at: float, text: str, status: int = 200) -> Story:
        return self.add(at, "sms", user=7, text=text, id=text, status=status, taken=True)

    def task(self, item: str, *epochs: int, status: str = "COMPLETED", settled: int | None = None) -> Story:
        """A task that began and ended under each of the epochs, and was settled under the last, or another."""
        self.call(0.5, 0.6, "tasks.enqueue", {"item": item, "due": WALL + 1})
        for number, epoch in enumerate(epochs):
            self.add(2.0 + number, "begin", item=item, epoch=epoch, process=1)
            self.add(2.5 + number, "end", item=item, epoch=epoch, process=1)
        last = settled if settled is not None else max(epochs, default=None)
        return self.stored("item", item=item, status=status, epoch=last, completions=int(status == "COMPLETED"))

    @property
    def history(self) -> History:
        return History(self.records)
