"""Random documents of a schema, and the same with one change: for comparing our reader with lxml."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from random import Random

from lxml import etree

from paceline_payments.iso20022.schema import ElementType, load
from paceline_payments.iso20022.simple_types import SimpleType

ISO = "urn:iso:std:iso:20022:tech:xsd:"
VERSIONS = ("pain.001.001.03", "pain.001.001.09", "pain.001.001.11")
FORMS = {
    "[A-Z]{3,3}": "EUR",
    "[0-9]{1,15}": "01",
    "[0-9]{2}": "17",
    "[A-Z]{2,2}": "DE",
    "[a-zA-Z0-9]{4}": "aB01",
    "[A-Z0-9]{18,18}[0-9]{2,2}": "529900T8BM49AURSDO55",
    "[A-Z]{2,2}[0-9]{2,2}[a-zA-Z0-9]{1,30}": "DE89370400440532013000",
    "[A-Z]{6,6}[A-Z2-9][A-NP-Z0-9]([A-Z0-9]{3,3}){0,1}": "COBADEFFXXX",
    "[A-Z0-9]{4,4}[A-Z]{2,2}[A-Z0-9]{2,2}([A-Z0-9]{3,3}){0,1}": "COBADEFF",
    "\\+[0-9]{1,3}-[0-9()+\\-]{1,30}": "+49-170",
    "[a-f0-9]{8}-[a-f0-9]{4}-4[a-f0-9]{3}-[89ab][a-f0-9]{3}-[a-f0-9]{12}": "eb6305c9-1f7f-49de-aed0-16487c27b42d",
}
BASES = {
    "xs:date": ["2027-03-01", "2028-02-29", "2027-03-01+01:00", "2027-03-01Z"],
    "xs:dateTime": ["2027-03-01T16:00:00", "2027-03-01T24:00:00Z", "2027-03-01T16:00:00.123+14:00"],
    "xs:gYear": ["2027"],
    "xs:boolean": ["true", "0"],
    "xs:base64Binary": ["TWFu", "TWE="],
    "xs:decimal": ["12.5", "+010.00000", "3.", ".5", "0"],
}
WRONG = [
    "",
    " ",
    "9E999999",
    "-1",
    "1.123456",
    "2027-02-29",
    "0000-01-01",
    "x" * 3000,
    "Ä",
    "EURO",
    "12,5",
    "true ",
    "٣",
]


@cache
def published(version: str) -> etree.XMLSchema:
    """The schema as another package ships it."""
    return etree.XMLSchema(etree.fromstring(files("sepaxml").joinpath("schemas", f"{version}.xsd").read_bytes()))


def document(
    version: str, random: Random, density: float = 0.3, always: frozenset[str] = frozenset()
) -> etree._Element:
    """A valid document; elements with a name of `always` are there wherever they may be."""
    root = etree.Element(f"{{{ISO}{version}}}Document", nsmap={None: ISO + version})
    _fill(root, load(version), random, density, always)
    return root


def _fill(node: etree._Element, kind: ElementType, random: Random, density: float, always: frozenset[str]) -> None:
    if kind.is_open:
        etree.SubElement(node, "{urn:other}Amt").text = "99"
        return
    for name, rule in kind.attributes.items():
        node.set(name, text_of(rule, random))
    if kind.text is not None:
        node.text = text_of(kind.text, random)
        return
    for group in kind.groups:
        wanted = [element for name, element in group.elements.items() if name in always]
        chosen = random.choice(wanted or list(group.elements.values()))
        is_there = wanted or random.random() < density
        count = max(group.min, random.randint(1, min(group.max or 3, 3)) if is_there else 0)
        for _ in range(count):
            child = etree.SubElement(node, f"{{{etree.QName(node).namespace}}}{chosen.name}")
            _fill(child, chosen.type, random, density, always)


def text_of(rule: SimpleType, random: Random) -> str:
    if rule.values is not None:
        return random.choice(sorted(rule.values))
    if rule.patterns:
        return FORMS[rule.patterns[0].pattern]
    if rule.fraction_digits == 0:
        return "17"
    if rule.base != "xs:string":
        return random.choice(BASES[rule.base])
    return random.choice("aÄ &<\n") * random.randint(max(rule.min_length, 1), min(rule.max_length or 40, 40))


def change(root: etree._Element, random: Random) -> None:
    """Makes one change that may make the document invalid, unless an earlier one has removed all of it."""
    nodes = [node for node in root.iter() if node is not root]
    if nodes:
        random.choice(CHANGES)(random.choice(nodes), random)


def _text(node: etree._Element, random: Random) -> None:
    node.text = random.choice(WRONG)


def _remove(node: etree._Element, _random: Random) -> None:
    parent = node.getparent()
    assert parent is not None
    parent.remove(node)


def _repeat(node: etree._Element, _random: Random) -> None:
    node.addnext(etree.fromstring(etree.tostring(node, with_tail=False)))


def _move(node: etree._Element, random: Random) -> None:
    parent = node.getparent()
    assert parent is not None
    parent.insert(random.randrange(len(parent)), node)


def _rename(node: etree._Element, random: Random) -> None:
    node.tag = f"{{{etree.QName(node).namespace}}}{random.choice(['Nm', 'IBAN', 'Amt', 'Unknown'])}"


def _foreign(node: etree._Element, _random: Random) -> None:
    node.tag = f"{{urn:other}}{etree.QName(node).localname}"


def _attribute(node: etree._Element, random: Random) -> None:
    node.set(random.choice(["Ccy", "Other"]), random.choice(["EUR", "eur", ""]))


def _no_attribute(node: etree._Element, _random: Random) -> None:
    for name in node.attrib:
        del node.attrib[name]


def _stray_text(node: etree._Element, random: Random) -> None:
    node.tail = random.choice(["\n  ", "stray", "\xa0"])


CHANGES: list[Callable[[etree._Element, Random], None]] = [
    _text,
    _text,
    _remove,
    _repeat,
    _move,
    _rename,
    _foreign,
    _attribute,
    _no_attribute,
    _stray_text,
]
