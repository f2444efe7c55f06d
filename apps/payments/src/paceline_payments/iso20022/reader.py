"""Reads an ISO 20022 document as a stream, validates it, and returns its records as JSON: constant memory, no tree.

Elements are known by their namespace and their full path. What the schema does not allow at a place is an error there;
supplementary data and its foreign elements are skipped, and never become part of a record.

A document type declaration is rejected, so there are no entities to expand and nothing to fetch. Depth, text length and
tag length are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from xml.parsers import expat

from paceline.errors import InvalidInput
from paceline_payments.iso20022.schema import ElementType

MAX_DEPTH = 40
MAX_TEXT = 100_000
MAX_TOKEN = 1024 * 1024
"""Bytes of one tag: expat keeps a tag whole until it ends."""
_HINTS = "http://www.w3.org/2001/XMLSchema-instance "
_ALLOWED_HINTS = (f"{_HINTS}schemaLocation", f"{_HINTS}noNamespaceSchemaLocation")

Values = dict[str, Any]


class Root(NamedTuple):
    """A supported document."""

    namespace: str
    name: str
    """The outermost element."""
    type: ElementType


class Problem(NamedTuple):
    """What the schema does not allow, and where."""

    path: str
    words: str


@dataclass(slots=True)
class _Frame:
    """An element that has started."""

    name: str
    type: ElementType | None
    """None below a problem: its texts are still read, and nothing is checked."""
    repeats: bool = False
    values: Values = field(default_factory=dict)
    group: int = 0
    count: int = 0
    attributes: Values = field(default_factory=dict)


class RecordReader:
    """Takes a document in blocks, and calls `record(path, values, problem)` at the end of each record.

    `records` are the paths below the root whose elements are records: each is passed on as a JSON object, and is not
    part of the element around it. A problem inside a record of `tolerated` is passed on with it; any other one ends the
    document. `outer` gives the values of an element that has not ended.
    """

    def __init__(
        self,
        root_of: Callable[[str, str], Root],
        records: Mapping[tuple[str, ...], bool],
        record: Callable[[tuple[str, ...], Values, Problem | None], None],
    ) -> None:
        """`root_of(namespace, name)` returns the root, or raises `InvalidInput`. `records` tells of each path whether
        its problems are tolerated."""
        self._root_of = root_of
        self._records = records
        self._deepest_record = 1 + max(map(len, records))
        self._record = record
        self._frames: list[_Frame] = []
        self._names: tuple[str, ...] = ()
        self._prefix = ""
        self._skipped = 0
        self._problem: Problem | None = None
        self._text: list[str] = []
        self._length = self._given = 0
        self._expat = expat.ParserCreate(namespace_separator=" ")
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._collect
        self._expat.StartDoctypeDeclHandler = _refuse_doctype
        self._expat.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def outer(self, depth: int) -> Values:
        """The values so far of the element at this depth; the root's is 0."""
        return self._frames[depth].values

    def feed(self, block: bytes) -> None:
        """Parses a block.

        Raises:
            InvalidInput: It is no such document, or the schema does not allow it.
        """
        self._given += len(block)
        self._parse(block, False)
        if self._given - self._expat.CurrentByteIndex > MAX_TOKEN + len(block):
            raise InvalidInput("document", f"has a tag or text of more than {MAX_TOKEN} bytes")

    def finish(self) -> None:
        """Ends the document.

        Raises:
            InvalidInput: It is truncated.
        """
        self._parse(b"", True)

    def _parse(self, block: bytes, last: bool) -> None:
        try:
            self._expat.Parse(block, last)
        except expat.ExpatError as error:
            line, problem = error.lineno, expat.ErrorString(error.code)
            raise InvalidInput("document", f"is not well-formed XML: line {line}: {problem}") from None
        except (ValueError, LookupError) as error:
            if self._frames or isinstance(error, InvalidInput):
                raise
            raise InvalidInput("document", "has an encoding that is not supported; use UTF-8") from None

    # -- elements ------------------------------------------------------------------------------------------------

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._skipped:
            self._skipped += 1
            return
        if len(self._frames) >= MAX_DEPTH:
            raise InvalidInput("document", f"is nested deeper than {MAX_DEPTH} elements")
        namespace, _, local = name.rpartition(" ")
        if not self._frames:
            root = self._root_of(namespace, local)
            self._prefix = f"{root.namespace} " if root.namespace else ""
            self._push(_Frame(local, root.type), attributes)
            return
        parent = self._frames[-1]
        self._check_blank(parent)
        if parent.type is not None and parent.type.is_open:
            self._skipped = 1
            return
        is_ours = name == self._prefix + local
        if parent.type is None or parent.type.is_lax:
            self._start_unchecked(parent, local, attributes, is_ours)
        elif not is_ours:
            self._report("", f"has {local} of the namespace {namespace[:100]!r}, which is not allowed there")
            self._skipped = 1
        else:
            self._push(self._checked(parent, parent.type, local), attributes)

    def _start_unchecked(self, parent: _Frame, local: str, attributes: dict[str, str], is_ours: bool) -> None:
        """Below a problem everything is kept as text; in a lax type, what is known."""
        groups = parent.type.groups if parent.type is not None else []
        known = groups[0].elements.get(local) if groups else None
        if not is_ours or (parent.type is not None and known is None):
            self._skipped = 1
        elif known is not None:
            self._push(_Frame(local, known.type, known.repeats), attributes)
        else:
            self._push(_Frame(local, None, attributes={"Ccy": attributes["Ccy"]} if "Ccy" in attributes else {}), {})

    def _checked(self, parent: _Frame, kind: ElementType, name: str) -> _Frame:
        """The frame of an element that may stand here; of one that may not, a frame without a type."""
        index, count, missing = parent.group, parent.count, ""
        while index < len(kind.groups):
            group = kind.groups[index]
            element = group.elements.get(name)
            if element is not None and (group.max is None or count < group.max):
                parent.group, parent.count = index, count + 1
                if missing:
                    self._report("", f"has no {missing}")
                return _Frame(name, element.type, element.repeats)
            if count < group.min and not missing:
                missing = " or ".join(list(group.elements)[:4])
            index, count = index + 1, 0
        self._report("", f"has {name}, which is not allowed there{f': {missing} is missing' if missing else ''}")
        return _Frame(name, None)

    def _push(self, frame: _Frame, attributes: dict[str, str]) -> None:
        self._frames.append(frame)
        self._names = (*self._names, frame.name)
        self._text, self._length = [], 0
        kind = frame.type
        if kind is not None and kind.is_lax:
            frame.attributes = {name: attributes[name] for name in kind.attributes if name in attributes}
        elif kind is not None and (attributes or kind.attributes):
            self._read_attributes(frame, kind, attributes)

    def _read_attributes(self, frame: _Frame, kind: ElementType, attributes: dict[str, str]) -> None:
        for name, text in attributes.items():
            rule = kind.attributes.get(name)
            if rule is not None:
                frame.attributes[name] = text
                if (words := rule.problem(text)) is not None:
                    self._report(f"@{name}", words)
            elif name not in _ALLOWED_HINTS:
                self._report("", f"has the attribute {name.rpartition(' ')[2][:40]}, which is not allowed")
        for name in kind.attributes:
            if name not in attributes:
                self._report("", f"has no attribute {name}")

    def _collect(self, text: str) -> None:
        if self._skipped or not self._frames:
            return
        self._length += len(text)
        if self._length > MAX_TEXT:
            raise InvalidInput("document", f"has a text of more than {MAX_TEXT} characters")
        self._text.append(text)

    def _end(self, _name: str) -> None:
        if self._skipped:
            self._skipped -= 1
            return
        frame = self._frames[-1]
        kind = frame.type
        value: Any
        if kind is not None and kind.text is not None:
            text = "".join(self._text)
            if (words := kind.text.problem(text)) is not None:
                self._report("", words)
            value = frame.values or kind.text.value(text)
        elif kind is None and not frame.values:
            value = "".join(self._text).strip()
        else:
            self._check_blank(frame)
            if kind is not None and not kind.is_lax:
                self._check_complete(frame, kind)
            value = frame.values
        if frame.attributes:
            value = {**frame.attributes, "amt": value}
        path = self._names[1:] if len(self._names) <= self._deepest_record else ()
        if path in self._records:
            tolerated = self._records[path]
            # Before the frame is popped, so that `outer` still has it and those around it.
            problem, self._problem = (self._problem, None) if tolerated else (None, self._problem)
            self._record(path, value if isinstance(value, dict) else {}, problem)
            self._pop()
        else:
            self._pop()
            self._attach(frame, value)
        self._text, self._length = [], 0

    def _pop(self) -> None:
        self._frames.pop()
        self._names = self._names[:-1]

    def _attach(self, frame: _Frame, value: Any) -> None:
        kind = frame.type
        if not self._frames or (kind is not None and kind.is_supplementary):
            return
        # That an element of a lax document is there may say something, even if none of its members matters.
        if value in ("", {}) and not (kind is not None and kind.is_lax and kind.groups):
            return
        values = self._frames[-1].values
        if frame.repeats:
            values.setdefault(frame.name, []).append(value)
        elif frame.name not in values:
            values[frame.name] = value

    def _check_blank(self, frame: _Frame) -> None:
        """Text between elements must be white space."""
        if not self._text:
            return
        kind = frame.type
        if kind is not None and kind.text is None and not kind.is_open and "".join(self._text).strip(" \t\n\r"):
            self._report("", "has text between its elements")
        self._text, self._length = [], 0

    def _check_complete(self, frame: _Frame, kind: ElementType) -> None:
        for index in range(frame.group, len(kind.groups)):
            count = frame.count if index == frame.group else 0
            if count < kind.groups[index].min:
                self._report("", f"has no {' or '.join(list(kind.groups[index].elements)[:4])}")
                return

    def _report(self, member: str, words: str) -> None:
        """Keeps the first problem of a record that may have some; raises any other."""
        names = self._names[1:]
        path = ".".join((*names, member) if member else names) or "document"
        if not any(self._records.get(names[:length]) for length in range(1, len(names) + 1)):
            raise InvalidInput(path, words)
        if self._problem is None:
            self._problem = Problem(path, words)


def _refuse_doctype(*_: object) -> None:
    """expat calls this for a document type declaration: entities are never expanded, nothing is fetched."""
    raise InvalidInput("document", "has a document type declaration, which is not allowed: it could define entities")
