# Generated from downstream/call.py by scripts/generate_blocking.py. Do not edit.
"""`BlockingCall`: the same calls for threads, without an event loop."""

from __future__ import annotations

from collections.abc import Callable

from paceline.downstream.background_downstream import BackgroundCall


class BlockingCall(BackgroundCall):
    """A call to a downstream. Made by `BlockingDownstream.call`; otherwise as `Call`."""

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the block ends. A limit that is not named keeps its cost.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
        """
        return self._run_at_once(lambda call: call.settle(**costs))

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        return self._run_at_once(lambda call: call.refused())

    def answered(self) -> None:
        """The other side has answered: whatever happens in the block from now on, the call has arrived."""
        return self._run_at_once(lambda call: call.answered())

    def responded(self, status: int, header: Callable[[str], str | None]) -> None:
        """The head of the response is there. All processes obey the pause that it asks for; the breaker counts a 5xx
        without one as a failure. The limits stay charged, also by a 429: many providers count refused calls, too.
        """
        return self._run(lambda call: call.responded(status, header))

    def confirm(self) -> None:
        """Returns when the call may leave; it must leave at once."""
        return self._run(lambda call: call.confirm())

    def left(self) -> None:
        """The request was sent. A rate that is counted at the departure counts from now on."""
        return self._run_at_once(lambda call: call.left())

    def enter(self) -> None:
        """Waits for its turn, without `confirm`.

        Raises:
            CostExceedsCapacity: a limit can never admit its cost.
            RateLimitExceeded: it could not leave within its timeout.
            StoreUnavailable: it could not, because the store could not be reached.
        """
        return self._run(lambda call: call.enter())

    def leave(self, error: BaseException | None = None) -> None:
        """Settles it, by how it ended."""
        return self._run(lambda call: call.leave(error))
