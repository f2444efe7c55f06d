"""The kill switch, as seen by who waits for admission."""

from __future__ import annotations

import asyncio
import contextlib

from headgate.dispatch.ports import Guard, Outcomes

SWITCH_SECONDS = 0.5
"""How often the kill switch is looked at by who waits for admission."""


async def admitted(guard: Guard, outcomes: Outcomes, plan: str, item_type: str) -> bool:
    """Waits until the plan admits one call; False as soon as the kill switch is off. The switch is watched meanwhile,
    not looked at afterwards: whoever is admitted must call at once, or a slow look would let calls bunch."""
    switch = asyncio.ensure_future(_switched_off(outcomes, item_type))
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


async def _switched_off(outcomes: Outcomes, item_type: str) -> None:
    """Returns when the kill switch is off."""
    while True:
        await asyncio.sleep(SWITCH_SECONDS)
        if not await outcomes.enabled(item_type):
            return


def _end(patience: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        patience.reschedule(asyncio.get_running_loop().time())
