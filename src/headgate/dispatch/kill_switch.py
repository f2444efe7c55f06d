"""The kill switch, watched while an execution waits for admission."""

from __future__ import annotations

import asyncio
import contextlib

from headgate.dispatch.ports import Guard, OutcomeSink
from headgate.errors import StoreUnavailable

SWITCH_SECONDS = 0.5
"""How often the kill switch is checked during a wait for admission."""
ANSWER_SECONDS = 5.0


async def admitted(guard: Guard, sink: OutcomeSink, plan: str, item_type: str, every: float = SWITCH_SECONDS) -> bool:
    """Waits until the plan admits one call; False as soon as the kill switch is off, `StoreError` if its
    state is unknown. The switch is watched meanwhile, not read afterwards: whoever is admitted must call at once, or a
    slow read would let calls bunch."""
    switch = asyncio.ensure_future(_switched_off(sink, item_type, every))
    try:
        async with asyncio.timeout(None) as timeout:
            switch.add_done_callback(lambda _: _end(timeout))
            # Awaited right here: a task of its own would end some turns of the loop before the call begins.
            await guard.admit(plan, item_type)
        return True
    except TimeoutError:
        if not timeout.expired():
            raise
        switch.result()
        return False
    finally:
        switch.cancel()


async def _switched_off(sink: OutcomeSink, item_type: str, every: float) -> None:
    """Returns when the kill switch is off."""
    while True:
        await asyncio.sleep(every)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if not await sink.enabled(item_type):
                    return
        except TimeoutError:
            raise StoreUnavailable("the kill switch could not be read in time") from None


def _end(timeout: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # it is over already
        timeout.reschedule(asyncio.get_running_loop().time())
