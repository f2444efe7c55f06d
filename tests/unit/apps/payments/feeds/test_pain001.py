"""Payments of pain.001 documents, compared with what lxml reads in them."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from paceline.errors import InvalidInput
from paceline_payments.feeds.pain001 import Pain001Parser
from tests.effort import examples
from tests.unit.apps.payments.feeds.readings import check_carried, read
from tests.unit.apps.payments.iso20022.documents import ISO, VERSIONS, document

ALICE, BOB = "DE89370400440532013000", "GB29NWBK60161331926819"
EITHER = ("PmtTpInf: is said", "UltmtDbtr: is said", "ChrgBr: is said", "InstrForDbtrAgt: is said")
NEEDED = frozenset({"Nm", "Cdtr", "CdtrAcct", "Id", "InstdAmt", "IBAN"})
PAIN = f"""<?xml version="1.0" encoding="UTF-8"?>
<Document xmlns="{ISO}pain.001.001.09"><CstmrCdtTrfInitn><GrpHdr><MsgId>M1</MsgId>
<CreDtTm>2027-01-01T00:00:00</CreDtTm><NbOfTxs>01</NbOfTxs><InitgPty><Nm>Payroll</Nm></InitgPty></GrpHdr>
<PmtInf><PmtInfId>P1</PmtInfId><PmtMtd>TRF</PmtMtd><ReqdExctnDt><Dt>2027-03-01</Dt></ReqdExctnDt>
<Dbtr><Nm>Alice</Nm></Dbtr><DbtrAcct><Id><IBAN>{ALICE}</IBAN></Id></DbtrAcct>
<DbtrAgt><FinInstnId><BICFI>COBADEFF</BICFI></FinInstnId></DbtrAgt>
<CdtTrfTxInf><PmtId><EndToEndId>SALARY</EndToEndId></PmtId><Amt><InstdAmt Ccy="EUR">10.00000</InstdAmt></Amt>
<Cdtr><Nm>Bob</Nm></Cdtr><CdtrAcct><Id><IBAN>{BOB}</IBAN></Id></CdtrAcct><RmtInf><Ustrd>March</Ustrd></RmtInf>
</CdtTrfTxInf></PmtInf></CstmrCdtTrfInitn></Document>"""
TRANSACTION = PAIN[PAIN.index("<CdtTrfTxInf>") : PAIN.index("</PmtInf>")]


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(300), deadline=None)
def test_an_accepted_payment_says_what_lxml_reads_and_nothing_else(version: str, seed: int) -> None:
    random = Random(seed)
    tree = document(version, random, random.choice([0.05, 0.2]), NEEDED)
    space = {"p": ISO + version}
    for path, text in (
        ("//p:PmtMtd", "TRF"),
        ("//p:Dbtr/p:Nm | //p:Cdtr/p:Nm", "Zoë"),
        ("//p:InstdAmt", "12.50"),
        ("//p:DbtrAcct/p:Id/p:IBAN", ALICE),
        ("//p:CdtrAcct/p:Id/p:IBAN", BOB),
        ("//p:NbOfTxs", str(len(tree.findall(".//p:CdtTrfTxInf", space)))),
    ):
        for node in tree.xpath(path, namespaces=space):
            node.text = text
    for node in tree.xpath("//p:CtrlSum | //p:PmtInf/p:NbOfTxs | //p:UETR", namespaces=space):
        node.getparent().remove(node)
    transactions = tree.findall(".//p:CdtTrfTxInf", space)
    payments, rejects = read(etree.tostring(tree, encoding="utf-8"))
    assert len(payments) + len(rejects) == len(transactions)
    may_be_rejected = (*EITHER, "ReqdExctnDt: '2027-03-01T24", "CdtrAcct.Id", "DbtrAcct.Id", "CdtrAcct.Id.IBAN")
    assert all(reject.reason.startswith(may_be_rejected) for reject in rejects), rejects
    check_carried(tree, payments)


def test_a_namespace_or_an_extension_never_overrides() -> None:
    evil = """<SplmtryData><Envlp><x xmlns="urn:evil"><Cdtr><Nm>Mallory</Nm></Cdtr>
    <Amt><InstdAmt Ccy="USD">9999</InstdAmt></Amt><CdtrAcct><Id><IBAN>FR1420041010050500013M02606</IBAN></Id></CdtrAcct>
    </x></Envlp></SplmtryData>"""
    also = evil.replace('xmlns="urn:evil"', f'xmlns="{ISO}pain.001.001.09"')
    (plain,), _ = read(PAIN)
    for extension in (evil, also):
        (staged,), rejects = read(PAIN.replace("</CdtTrfTxInf>", f"{extension}</CdtTrfTxInf>"))
        assert (staged, rejects) == (plain, [])


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("</Amt>", '</Amt><Amt><InstdAmt Ccy="EUR">99.00</InstdAmt></Amt>', "CdtTrfTxInf: has Amt, which is not"),
        ("</Cdtr>", '</Cdtr><x xmlns="urn:evil"/>', "CdtTrfTxInf: has x of the namespace 'urn:evil'"),
        ("10.00000", "9E999999", "Amt.InstdAmt: '9E999999' is no decimal"),
        ("10.00000", "10.001", "Amt.InstdAmt: '10.001' has 3 decimals"),
        ("10.00000", "1e2", "Amt.InstdAmt: '1e2' is no decimal"),
        ('Ccy="EUR"', "", "Amt.InstdAmt: has no attribute Ccy"),
        ('Ccy="EUR"', 'Ccy="QQQ"', "Amt.InstdAmt.Ccy: 'QQQ'"),
        (BOB, "GB29, NWBK", "CdtrAcct.Id.IBAN: 'GB29, NWBK' does not have the form"),
        (BOB, "GB00NWBK60161331926819", "CdtrAcct.Id.IBAN: 'GB00NWBK60161331926819' is no IBAN"),
        (BOB, ALICE, "CdtrAcct.Id: is the payer's own account"),
        ("<Cdtr><Nm>Bob</Nm></Cdtr>", "", "Cdtr.Nm: must be a text"),
        (f"<CdtrAcct><Id><IBAN>{BOB}</IBAN></Id></CdtrAcct>", "", "CdtrAcct.Id: is required"),
        ("TRF", "CHK", "PmtMtd: CHK is no credit transfer"),
        ("TRF", "TRA", "PmtMtd: TRA is no credit transfer"),
        ("SALARY", "S" * 36, "PmtId.EndToEndId: has more than 35 characters"),
        ("SALARY", "a, b, " * 7, "PmtId.EndToEndId: has more than 35 characters"),
        (
            '<InstdAmt Ccy="EUR">10.00000</InstdAmt>',
            '<EqvtAmt><Amt Ccy="EUR">1</Amt><CcyOfTrf>USD</CcyOfTrf></EqvtAmt>',
            "Amt.EqvtAmt: can't be carried",
        ),
    ],
)
def test_a_transaction_that_can_not_be_made_as_it_says_is_rejected(before: str, after: str, place: str) -> None:
    """With a control sum, which counts rejected amounts too: a comma in a value once made it wrong."""
    other = TRANSACTION.replace("SALARY", "OTHER").replace("Bob", "Carol")
    two = PAIN.replace("</PmtInf>", f"{other}</PmtInf>").replace("<NbOfTxs>01<", "<NbOfTxs>2<")
    changed = two.replace(before, after, 1)
    payments, rejects = read(changed)
    assert len(payments) == (0 if before == "TRF" else 1)
    assert place in rejects[0].reason
    assert rejects[0].line == 1


def test_the_amount_of_a_rejected_transaction_counts_in_the_control_sum() -> None:
    total = PAIN.replace("</NbOfTxs>", "</NbOfTxs><CtrlSum>10</CtrlSum>", 1)
    for before, after in (("SALARY", "a, b" * 20), (BOB, "XX"), ("<PmtId>", "<PmtId><x/>")):
        payments, (reject,) = read(total.replace(before, after, 1))
        assert (payments, reject.line) == ([], 1)


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("pain.001.001.09", "pain.008.001.08", "must be a Document of pain.001.001.03"),
        ("pain.001.001.09", "pain.001.001.02", "must be a Document of pain.001.001.03"),
        ("Document", "Envelope", "must be a Document of pain.001.001.03"),
        ("CstmrCdtTrfInitn", "CstmrDrctDbtInitn", "has CstmrDrctDbtInitn, which is not allowed"),
        ("<NbOfTxs>01<", "<NbOfTxs>1.0<", "GrpHdr.NbOfTxs: '1.0' does not have the form"),
        ("<DbtrAgt><FinInstnId><BICFI>COBADEFF</BICFI></FinInstnId></DbtrAgt>", "", "PmtInf: has no DbtrAgt"),
        ("2027-03-01", "2027-02-29", "ReqdExctnDt.Dt: '2027-02-29' is no date"),
        ("<PmtMtd>", "text<PmtMtd>", "PmtInf: has text between its elements"),
    ],
)
def test_a_document_that_is_wrong_outside_of_its_transactions_is_refused(before: str, after: str, place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(PAIN.replace(before, after))
    assert place in str(refused.value)


def test_national_documents_and_accounts_without_iban() -> None:
    six = "http://www.six-interbank-clearing.com/de/pain.001.001.03.ch.02.xsd"
    swiss = PAIN.replace(f"{ISO}pain.001.001.09", six)
    swiss = swiss.replace("BICFI", "BIC").replace("<Dt>2027-03-01</Dt>", "2027-03-01")
    german = swiss.replace(
        "http://www.six-interbank-clearing.com/de/pain.001.001.03.ch.02.xsd", f"{ISO}pain.001.003.03"
    )
    cbi = swiss.replace(
        "http://www.six-interbank-clearing.com/de/pain.001.001.03.ch.02.xsd", "urn:CBI:xsd:CBIPaymentRequest.00.04.00"
    )
    cbi = (
        cbi.replace("<CstmrCdtTrfInitn>", "")
        .replace("</CstmrCdtTrfInitn>", "")
        .replace("Document", "CBIPaymentRequest")
    )
    (plain,), _ = read(PAIN)
    for national in (swiss, german, cbi):
        (staged,), _ = read(national.replace(f"<IBAN>{BOB}</IBAN>", "<Othr><Id>01-39139-1</Id></Othr>"))
        assert staged.payment.payee.account == "01-39139-1"
        assert staged.payment.to_json()["payee"] == {"name": "Bob", "account": "01-39139-1"}
        assert staged.payment.execute_at == plain.payment.execute_at


@pytest.mark.parametrize(
    ("date", "instant"),
    [
        ("<Dt>2027-03-01</Dt>", "2027-03-01T00:00:00+00:00"),
        ("<Dt>2027-03-01+01:00</Dt>", "2027-02-28T23:00:00+00:00"),
        ("<Dt>2027-03-01-05:00</Dt>", "2027-03-01T05:00:00+00:00"),
        ("<DtTm>2027-03-01T09:30:00</DtTm>", "2027-03-01T09:30:00+00:00"),
        ("<DtTm>2027-03-01T09:30:00-05:00</DtTm>", "2027-03-01T14:30:00+00:00"),
    ],
)
def test_the_requested_date(date: str, instant: str) -> None:
    (staged,), _ = read(PAIN.replace("<Dt>2027-03-01</Dt>", date))
    assert staged.payment.execute_at.isoformat() == instant


def ids_of(*transactions: str, **changed: str) -> list[str]:
    body = PAIN.replace(TRANSACTION, "".join(transactions)).replace("<NbOfTxs>01<", f"<NbOfTxs>{len(transactions)}<")
    for before, after in changed.items():
        body = body.replace(f">{before}<", f">{after}<")
    payments, rejects = read(body)
    assert not rejects
    return [staged.payment.payment_id for staged in payments]


def test_equal_transactions_are_several_payments_and_the_end_to_end_id_identifies_nothing() -> None:
    assert len(set(ids_of(*[TRANSACTION] * 5))) == 5
    assert ids_of(*[TRANSACTION] * 5) == ids_of(*[TRANSACTION] * 5), "the same document again"
    not_provided = TRANSACTION.replace("<EndToEndId>", "<InstrId>NOTPROVIDED</InstrId><EndToEndId>")
    assert len(set(ids_of(*[not_provided] * 3))) == 3


def test_the_identity_is_the_party_the_message_the_information_and_the_instruction() -> None:
    named = TRANSACTION.replace("<EndToEndId>", "<InstrId>i-1</InstrId><EndToEndId>")
    (first,) = ids_of(named)
    assert first.startswith("M1-P1-i_1-")
    assert ids_of(named.replace("SALARY", "OTHER")) == [first]
    assert ids_of(named, named) == [first, first]
    others = [ids_of(named, **{before: "X"})[0] for before in ("M1", "P1", "i-1", "Payroll")]
    assert len({first, *others}) == 5
    for before in ("M1", "P1", "i-1", "Payroll"):
        assert ids_of(named, **{before: f"\n  {before} "}) == [first], "indented, it is not another payment"


def test_a_uetr_is_the_identity() -> None:
    uetr = "eb6305c9-1f7f-49de-aed0-16487c27b42d"
    named = TRANSACTION.replace("</EndToEndId>", f"</EndToEndId><UETR>{uetr}</UETR>")
    assert ids_of(named) == ids_of(named, M1="M2") == [uetr]


def test_memory_does_not_grow_with_the_document() -> None:
    parser = Pain001Parser()
    head, tail = PAIN.partition(TRANSACTION)[0], "</PmtInf></CstmrCdtTrfInitn></Document>"
    parser.feed(head.encode())
    peaks = []
    for _ in range(2):
        tracemalloc.start()
        for _ in range(1500):
            parser.feed(TRANSACTION.encode())
            parser.take()
        peaks.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    parser.feed(tail.encode())
    assert peaks[1] < peaks[0] + 200_000
