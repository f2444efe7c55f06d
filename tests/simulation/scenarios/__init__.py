"""What is simulated: each scenario is a function that simulates one run and checks its invariants."""

from __future__ import annotations

from tests.simulation.scenarios.dispatch import play as dispatch
from tests.simulation.scenarios.leases import play as leases
from tests.simulation.scenarios.payments import play as payments
from tests.simulation.scenarios.slots import play as slots
from tests.simulation.world import Scenario

SCENARIOS: dict[str, Scenario] = {
    "leases": leases,
    "slots": slots,
    "dispatch": dispatch,
    "payments": payments,
}
