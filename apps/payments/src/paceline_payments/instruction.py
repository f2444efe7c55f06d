"""The instruction of a payment: everything its file says, as one JSON object with the names of ISO 20022.

The object is a pain.001 message cut down to one transaction: the members of `GrpHdr`, `PmtInf` and `CdtTrfTxInf` beside
each other. Texts are texts, elements that may repeat are lists, an amount is `{"Ccy": "EUR", "amt": "12.30"}`.

A payment keeps what its other members do not say. Amount, names and accounts have one place each, so that they can't
contradict each other; `whole_instruction` adds them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.errors import InvalidInput

MAX_LENGTH = 60_000
"""Characters of an instruction as JSON."""
MAX_DEPTH = 20

_NAME = re.compile(r"[A-Z][A-Za-z0-9]{0,34}", re.ASCII)
_ALLOWED_CONTROL = frozenset("\t\n\r")
_NOT_OF_A_PAYMENT = ("NbOfTxs", "CtrlSum", "SplmtryData")
"""Control figures belong to a file, and supplementary data is never read."""

Instruction = dict[str, Any]


def checked_instruction(value: object, field: str = "instruction") -> Instruction:
    """An instruction as a client sends it.

    Raises:
        InvalidInput: It is no JSON object of texts, lists and objects, or a name is none of ISO 20022.
    """
    if not isinstance(value, dict):
        raise InvalidInput(field, "must be a JSON object with names of ISO 20022")
    for name in _NOT_OF_A_PAYMENT:
        if name in value:
            raise InvalidInput(f"{field}.{name}", "can't be part of a payment's instruction")
    _check(value, field, 0)
    return value


def instruction_text(instruction: Instruction) -> str | None:
    """An instruction in its one form as text: equal instructions are equal texts. None if it says nothing.

    Raises:
        InvalidInput: It is too long.
    """
    if not instruction:
        return None
    text = json.dumps(instruction, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if len(text) > MAX_LENGTH:
        raise InvalidInput("instruction", f"has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    return text


def own_members(
    amount: str, currency: str, payer: Mapping[str, str], payee: Mapping[str, str]
) -> Mapping[tuple[str, ...], str]:
    """The paths of an instruction that other members of the payment say, and what they say."""
    members: dict[tuple[str, ...], str] = {("Amt", "InstdAmt", "Ccy"): currency, ("Amt", "InstdAmt", "amt"): amount}
    for role, party in (("Dbtr", payer), ("Cdtr", payee)):
        members[(role, "Nm")] = party["name"]
        if "iban" in party:
            members[(f"{role}Acct", "Id", "IBAN")] = party["iban"]
        else:
            members[(f"{role}Acct", "Id", "Othr", "Id")] = party["account"]
    return members


def without_own_members(instruction: Instruction, own: Mapping[tuple[str, ...], str]) -> Instruction:
    """The instruction without what other members of the payment say.

    Raises:
        InvalidInput: It contradicts them.
    """
    rest: Instruction = json.loads(json.dumps(instruction))
    for path, said in own.items():
        if (value := take_member(rest, path)) is not None and not _is_same(path, value, said):
            raise InvalidInput(f"instruction.{'.'.join(path)}", f"is {value!r:.80}, but the payment says {said!r:.80}")
    for path in _others(own):
        if take_member(rest, path) is not None:
            raise InvalidInput(f"instruction.{'.'.join(path)}", "contradicts the payment's own members")
    return rest


def _others(own: Mapping[tuple[str, ...], str]) -> Iterator[tuple[str, ...]]:
    """The paths at which an instruction would say another amount or account."""
    yield "Amt", "InstdAmt"
    yield "Amt", "EqvtAmt"
    for account in ("DbtrAcct", "CdtrAcct"):
        yield (account, "Id") if (account, "Id", "IBAN") in own else (account, "Id", "IBAN")


def whole_instruction(text: str | None, own: Mapping[tuple[str, ...], str]) -> Instruction:
    """What the bank gets: the instruction with the members that the payment says itself."""
    whole: Instruction = {} if text is None else json.loads(text)
    for path, said in own.items():
        place = whole
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = said
    return whole


def take_member(rest: Instruction, path: tuple[str, ...]) -> object:
    """Removes a path and what it leaves empty; returns what was there."""
    place: object = rest
    parents: list[tuple[Instruction, str]] = []
    for index, name in enumerate(path):
        if not isinstance(place, dict):
            raise InvalidInput(f"instruction.{'.'.join(path[:index])}", "must be an object")
        if name not in place:
            return None
        parents.append((place, name))
        place = place[name]
    parent, name = parents.pop()
    taken: object = parent.pop(name)
    while parents and not parent:
        parent, name = parents.pop()
        del parent[name]
    return taken


def _is_same(path: tuple[str, ...], value: object, said: str) -> bool:
    if not isinstance(value, str):
        return False
    if path[-1] == "amt":
        whole, _, fraction = value.partition(".")
        said_whole, _, said_fraction = said.partition(".")
        return (whole, fraction.rstrip("0")) == (said_whole, said_fraction.rstrip("0"))
    if path[-1] == "IBAN":
        return value.replace(" ", "").upper() == said
    return value.strip() == said


def _check(value: object, place: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidInput(place[:200], f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for name, member in value.items():
            if not _NAME.fullmatch(name) and not (name == "amt" and "Ccy" in value):
                raise InvalidInput(place[:200], f"has {name[:40]!r}, which is no name of ISO 20022")
            _check(member, f"{place}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _check(member, f"{place}[{index}]", depth + 1)
    elif not isinstance(value, str) or not value or not _is_text(value):
        raise InvalidInput(place[:200], "must be a text of characters that can be written, a list or an object")
    if isinstance(value, dict | list) and not value:
        raise InvalidInput(place[:200], "must not be empty")


def _is_text(value: str) -> bool:
    return value.isprintable() or all(
        character in _ALLOWED_CONTROL or not (character < " " or "\ud800" <= character <= "\udfff")
        for character in value
    )
