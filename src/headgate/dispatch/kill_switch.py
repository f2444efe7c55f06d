"""The kill switch, as seen by who waits for admission."""

from __future__ import annotations

import asyncio
import contextlib

from headgate.dispatch.ports import Guard, Outcomes
from headgate.errors import StoreUnavailable

SWITCH_SECONDS = 0.5
"""How often the kill switch is looked at by who waits for admission."""
ANSWER_SECONDS = 5.0


async def admitted(guard: Guard, outcomes: Outcomes, plan: str, item_type: str, every: float = SWITCH_SECONDS) -> bool:
    """Waits until the plan admits one call; False as soon as the kill switch is off, `StoreError` if nobody can say
    whether it is. The switch is watched meanwhile, not looked at afterwards: whoever is admitted must call at once, or
    a slow look would let calls bunch."""
    switch = asyncio.ensure_future(_switched_off(outcomes, item_type, every))
    try:
        async with asyncio.timeout(None) as patience:
            switch.add_done_callback(lambda _: _end(patience))
            # Awaited right here: a task of its own would end some turns of the loop before the call begins.
            await guard.admit(plan, item_type)
        return True
    except TimeoutError:
        if not patience.expired():
            raise
        switch.result()
        return False
    finally:
        switch.cancel()


async def _switched_off(outcomes: Outcomes, item_type: str, every: float) -> None:
    """Returns when the kill switch is off."""
    while True:
        await asyncio.sleep(every)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if not await outcomes.enabled(item_type):
                    return
        except TimeoutError:
            raise StoreUnavailable("the kill switch could not be asked in time") from None


def _end(patience: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        patience.reschedule(asyncio.get_running_loop().time())
