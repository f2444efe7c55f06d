"""The provider `smpp` against a local SMSC, which is written from the specification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.testing import eventually
from paceline_sms import Accepted, Inbound, Receipt, Rejected, SmsMessage, Unavailable, Unknown
from paceline_sms.provider_chain import NamedProvider, ProviderChain, provider_downstream
from paceline_sms.providers.smpp import WINDOW_SECONDS, SmppProvider
from paceline_sms.providers.smpp_session import ANSWER_SECONDS
from tests.integration.notification_gateway import gateway, new_user
from tests.integration.smsc import ESME_RINVDSTADR, ESME_RMSGQFUL, ESME_RTHROTTLED, Smsc, smsc


@pytest.fixture
async def center() -> AsyncIterator[Smsc]:
    async with smsc() as running:
        yield running


def provider_of(center: Smsc, sender: str = "", *, window: int = 50, hexadecimal_ids: bool = False) -> SmppProvider:
    url = f"smpp://{center.address}"
    return SmppProvider(url, "paceline", "secret", sender, window=window, hexadecimal_ids=hexadecimal_ids)


@pytest.fixture
async def operator(center: Smsc) -> AsyncIterator[SmppProvider]:
    provider = provider_of(center)
    yield provider
    await provider.close()


def message(to: str | None = "+491701234567", text: str = "Your code is 4711") -> SmsMessage:
    deadline = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)
    return SmsMessage("id-1", to, text, 1, 1, deadline, 7)


async def test_a_message_is_submitted_over_one_session(center: Smsc, operator: SmppProvider) -> None:
    answers = await asyncio.gather(*(operator.send(message(text=f"text {n}")) for n in range(30)))
    assert len({answer.provider_id for answer in answers if isinstance(answer, Accepted)}) == 30
    assert center.binds == 1
    first = center.submitted[0]
    assert (first.destination, first.validity) == ("491701234567", "270102030405000+")
    assert {message.text for message in center.submitted} == {f"text {n}" for n in range(30)}


@pytest.mark.parametrize("text", ["plain @$_{}", "Grüße 🙂", "long " * 200, "länger " * 200])
async def test_any_text_arrives_whole(center: Smsc, operator: SmppProvider, text: str) -> None:
    await operator.send(message(text=text))
    assert center.submitted[0].text == text


@pytest.mark.parametrize(("text", "coding"), [("Grüße für 5 €", 0), ("a `tick`", 8), ("Ω[ok]", 0), ("żółw", 8)])
async def test_the_alphabet_is_the_text_s_own(center: Smsc, operator: SmppProvider, text: str, coding: int) -> None:
    await operator.send(message(text=text))
    assert (center.submitted[0].text, center.submitted[0].coding) == (text, coding)


async def test_verdicts_are_about_the_message(center: Smsc, operator: SmppProvider) -> None:
    center.statuses = {"491": ESME_RINVDSTADR}
    assert await operator.send(message("+491")) == Rejected("the number is not valid")
    assert await operator.send(message(None)) == Rejected(
        "there is no number to send to: configure the user's phone, or send with to"
    )
    assert len(center.submitted) == 1


@pytest.mark.parametrize(("status", "throttled"), [(ESME_RTHROTTLED, True), (ESME_RMSGQFUL, True), (0x08, False)])
async def test_what_is_no_verdict_lets_the_message_wait(
    center: Smsc, operator: SmppProvider, status: int, throttled: bool
) -> None:
    center.statuses = {"491701234567": status}
    with pytest.raises(Unavailable) as away:
        await operator.send(message())
    assert (away.value.throttled, away.value.retry_after) == (throttled, 1 if throttled else None)
    assert center.binds == 1


async def test_a_connection_cut_before_the_answer_proves_nothing_and_the_next_message_binds_again(
    center: Smsc, operator: SmppProvider
) -> None:
    center.cuts = {"491"}
    slow = asyncio.create_task(operator.send(message("+491")))
    assert isinstance(await asyncio.wait_for(slow, 5), Unknown)
    assert isinstance(await operator.send(message("+492")), Accepted)
    assert [message.destination for message in center.submitted] == ["491", "492"]
    assert center.binds == 2


async def test_an_smsc_that_is_away_or_refuses_the_bind_lets_messages_wait(center: Smsc) -> None:
    refused = provider_of(center)
    center.password = "other"
    with pytest.raises(Unavailable, match="refused: 0xe"):
        await asyncio.wait_for(refused.send(message()), 5)
    center.password = "secret"
    assert isinstance(await refused.send(message()), Accepted)
    await refused.close()
    with pytest.raises(Unavailable, match="no connection"):
        await asyncio.wait_for(SmppProvider("smpp://127.0.0.1:1", "paceline", "secret").send(message()), 5)


async def test_the_window_is_never_exceeded_and_costs_no_attempt(center: Smsc) -> None:
    narrow = provider_of(center, window=3)
    center.answers.clear()
    sending = [asyncio.create_task(narrow.send(message(text=f"text {n}"))) for n in range(5)]
    center.answers.set()
    center.delay = 2 * WINDOW_SECONDS
    answers = await asyncio.gather(*sending, return_exceptions=True)
    full = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert (len(full), all(answer.throttled for answer in full)) == (2, True)
    assert (center.most_pending, len(center.submitted)) == (3, 3)
    await narrow.close()


async def test_an_smsc_that_freezes_is_noticed_and_what_it_has_is_unknown(center: Smsc) -> None:
    watchful = SmppProvider(f"smpp://{center.address}", "paceline", "secret", enquire_seconds=0.1)
    assert isinstance(await watchful.send(message()), Accepted)
    await eventually(lambda: center.enquiries > 1, within=10)
    center.answers.clear()
    assert await asyncio.wait_for(watchful.send(message("+492")), 2 * ANSWER_SECONDS) == Unknown(
        "the connection ended before the answer"
    )
    center.answers.set()
    assert isinstance(await watchful.send(message("+493")), Accepted)
    assert center.binds == 2
    await watchful.close()


@pytest.mark.parametrize(
    ("sender", "source"),
    [("", (0, 0, "")), ("+4930123", (1, 1, "4930123")), ("4711", (0, 1, "4711")), ("Shop", (5, 0, "Shop"))],
)
async def test_a_sender_is_a_number_a_short_code_or_a_name(
    center: Smsc, sender: str, source: tuple[int, int, str]
) -> None:
    provider = provider_of(center, sender)
    await provider.send(message())
    assert (*center.submitted[0].source_type, center.submitted[0].source) == source
    await provider.close()


@pytest.mark.parametrize(("text", "coding"), [("Stop! Ärger für 5 €", 0), ("СТОП", 8), ("STOP", 1), ("arrêt", 3)])
@pytest.mark.parametrize("header", [b"", b"\5\0\3\7\1\1"])
async def test_what_people_write_is_read_in_any_alphabet(
    center: Smsc, operator: SmppProvider, text: str, coding: int, header: bytes
) -> None:
    received = operator.receipts()
    waiting = asyncio.ensure_future(anext(received))
    await eventually(lambda: center.sessions, within=10)
    center.write("12345", "of a short code", 0, kind=3)
    center.write_unreadable()
    center.write("491701234567", text, coding, header)
    person = await asyncio.wait_for(waiting, 5)
    assert isinstance(person, Inbound)
    assert (person.phone, person.text) == ("+491701234567", text)
    await operator.send(message())
    assert center.acknowledged == 2, "the last one is not processed yet"
    await received.aclose()


async def test_ids_in_hexadecimal_are_those_of_decimal_receipts(center: Smsc) -> None:
    provider = provider_of(center, hexadecimal_ids=True)
    center.decimal_receipts = True
    sent = [await provider.send(message()) for _ in range(12)]
    received = provider.receipts()
    ids = [(await asyncio.wait_for(anext(received), 5)) for _ in range(12)]
    assert [receipt.provider_id for receipt in ids if isinstance(receipt, Receipt)] == [
        answer.provider_id for answer in sent if isinstance(answer, Accepted)
    ]
    await received.aclose()
    await provider.close()


async def test_an_smsc_that_unbinds_is_bound_again(center: Smsc, operator: SmppProvider) -> None:
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


async def test_slow_answers_hold_up_nobody_and_a_frozen_smsc_times_out(center: Smsc, operator: SmppProvider) -> None:
    center.delay = 2 * WINDOW_SECONDS
    await asyncio.gather(*(operator.send(message()) for _ in range(10)))
    assert center.most_pending == 10
    center.answers.clear()
    entry = NamedProvider("smpp", operator, provider_downstream("smpp"))
    assert await ProviderChain([entry], timeout=0.2).call(entry, message()) == Unknown("no answer within 0.2 s")
    center.answers.set()
    assert isinstance(await ProviderChain([entry]).call(entry, message()), Accepted)


async def test_leaving_unbinds(center: Smsc, operator: SmppProvider) -> None:
    await operator.send(message())
    await operator.close()
    await eventually(lambda: center.unbinds == 1 and not center.sessions, within=10)


async def test_receipts_arrive_over_the_same_session(center: Smsc, operator: SmppProvider) -> None:
    center.states = {"492": "UNDELIV", "493": "ACCEPTD"}
    delivered = True, "DELIVRD"
    numbers = {"+491": delivered, "+492": (False, "UNDELIV"), "+493": (None, "ACCEPTD"), "+494": delivered}
    expected = []
    for number, (outcome, state) in numbers.items():
        answer = await operator.send(message(number))
        assert isinstance(answer, Accepted)
        expected.append(Receipt("smpp", outcome, provider_id=answer.provider_id, reason=state))
    received = operator.receipts()
    assert [await asyncio.wait_for(anext(received), 5) for _ in range(4)] == expected
    waiting = asyncio.ensure_future(anext(received))
    await eventually(lambda: center.acknowledged == 4, within=10)
    center.cut_all()
    await eventually(lambda: center.binds == 2, within=10)
    last = await operator.send(message())
    receipt = await asyncio.wait_for(waiting, 5)
    assert isinstance(last, Accepted)
    assert isinstance(receipt, Receipt)
    assert receipt.provider_id == last.provider_id
    await received.aclose()


def settings_of(center: Smsc) -> dict[str, str]:
    account = {"smpp_system_id": "paceline", "smpp_password": "secret", "smpp_from": "Shop"}
    return {"sender": "inline", "providers": "smpp", "smpp_url": f"smpp://{center.address}", **account}


@pytest.mark.parametrize("reports_first", [False, True])
async def test_a_message_of_the_gateway_is_delivered(center: Smsc, tmp_path: Path, reports_first: bool) -> None:
    """Also if the receipt comes before the answer to its message."""
    center.reports_first = reports_first
    center.states["491701234568"] = "UNDELIV"
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=settings_of(center)) as served:
        user = new_user()
        assert (await served.configure(user, 10, 60)).status_code == 200
        for to, status in (("+491701234567", "delivered"), ("+491701234568", "failed")):
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


async def test_a_throttled_message_waits_and_loses_no_attempt(center: Smsc, tmp_path: Path) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=settings_of(center)) as served:
        user = new_user()
        await served.configure(user, 10, 60)
        center.statuses = {"491701234567": ESME_RTHROTTLED}
        body = {"userId": user, "message": "Your code is 4711", "to": "+491701234567"}
        message_id = (await served.client.post("/api/send", json=body)).json()["messageId"]
        await eventually(lambda: len(center.submitted) == 2, within=20)
        center.statuses = {}

        async def shown() -> dict[str, object]:
            known: dict[str, object] = (await served.client.get(f"/api/messages/{message_id}")).json()
            return known

        async def is_delivered() -> bool:
            return (await shown())["status"] == "delivered"

        await eventually(is_delivered, within=20)
        assert (await shown())["attempts"] == 1


async def test_a_message_without_an_answer_is_unknown_and_sent_once(center: Smsc, tmp_path: Path) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=settings_of(center)) as served:
        user = new_user()
        await served.configure(user, 10, 60)
        center.cuts = {"491701234567"}
        body = {"userId": user, "message": "Your code is 4711", "to": "+491701234567"}
        message_id = (await served.client.post("/api/send", json=body)).json()["messageId"]

        async def is_unknown() -> bool:
            return bool((await served.client.get(f"/api/messages/{message_id}")).json()["status"] == "unknown")

        await eventually(is_unknown, within=20)
        center.cuts = set()
        await served.client.post("/api/send", json=body | {"to": "+491701234568"})
        await eventually(lambda: len(center.submitted) == 2, within=20)
        assert [sent.destination for sent in center.submitted] == ["491701234567", "491701234568"]


async def test_stop_over_smpp_is_an_opt_out_and_is_answered(center: Smsc, tmp_path: Path) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=settings_of(center)) as served:
        await eventually(lambda: center.sessions, within=20)
        center.write("491701234567", "Stop!", 0)
        await eventually(lambda: center.acknowledged and center.submitted, within=20)
        assert (await served.client.get("/api/optouts/+491701234567")).status_code == 200
        (reply,) = center.submitted
        assert (reply.destination, reply.source, "START" in reply.text) == ("491701234567", "Shop", True)
        center.write("491701234567", "hello", 0)
        center.write("491701234567", "start", 0)
        await eventually(lambda: len(center.submitted) == 2, within=20)
        assert (await served.client.get("/api/optouts/+491701234567")).status_code == 404


async def test_the_sender_goes_by_the_country_also_of_replies(center: Smsc, tmp_path: Path) -> None:
    pools = {"+49": ["Laden"], "+1": ["+15005550006", "+15005550007"]}
    sms = settings_of(center) | {"senders": pools}
    async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
        user = new_user()
        await served.configure(user, 100, 60)
        for to in ("+491701234567", "+12125550100", "+12125550100", "+441632960001"):
            await served.client.post("/api/send", json={"userId": user, "message": "hello", "to": to})
        center.write("491701234568", "HELP", 0)
        await eventually(lambda: len(center.submitted) == 5, within=20)
        senders: dict[str, set[str]] = {}
        for sent in center.submitted:
            senders.setdefault(sent.destination, set()).add(sent.source)
        assert (senders["491701234567"], senders["491701234568"], senders["441632960001"]) == (
            {"Laden"},
            {"Laden"},
            {"Shop"},
        )
        assert len(senders["12125550100"]) == 1
        assert senders["12125550100"] < {"15005550006", "15005550007"}
