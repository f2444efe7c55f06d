"""The columns of a CSV feed that say the rest of the instruction, after those that every feed has."""

from __future__ import annotations

import json
from collections.abc import Mapping

from paceline.errors import InvalidInput
from paceline_payments.instruction import Instruction, checked_instruction

Columns = tuple[str, ...]

PATHS: Mapping[str, str] = {
    "initiatingParty": "InitgPty.Nm",
    "messageId": "MsgId",
    "paymentInformationId": "PmtInfId",
    "instructionId": "PmtId.InstrId",
    "endToEndId": "PmtId.EndToEndId",
    "uetr": "PmtId.UETR",
    "requestedDate": "ReqdExctnDt.Dt",
    "serviceLevel": "PmtTpInf.SvcLvl.0.Cd",
    "localInstrument": "PmtTpInf.LclInstrm.Cd",
    "categoryPurpose": "PmtTpInf.CtgyPurp.Cd",
    "chargeBearer": "ChrgBr",
    "purpose": "Purp.Cd",
    "payerBic": "DbtrAgt.FinInstnId.BICFI",
    "payerStreet": "Dbtr.PstlAdr.StrtNm",
    "payerBuilding": "Dbtr.PstlAdr.BldgNb",
    "payerPostCode": "Dbtr.PstlAdr.PstCd",
    "payerTown": "Dbtr.PstlAdr.TwnNm",
    "payerCountry": "Dbtr.PstlAdr.Ctry",
    "payerAddress": "Dbtr.PstlAdr.AdrLine.0",
    "ultimatePayer": "UltmtDbtr.Nm",
    "payeeBic": "CdtrAgt.FinInstnId.BICFI",
    "payeeStreet": "Cdtr.PstlAdr.StrtNm",
    "payeeBuilding": "Cdtr.PstlAdr.BldgNb",
    "payeePostCode": "Cdtr.PstlAdr.PstCd",
    "payeeTown": "Cdtr.PstlAdr.TwnNm",
    "payeeCountry": "Cdtr.PstlAdr.Ctry",
    "payeeAddress": "Cdtr.PstlAdr.AdrLine.0",
    "ultimatePayee": "UltmtCdtr.Nm",
    "remittanceText": "RmtInf.Ustrd.0",
    "creditorReference": "RmtInf.Strd.0.CdtrRefInf.Ref",
}
"""A column → its place in the instruction; 0 is the first of a list."""
ACCOUNTS = ("payerAccount", "payeeAccount")
REST = "instruction"
"""The column for what has none of its own: JSON."""
FURTHER_COLUMNS: Columns = (*ACCOUNTS, *PATHS, REST)


def instruction_of_fields(fields: Mapping[str, str]) -> Instruction:
    """The instruction that the fields of a line say; empty fields say nothing.

    Raises:
        InvalidInput: The column `instruction` is no instruction, or two columns say the same.
    """
    instruction: Instruction = {}
    if rest := fields.get(REST):
        try:
            document = json.loads(rest)
        except (ValueError, RecursionError):
            raise InvalidInput(REST, "is not valid JSON") from None
        instruction = document if isinstance(document, dict) else checked_instruction(document)
    for column, path in PATHS.items():
        if text := fields.get(column, "").strip():
            _put(instruction, path.split("."), text, column)
    return checked_instruction(instruction)


def _put(place: object, path: list[str], text: str, column: str) -> None:
    """Puts the text at its place, and makes the objects and lists around it."""
    for name, following in zip(path, [*path[1:], ""], strict=True):
        item: object = text if not following else [] if following == "0" else {}
        if isinstance(place, list):
            if following and place:
                item = place[0]
            elif place:
                raise InvalidInput(column, f"is also in the column {REST}")
            else:
                place.append(item)
        elif isinstance(place, dict):
            if not following and name in place:
                raise InvalidInput(column, f"is also in the column {REST}")
            item = place.setdefault(name, item)
        else:
            raise InvalidInput(column, f"contradicts the column {REST}")
        place = item
