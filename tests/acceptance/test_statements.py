"""Statements (camt.053) and notifications (camt.054) of a bank: what lxml alone reads in them of each payment is what
the service, the command and the payment itself say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from lxml import etree

from tests.acceptance.service import Service, run, until
from tests.acceptance.test_payments_encrypted import ended, line, send
from tests.faults.bank import Bank
from tests.unit.apps.payments.feeds.test_pain001 import PAIN, TRANSACTION

OWN, EUR = "<EndToEndId>{id}</EndToEndId>", "<Amt Ccy='EUR'>{}</Amt>"
RETURNED = "<RtrInf><Rsn><Cd>AC04</Cd></Rsn></RtrInf>"
CHARGES = "<BkTxCd><Domn><Cd>PMNT</Cd><Fmly><Cd>MCOP</Cd><SubFmlyCd>CHRG</SubFmlyCd></Fmly></Domn></BkTxCd>"


def entry(
    details: str, side: str = "DBIT", amount: str = "12.30", *, status: str = "<Cd>BOOK</Cd>", more: str = ""
) -> str:
    """`more` is what stands before the status."""
    head = f"<Ntry>{EUR.format(amount)}<CdtDbtInd>{side}</CdtDbtInd>{more}<Sts>{status}</Sts>"
    inner = details or "<AcctSvcrRef>{id}</AcctSvcrRef>"
    return f"{head}<BookgDt><Dt>2030-03-01</Dt></BookgDt>{inner}</Ntry>"


def details(refs: str = OWN, amount: str = EUR.format("12.30"), more: str = "") -> str:
    return f"<NtryDtls><TxDtls><Refs>{refs}</Refs>{amount}{more}</TxDtls></NtryDtls>"


def batch(name: str, payments: str, total: str) -> str:
    sums = f"<NbOfTxs>{payments}</NbOfTxs><TtlAmt Ccy='EUR'>{total}</TtlAmt><CdtDbtInd>DBIT</CdtDbtInd>"
    return f"<NtryDtls><Btch><MsgId>M1</MsgId><PmtInfId>{name}</PmtInfId>{sums}</Btch></NtryDtls>"


PAID, BACK = entry(details()), entry(details(f"<AcctSvcrRef>OF-RETURN</AcctSvcrRef>{OWN}", more=RETURNED), "CRDT")
BY_REFERENCE = "<EndToEndId>NOTPROVIDED</EndToEndId><TxId>BANK-{id}</TxId>"
PARTS = "<AmtDtls><InstdAmt><Amt Ccy='{}'>12.30</Amt></InstdAmt></AmtDtls>"
ENTRIES = {
    "paid": PAID,
    "whose-id-is-the-reference-of-another-entry": entry(""),
    "returned": BACK,
    "returned-above-its-execution": BACK + PAID,
    "returned-below-its-execution": PAID + BACK,
    "returned-by-the-banks-reference": (
        entry(details(f"<AcctSvcrRef>BANK-{{id}}</AcctSvcrRef>{OWN}"))
        + entry(details(BY_REFERENCE, more=RETURNED), "CRDT")
    ),
    "returned-less-a-fee": entry(details(amount=EUR.format("10.30"), more=RETURNED), "CRDT", "10.30"),
    "returned-without-a-reason": entry(details(more="<RtrInf/>"), "CRDT"),
    "returned-with-an-originator": entry(details(more="<RtrInf>\n<Orgtr><Nm>B</Nm></Orgtr>\n</RtrInf>"), "CRDT"),
    "return-to-come": PAID + entry(details(more=RETURNED), "CRDT", status="<Cd>PDNG</Cd>"),
    "return-of-ours-to-another": entry(details(more=RETURNED)),
    "return-within-a-debit": entry(details(more=f"<CdtDbtInd>CRDT</CdtDbtInd>{RETURNED}")),
    "return-that-names-nothing": PAID + entry(details("", more=RETURNED), "CRDT"),
    "return-that-an-extension-names": PAID
    + entry(
        details(
            "",
            more="<RtrInf><Rsn><Cd>AC04</Cd></Rsn><x:OrgnlTx xmlns:x='urn:x'><x:EndToEndId>{id}</x:EndToEndId>"
            "</x:OrgnlTx></RtrInf><SplmtryData><Envlp><Refs><EndToEndId>{id}</EndToEndId></Refs></Envlp></SplmtryData>",
        ),
        "CRDT",
    ),
    "incoming": entry(details(), "CRDT"),
    "reversed-above-its-booking": entry(details(), "CRDT", more="<RvslInd>true</RvslInd>") + PAID,
    "twice": PAID + PAID,
    "twice-and-once-returned": PAID + BACK + PAID,
    "information-only": entry(details(), status="<Cd>INFO</Cd>"),
    "status-of-the-banks-own": entry(details(), status="<Prtry>HELD</Prtry>"),
    "a-charge-for-it": PAID + entry(details(amount=EUR.format("0.50"), more=CHARGES), amount="0.50"),
    "charged-within": entry(details(amount=EUR.format("12.80") + PARTS.format("EUR")), amount="12.80"),
    "foreign": entry(details(amount=EUR.format("11.20") + PARTS.format("USD")), amount="11.20"),
    "another-amount": entry(details(amount=EUR.format("12.40")), amount="12.40"),
    "one-of-two": (
        entry(
            f"{details()}{details(OWN.format(id='two-of-two'), more=f'<CdtDbtInd>CRDT</CdtDbtInd>{RETURNED}')}".replace(
                "</NtryDtls><NtryDtls>", ""
            ),
            amount="0.00",
        )
    ),
}
"""What the bank says of each payment, by the payment's id: `{id}` in the text."""
OF_FILE = "<MsgId>M1</MsgId><PmtInfId>{}</PmtInfId><InstrId>{}</InstrId><EndToEndId>SALARY</EndToEndId>"
BATCHES = {
    "WHOLE": entry(batch("WHOLE", "2", "20.00"), amount="20.00"),
    "SPLIT": entry(batch("SPLIT", "1", "10.00") + batch("SPLIT", "1", "10.00"), amount="20.00"),
    "TWICE": entry(batch("TWICE", "2", "20.00"), amount="20.00") * 2,
    "TOCOME": entry(batch("TOCOME", "2", "20.00"), amount="20.00", status="<Cd>PDNG</Cd>"),
    "BESIDE": entry(batch("BESIDE", "2", "20.00") + details(OWN.format(id="beside")), amount="32.30"),
    "BACK": entry(batch("BACK", "2", "20.00"), amount="20.00")
    + entry(details(OF_FILE.format("BACK", "i2"), EUR.format("10.00"), RETURNED), "CRDT", "10.00"),
    "SINGLE": entry(details(OF_FILE.format("SINGLE", "i1"), EUR.format("10.00")), amount="10.00")
    + entry(details(OF_FILE.format("SINGLE", "i2"), EUR.format("10.00")), amount="10.00"),
}
"""Payment informations of two payments each, most as sums without their parts."""
FORMS = (
    ("camt.053.001.04", "BkToCstmrStmt", "Stmt"),
    ("camt.053.001.08", "BkToCstmrStmt", "Stmt"),
    ("camt.054.001.08", "BkToCstmrDbtCdtNtfctn", "Ntfctn"),
)


