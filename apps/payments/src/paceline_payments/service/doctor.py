"""The rules, as the service loads them, and the downstream, as far as it has an address."""

from __future__ import annotations

from paceline.errors import PacelineError
from paceline.server.cli.doctor.finding import Finding, loaded, not_loaded
from paceline.server.cli.doctor.servers import reachable
from paceline.server.settings import Settings, spelled
from paceline_payments.service.wiring.downstream import check_downstream
from paceline_payments.service.wiring.payments import rule_source
from paceline_payments.settings import PaymentSettings


async def examine(settings: Settings) -> list[Finding]:
    """Findings about the rules and the downstream. Nothing is sent."""

    def rules() -> str:
        rule_source(settings)
        return settings.section(PaymentSettings).rules or "not configured: nothing is refused"

    return [loaded("payment rules", rules), *await _downstream(settings)]


async def _downstream(settings: Settings) -> list[Finding]:
    """The downstream that executes payments: its settings as `serve` checks them, and whether it answers."""
    try:
        check_downstream(settings)
    except PacelineError as error:
        return [not_loaded("downstream", error)]
    url = settings.section(PaymentSettings).downstream_url
    if url is None:
        return [Finding("downstream", True, "not configured: payments go to a simulator in this process")]
    return await reachable("downstream", spelled("payments", "downstream_url"), url, "payments")
