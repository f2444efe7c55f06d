"""What `paceline doctor` says about the SMS providers: what the sender would say when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.server.cli.doctor import servers
from paceline.server.cli.doctor.finding import Finding
from paceline.server.settings import Settings
from paceline_sms.service import doctor as sms
from tests.integration.smsc import smsc

TWILIO = {"twilio_account_sid": "AC1", "twilio_auth_token": "pa55-w0rd", "twilio_from": "+15005550006"}
NOWHERE = "http://127.0.0.1:1"


async def found(**settings: Any) -> list[Finding]:
    return await sms.examine(Settings.load(sms=settings))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"providers": "mine=nosuch:thing"}, "PACELINE_SMS_PROVIDERS: 'nosuch:thing' of mine can't be imported"),
        ({"providers": "nosuch:thing"}, "PACELINE_SMS_PROVIDERS: 'nosuch:thing' of nosuch can't be imported"),
        ({"providers": "nobody"}, "PACELINE_SMS_PROVIDERS: 'nobody' is none of"),
        ({"providers": "webhook"}, "PACELINE_SMS_WEBHOOK_URL: is needed"),
        ({"providers": "twilio"}, "PACELINE_SMS_TWILIO_ACCOUNT_SID: is needed"),
        ({"providers": "smpp"}, "PACELINE_SMS_SMPP_URL: is needed"),
        ({"provider_rates": "nobody=1"}, "PACELINE_SMS_PROVIDER_RATES: nobody is not among"),
    ],
)
async def test_a_provider_that_the_sender_refuses_is_a_failure(settings: dict[str, str], problem: str) -> None:
    (finding,) = await found(**settings)
    assert (finding.name, finding.ok, finding.advice) == (
        "sms provider",
        False,
        "correct it: the service does not start like this",
    )
    assert finding.summary.startswith(problem)


async def test_each_provider_has_its_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own_sms.py").write_text("class Provider:\n    async def send(self, message): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = "own=own_sms:Provider, own_sms:Provider,console"
    assert await found(providers=names) == [
        Finding("sms provider", True, "own: own_sms:Provider is loaded"),
        Finding("sms provider", True, "own_sms: own_sms:Provider is loaded"),
        Finding("sms provider", True, "console: messages are written to the log"),
    ]


async def test_without_settings_messages_are_logged() -> None:
    assert await found() == [Finding("sms provider", True, "not configured: messages are written to the log")]


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({"providers": "webhook", "webhook_url": f"{NOWHERE}/hook"}, "PACELINE_SMS_WEBHOOK_URL"),
        ({"webhook_url": f"{NOWHERE}/hook"}, "PACELINE_SMS_WEBHOOK_URL"),
        ({"providers": "twilio", "twilio_url": NOWHERE, **TWILIO}, "PACELINE_SMS_TWILIO_URL"),
    ],
)
async def test_a_provider_that_can_t_be_reached_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], variable: str
) -> None:
    monkeypatch.setattr(servers, "TIMEOUT_SECONDS", 0.5)
    (finding,) = await found(**settings)
    assert (finding.ok, finding.advice) == (False, f"check {variable} and that the provider runs")
    assert f"{NOWHERE}: can't be reached" in finding.summary


async def test_an_smsc_is_bound_and_left() -> None:
    async with smsc() as center:
        account = {"providers": "smpp", "smpp_url": f"smpp://{center.address}", "smpp_system_id": "paceline"}
        assert await found(**account, smpp_password="secret") == [
            Finding("sms provider", True, "smpp: it takes the bind")
        ]
        (refused,) = await found(**account, smpp_password="another")
        assert (refused.ok, "the bind is refused" in refused.summary) == (False, True)
        assert (center.binds, center.unbinds) == (1, 1)
