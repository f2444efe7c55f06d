"""The provider of docs/howto/sms-provider.md that speaks SMPP, as the page prints it, against a local SMSC."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.testing import eventually
from paceline_sms import Accepted, Receipt, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.provider_chain import NamedProvider, ProviderChain, provider_downstream
from tests.acceptance.documents import blocks
from tests.integration.notification_gateway import gateway, new_user
from tests.integration.smsc import ESME_RINVDSTADR, ESME_RMSGQFUL, ESME_RTHROTTLED, Smsc, smsc

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "sms-provider.md"
NAME = "operator_smpp"
(CODE,) = [block.text for block in blocks(PAGE) if block.title == f"{NAME}.py"]


@pytest.fixture
async def center() -> AsyncIterator[Smsc]:
    async with smsc() as running:
        yield running


@pytest.fixture
def module(center: Smsc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The page's program, imported from a file as a reader saves it."""
    monkeypatch.setenv("SMPP_ADDRESS", center.address)
    monkeypatch.setenv("SMPP_USER", "paceline")
    monkeypatch.setenv("SMPP_PASSWORD", "secret")
    (tmp_path / f"{NAME}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location(NAME, tmp_path / f"{NAME}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    yield loaded
    sys.modules.pop(NAME, None)


@pytest.fixture
async def operator(module: ModuleType) -> AsyncIterator[Any]:
    provider = module.Operator()
    yield provider
    await provider.close()


def message(to: str | None = "+491701234567", text: str = "Your code is 4711") -> SmsMessage:
    deadline = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    return SmsMessage("id-1", to, text, 1, 1, deadline, 7)


def test_the_program_is_short() -> None:
    assert len(CODE.splitlines()) < 60


async def test_a_message_is_submitted_over_one_session(center: Smsc, operator: Any) -> None:
    answers = await asyncio.gather(*(operator.send(message(text=f"text {n}")) for n in range(30)))
    assert len({answer.provider_id for answer in answers}) == 30
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert center.binds == 1
    first = center.submitted[0]
    assert (first.destination, first.validity) == ("491701234567", "270102030405000+")
    assert {message.text for message in center.submitted} == {f"text {n}" for n in range(30)}


@pytest.mark.parametrize("text", ["plain @$_{}", "Grüße 🙂", "long " * 200, "länger " * 200])
async def test_any_text_arrives_whole(center: Smsc, operator: Any, text: str) -> None:
    await operator.send(message(text=text))
    assert center.submitted[0].text == text


@pytest.mark.parametrize(("text", "coding"), [("Grüße für 5 €", 0), ("a `tick`", 8), ("Ω[ok]", 0), ("żółw", 8)])
async def test_the_alphabet_is_the_text_s_own(center: Smsc, operator: Any, text: str, coding: int) -> None:
    await operator.send(message(text=text))
    assert (center.submitted[0].text, center.submitted[0].coding) == (text, coding)


async def test_verdicts_are_about_the_message(center: Smsc, operator: Any) -> None:
    center.statuses = {"491": ESME_RINVDSTADR}
    assert await operator.send(message("+491")) == Rejected("the number is not valid")
    assert await operator.send(message(None)) == Rejected("there is no number to send to")
    assert len(center.submitted) == 1


@pytest.mark.parametrize(("status", "throttled"), [(ESME_RTHROTTLED, True), (ESME_RMSGQFUL, True), (0x08, False)])
async def test_what_is_no_verdict_lets_the_message_wait(
    center: Smsc, operator: Any, status: int, throttled: bool
) -> None:
    center.statuses = {"491701234567": status}
    with pytest.raises(Unavailable) as away:
        await operator.send(message())
    assert (away.value.throttled, away.value.retry_after) == (throttled, 1)
    assert center.binds == 1


async def test_a_connection_cut_before_the_answer_proves_nothing_and_the_next_message_binds_again(
    center: Smsc, operator: Any
) -> None:
    center.cuts = {"491"}
    slow = asyncio.create_task(operator.send(message("+491")))
    assert isinstance(await asyncio.wait_for(slow, 5), Unknown)
    assert isinstance(await operator.send(message("+492")), Accepted)
    assert [message.destination for message in center.submitted] == ["491", "492"]
    assert center.binds == 2


async def test_an_smsc_that_is_away_or_refuses_the_bind_lets_messages_wait(
    center: Smsc, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = module.Operator()
    center.password = "other"
    with pytest.raises(Unavailable):
        await asyncio.wait_for(refused.send(message()), 5)
    center.password = "secret"
    assert isinstance(await refused.send(message()), Accepted)
    await refused.close()
    monkeypatch.setattr(module, "PORT", "1")
    with pytest.raises(Unavailable):
        await asyncio.wait_for(module.Operator().send(message()), 5)


async def test_an_smsc_that_unbinds_is_bound_again(center: Smsc, operator: Any) -> None:
    assert isinstance(await operator.send(message()), Accepted)
    center.unbind_all()
    await eventually(lambda: not center.sessions, within=10)
    entry = NamedProvider("smpp", operator, provider_downstream("smpp"))
    chain = ProviderChain([entry])

    async def is_sent() -> bool:
        try:
            return isinstance(await chain.call(entry, message()), Accepted)
        except Unavailable:
            return False

    await eventually(is_sent, within=10)
    assert center.binds == 2


async def test_slow_answers_hold_up_nobody_and_a_frozen_smsc_times_out(center: Smsc, operator: Any) -> None:
    center.delay = 0.3
    await asyncio.gather(*(operator.send(message()) for _ in range(10)))
    assert center.most_pending == 10
    center.answers.clear()
    entry = NamedProvider("smpp", operator, provider_downstream("smpp"))
    assert await ProviderChain([entry], timeout=0.2).call(entry, message()) == Unknown("no answer within 0.2 s")
    center.answers.set()
    assert isinstance(await ProviderChain([entry]).call(entry, message()), Accepted)


async def test_leaving_unbinds(center: Smsc, operator: Any) -> None:
    await operator.send(message())
    await operator.close()
    await eventually(lambda: center.unbinds == 1 and not center.sessions, within=10)


async def test_receipts_arrive_over_the_same_session(center: Smsc, operator: Any) -> None:
    center.states = {"492": "UNDELIV", "493": "ACCEPTD"}
    sent = [await operator.send(message(number)) for number in ("+491", "+492", "+493", "+494")]
    received = operator.receipts()
    receipts = [await asyncio.wait_for(anext(received), 5) for _ in range(3)]
    assert receipts == [
        Receipt("smpp", True, provider_id=sent[0].provider_id, reason="DELIVRD"),
        Receipt("smpp", False, provider_id=sent[1].provider_id, reason="UNDELIV"),
        Receipt("smpp", True, provider_id=sent[3].provider_id, reason="DELIVRD"),
    ]
    await eventually(lambda: center.acknowledged == 4, within=10)
    waiting = asyncio.ensure_future(anext(received))
    center.cut_all()
    await eventually(lambda: center.binds == 2, within=10)
    last = await operator.send(message())
    assert (await asyncio.wait_for(waiting, 5)).provider_id == last.provider_id
    await received.aclose()


@pytest.mark.parametrize("reports_first", [False, True])
async def test_a_message_of_the_gateway_is_delivered(
    center: Smsc, module: ModuleType, tmp_path: Path, reports_first: bool
) -> None:
    """Also if the receipt comes before the answer to its message."""
    center.reports_first = reports_first
    center.states = {"492": "UNDELIV"}
    sms = {"sender": "inline", "providers": f"smpp={NAME}:Operator"}
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
        user = new_user()
        assert (await served.configure(user, 10, 60)).status_code == 200
        for to, status in (("+491701234567", "delivered"), ("+491701234568", "failed")):
            center.states["491701234568"] = "UNDELIV"
            body = {"userId": user, "message": "Your code is 4711", "to": to}
            message_id = (await served.client.post("/api/send", json=body)).json()["messageId"]

            async def is_known(message_id: str = message_id, status: str = status) -> bool:
                known = (await served.client.get(f"/api/messages/{message_id}")).json()
                return bool(known["status"] == status)

            await eventually(is_known, within=20)
        assert center.binds == 1
    assert center.unbinds == 1
    assert datetime.now(UTC) + timedelta(hours=23) < datetime.strptime(
        center.submitted[0].validity[:12], "%y%m%d%H%M%S"
    ).replace(tzinfo=UTC)