def statement(entries: str, form: tuple[str, str, str] = FORMS[1]) -> bytes:
    version, outer, inner = form
    if version.endswith(".04"):  # there the status is a code, and nothing else
        entries = entries.replace("<Sts><Cd>", "<Sts>").replace("</Cd></Sts>", "</Sts>")
    return (
        f'<Document xmlns="urn:iso:std:iso:20022:tech:xsd:{version}"><{outer}><GrpHdr><MsgId>S</MsgId></GrpHdr>'
        f"<{inner}><Id>1</Id><Acct><Id><IBAN>DE89370400440532013000</IBAN></Id></Acct>{entries}</{inner}></{outer}>"
        "</Document>"
    ).encode()


# -- the judge: lxml alone --------------------------------------------------------------------------------------------


class Booking(NamedTuple):
    """One transaction that the bank booked, as lxml reads it."""

    names: set[str]
    references: set[str]
    of_file: str
    is_return: bool
    is_reversal: bool
    money: str

    def is_of(self, payment_id: str) -> bool:
        by_reference = not self.names and f"BANK-{payment_id}" in self.references
        return payment_id in self.names or by_reference or payment_id.startswith(f"{self.of_file}-")


class Sum(NamedTuple):
    """A payment information that the bank booked without its parts."""

    name: str
    payments: int
    money: Decimal


class Said(NamedTuple):
    """What is true of a payment after a statement."""

    is_returned: bool
    lists: frozenset[str]
    """The lists of the result that name it."""


