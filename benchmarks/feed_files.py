"""Feeds and statements as files: the same payments as CSV and as pain.001, and the bank's statement.

In a CSV every thousandth line is broken; in pain.001 every thousandth transaction has no amount.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

HEADER = "paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n"
STATEMENT_HEADER = "paymentId,amount,currency,status,reference,executedAt\n"
PAYER = "DE89370400440532013000"
PAYEES = ("GB29NWBK60161331926819", "FR1420041010050500013M02606", "NL91ABNA0417164300", "BE68539007547034")
BROKEN_EVERY = 1000
DUE = "2030-03-01T16:00:00Z"


def is_broken(number: int) -> bool:
    return number % BROKEN_EVERY == BROKEN_EVERY - 1


def payer_iban(number: int) -> str:
    """One of many accounts; the first is `PAYER`."""
    if number == 0:
        return PAYER
    account = f"37040044{number:010}"
    return f"DE{98 - int(account + '131400') % 97:02}{account}"


def write_csv(path: Path, lines: int, prefix: str, payers: int = 1) -> None:
    """So many lines of payments whose ids begin with `prefix`; the payers take turns."""
    ibans = [payer_iban(number) for number in range(payers)]
    with path.open("w") as feed:
        feed.write(HEADER)
        for number in range(lines):
            if is_broken(number):
                feed.write("this line is broken\n")
                continue
            parties = f"Payer,{ibans[number % payers]},Payee {number},{PAYEES[number % len(PAYEES)]}"
            feed.write(f"{prefix}-{number},{_amount(number)},EUR,{parties},{DUE}\n")


def write_pain001(path: Path, lines: int, prefix: str, payers: int = 1) -> None:
    """The same payments in one document with the control figures that banks ask for, a batch for each payer."""
    good = [number for number in range(lines) if not is_broken(number)]
    cents = sum(number % 9000 * 100 + 125 for number in good)
    with path.open("w") as feed:
        feed.write(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<Document xmlns="urn:iso:std:iso:20022:tech:xsd:pain.001.001.09"><CstmrCdtTrfInitn>\n'
            f"<GrpHdr><MsgId>{prefix}</MsgId><CreDtTm>2030-02-28T10:00:00</CreDtTm><NbOfTxs>{lines}</NbOfTxs>"
            f"<CtrlSum>{cents // 100}.{cents % 100:02}</CtrlSum><InitgPty><Nm>Payers</Nm></InitgPty></GrpHdr>\n"
        )
        for payer in range(payers):
            feed.write(
                f"<PmtInf><PmtInfId>P{payer}</PmtInfId><PmtMtd>TRF</PmtMtd>"
                f"<ReqdExctnDt><DtTm>{DUE}</DtTm></ReqdExctnDt><Dbtr><Nm>Payer</Nm></Dbtr>"
                f"<DbtrAcct><Id><IBAN>{payer_iban(payer)}</IBAN></Id></DbtrAcct>"
                "<DbtrAgt><FinInstnId><BICFI>COBADEFF</BICFI></FinInstnId></DbtrAgt>\n"
            )
            feed.writelines(_transactions(range(payer, lines, payers), prefix))
            feed.write("</PmtInf>\n")
        feed.write("</CstmrCdtTrfInitn></Document>\n")


def write_statement(path: Path, lines: int, prefix: str) -> None:
    """The bank executed every payment of the feed."""
    with path.open("w") as statement:
        statement.write(STATEMENT_HEADER)
        for number in range(lines):
            if not is_broken(number):
                statement.write(f"{prefix}-{number},{_amount(number)},EUR,EXECUTED,BANK-{prefix}-{number},{DUE}\n")


def _transactions(numbers: Iterable[int], prefix: str) -> Iterator[str]:
    for number in numbers:
        amount = "" if is_broken(number) else f'<Amt><InstdAmt Ccy="EUR">{_amount(number)}</InstdAmt></Amt>'
        yield (
            f"<CdtTrfTxInf><PmtId><InstrId>{number}</InstrId><EndToEndId>{prefix}-{number}</EndToEndId></PmtId>{amount}"
            "<CdtrAgt><FinInstnId><BICFI>NWBKGB2L</BICFI></FinInstnId></CdtrAgt>"
            f"<Cdtr><Nm>Payee {number}</Nm></Cdtr>"
            f"<CdtrAcct><Id><IBAN>{PAYEES[number % len(PAYEES)]}</IBAN></Id></CdtrAcct>"
            "<RmtInf><Ustrd>invoice</Ustrd></RmtInf></CdtTrfTxInf>\n"
        )


def _amount(number: int) -> str:
    return f"{number % 9000 + 1}.25"