class Judge:
    """What lxml reads in a document."""

    def __init__(self, document: bytes) -> None:
        root = etree.fromstring(document)
        self._space = {"c": etree.QName(root).namespace or ""}
        self.bookings, self.sums = list[Booking](), dict[str, list[Sum]]()
        for booked in root.iter(f"{{{self._space['c']}}}Ntry"):
            if self._texts(booked, "c:Sts", "c:Sts/c:Cd") != ["BOOK"]:
                continue
            transactions = booked.findall("c:NtryDtls/c:TxDtls", self._space)
            lone = [batch for batch in booked.findall("c:NtryDtls", self._space) if len(batch) == 1]
            for batch in lone:
                for name in self._texts(batch, "c:Btch/c:PmtInfId"):
                    [number], [money] = (self._texts(batch, f"c:Btch/c:{each}") for each in ("NbOfTxs", "TtlAmt"))
                    self.sums.setdefault(name, []).append(Sum(name, int(number), Decimal(money)))
            for transaction in transactions if transactions or lone else [booked]:
                self._read(booked, transaction)

    def _texts(self, node: etree._Element, *paths: str) -> list[str]:
        return [text for path in paths for text in node.xpath(f"{path}/text()", namespaces=self._space)]

    def _read(self, booked: etree._Element, one: etree._Element) -> None:
        """What left the account by a payment, or came back of one."""
        is_credit = (self._texts(one, "c:CdtDbtInd") or self._texts(booked, "c:CdtDbtInd")) == ["CRDT"]
        is_return = one.find("c:RtrInf", self._space) is not None
        is_reversal = self._texts(booked, "c:RvslInd") == ["true"]
        if is_credit != (is_return or is_reversal) or "CHRG" in self._texts(one, "c:BkTxCd//c:SubFmlyCd"):
            return
        instructed = [] if is_return else one.findall("c:AmtDtls/c:InstdAmt/c:Amt", self._space)
        [amount, *_] = instructed + one.findall("c:Amt", self._space) + booked.findall("c:Amt", self._space)
        names = set(self._texts(one, "c:Refs/c:UETR", "c:Refs/c:InstrId", "c:Refs/c:EndToEndId"))
        references = set(self._texts(one, "c:Refs/c:AcctSvcrRef", "c:Refs/c:TxId", "c:AcctSvcrRef"))
        of_file = "-".join(self._texts(one, "c:Refs/c:MsgId", "c:Refs/c:PmtInfId", "c:Refs/c:InstrId"))
        money = f"{amount.text} {amount.get('Ccy')}"
        self.bookings.append(Booking(names - {"NOTPROVIDED"}, references, of_file, is_return, is_reversal, money))

    def said_of(self, payment_id: str, money: str) -> Said:
        """What becomes of an executed payment."""
        bookings = [booking for booking in self.bookings if booking.is_of(payment_id)]
        back = [booking for booking in bookings if booking.is_return or booking.is_reversal]
        paid = len(bookings) - len(back) + any(payment_id.startswith(f"M1-{name}-") for name in self.sums)
        is_over = bool(back) and len(back) >= paid
        is_returned = is_over and any(booking.is_return for booking in back)
        lists = {"returned"} if is_returned else set()
        if not paid and not back:
            lists.add("missingAtBank")
        if paid > 1 or is_over != is_returned or any(booking.money != money for booking in bookings):
            lists.add("different")
        return Said(is_returned, frozenset(lists))

    def wrong_sums(self) -> set[str]:
        """The payment informations of two payments of 10 EUR that the bank booked as something else."""
        return {
            name
            for name, sums in self.sums.items()
            if (sum(one.payments for one in sums), sum(one.money for one in sums)) != (2, 20)
        }

    def unnamed_returns(self) -> list[str]:
        """How much came back that nobody can assign."""
        return [f"RETURNED {one.money}" for one in self.bookings if one.is_return and not one.names | one.references]


# -- what is shown ----------------------------------------------------------------------------------------------------

LISTS = ("returned", "missingAtBank", "missingHere", "different")


def reconcile(client: httpx.Client, document: bytes) -> dict[str, Any]:
    answer = client.post("/admin/payments/reconcile", content=document, headers={"Content-Type": "application/xml"})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def statuses(client: httpx.Client) -> dict[str, str]:
    shown = client.get("/api/v1/payments", params={"limit": 1000}).json()["payments"]
    return {payment["paymentId"]: payment["status"] for payment in shown}


def pay_all(client: httpx.Client) -> None:
    """Every payment is executed, and its notices are on their way."""
    today = datetime.now(UTC).date().isoformat()
    lines = [line(name, "12.30") for name in (*ENTRIES, "two-of-two", "beside")]
    foreign = list(ENTRIES).index("foreign")
    lines[foreign] = lines[foreign].replace(",EUR,", ",USD,")
    assert send(client, *lines)["accepted"] == len(lines)
    head, rest = PAIN.split("<PmtInf>")
    one, tail = f"<PmtInf>{rest}".split("</PmtInf>")
    both = "".join(TRANSACTION.replace("<PmtId>", f"<PmtId><InstrId>i{number}</InstrId>") for number in (1, 2))
    two = one.replace(TRANSACTION, both).replace("2027-03-01", today)
    informations = "".join(f"{two}</PmtInf>".replace("P1", name) for name in BATCHES)
    document = head.replace("<NbOfTxs>01", f"<NbOfTxs>{2 * len(BATCHES)}") + informations + tail
    answer = client.post("/api/v1/feeds", content=document.encode(), headers={"Content-Type": "application/xml"})
    until(lambda: ended(client, answer.json()["feedId"]))
    expected = len(lines) + 2 * len(BATCHES)
    until(lambda: list(statuses(client).values()) == ["PROCESSING"] * expected)


def said(result: dict[str, Any], status: str, payment_id: str) -> Said:
    named = (name for name in LISTS if payment_id in {one["paymentId"] for one in result[name]})
    return Said(status == "RETURNED", frozenset(named))


def check(result: dict[str, Any], now: dict[str, str], document: bytes, concerned: Iterable[str]) -> None:
    """The result of a reconciliation and the payments' statuses after it are what lxml reads in the document."""
    judge = Judge(document)
    read = {name: judge.said_of(name, money_of(name)) for name in concerned}
    assert {name: said(result, now[name], name) for name in concerned} == read
    assert {one["paymentId"] for one in result["different"] if one["field"] == "batch"} == judge.wrong_sums()
    assert [one["bank"] for one in result["missingHere"]] == judge.unnamed_returns()


def money_of(payment_id: str) -> str:
    return "12.30 USD" if payment_id == "foreign" else "10.00 EUR" if payment_id.startswith("M1-") else "12.30 EUR"


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    with Bank() as bank:
        url = f"sqlite:///{tmp_path / 'paid.db'}"
        yield {"PACELINE_DATABASE_URL": url, "PACELINE_PAYMENTS_DOWNSTREAM_URL": bank.url}


@pytest.fixture
def client(tmp_path: Path, variables: dict[str, str]) -> Iterator[httpx.Client]:
    """Of a service that has paid everything."""
    with Service(tmp_path, **variables) as service, service.client() as client:
        pay_all(client)
        yield client


def test_a_statement_means_what_lxml_reads_in_it(client: httpx.Client) -> None:
    for number, (name, entries) in enumerate({**ENTRIES, **BATCHES}.items()):
        document = statement(entries.replace("{id}", name), FORMS[number % len(FORMS)])
        result, now = reconcile(client, document), statuses(client)
        check(
            result,
            now,
            document,
            [each for each in now if f">{each}<".encode() in document or each.startswith(f"M1-{name}-")],
        )


def test_the_command_reads_it_alike_and_a_statement_that_comes_twice_changes_nothing(
    client: httpx.Client, variables: dict[str, str], tmp_path: Path
) -> None:
    document = statement("".join(entries.replace("{id}", name) for name, entries in {**ENTRIES, **BATCHES}.items()))
    (tmp_path / "statement.xml").write_bytes(document)

    def compared() -> dict[str, Any]:
        ended = run(tmp_path, "payments", "reconcile", "statement.xml", "--json", **variables)
        assert ended.returncode == 1, ended.stderr
        result: dict[str, Any] = json.loads(ended.stdout)
        return result

    first, now = compared(), statuses(client)
    check(first, now, document, now)
    again = compared()
    assert (again["returned"], statuses(client)) == ([], now)
    assert again == {**first, "returned": [], "returnedCount": 0, "groups": again["groups"]}


def test_the_statement_of_the_day_of_its_execution_may_come_after_that_of_its_return(client: httpx.Client) -> None:
    for body in (BACK, PAID):
        result = reconcile(client, statement(body.replace("{id}", "returned")))
        assert said(result, statuses(client)["returned"], "returned").lists - {"returned"} == set()
    assert statuses(client)["returned"] == "RETURNED"
