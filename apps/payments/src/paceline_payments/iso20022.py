"""An ISO 20022 document as a stream: constant memory, no document tree.

A document type declaration is rejected, so there are no entities to expand and nothing to fetch. Depth, text length and
tag length are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from xml.parsers import expat

from paceline.errors import InvalidInput

DEEPEST = 40
LONGEST_TEXT = 1000
LONGEST_TOKEN = 1024 * 1024
"""Bytes of one tag: expat keeps a tag whole until it ends."""
NOT_PROVIDED = "NOTPROVIDED"
"""How a document says that a payment has no id."""


class DocumentStream:
    """Takes a document in blocks, and calls `start(name, attributes)` and `end(name)` for its elements.

    `texts` maps (parent, element) to the name under which its text is kept in `values`. An `Id` between the two is
    skipped.
    """

    def __init__(
        self,
        namespace: str,
        texts: Mapping[tuple[str, str], str],
        *,
        start: Callable[[str, dict[str, str]], None],
        end: Callable[[str], None],
    ) -> None:
        self.values: dict[str, str] = {}
        self._namespace = namespace
        self._texts = texts
        self._on_start = start
        self._on_end = end
        self._path: list[str] = []
        self._key = ""
        self._text: list[str] = []
        self._length = self._given = 0
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = _refuse_doctype
        self._expat.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    @property
    def parent(self) -> str:
        """The element around the one that has started."""
        return self._path[-2] if len(self._path) > 1 else ""

    def feed(self, block: bytes) -> None:
        """Parses a block.

        Raises:
            InvalidInput: It is no document of this namespace.
        """
        self._given += len(block)
        self._parse(block, False)
        if self._given - self._expat.CurrentByteIndex > LONGEST_TOKEN + len(block):
            raise InvalidInput("document", f"has a tag or text of more than {LONGEST_TOKEN} bytes")

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

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name, path = name.rpartition(":")[2], self._path
        if not path:
            self._check_root(name, attributes)
        elif len(path) >= DEEPEST:
            raise InvalidInput("document", f"is nested deeper than {DEEPEST} elements")
        parent = path[-1] if path else ""
        if parent == "Id" and len(path) > 1:
            parent = path[-2]
        path.append(name)
        self._on_start(name, attributes)
        key = self._texts.get((parent, name))
        if key is not None:
            self._key, self._text, self._length = key, [], 0
            self._expat.CharacterDataHandler = self._collect

    def _collect(self, text: str) -> None:
        self._length += len(text)
        if self._length > LONGEST_TEXT:
            raise InvalidInput("document", f"has a text of more than {LONGEST_TEXT} characters")
        self._text.append(text)

    def _end(self, _name: str) -> None:
        name = self._path.pop()
        if self._expat.CharacterDataHandler is not None:
            self._expat.CharacterDataHandler = None
            text = "".join(self._text).strip()
            if text:
                self.values[self._key] = text
        self._on_end(name)

    def _check_root(self, name: str, attributes: dict[str, str]) -> None:
        space = next((value for key, value in attributes.items() if key == "xmlns" or key.startswith("xmlns:")), "")
        if name != "Document" or not any(value.startswith(self._namespace) for value in attributes.values()):
            shown = f"{name} of {space}" if space else name
            raise InvalidInput("document", f"must be a Document of {self._namespace}…, not {shown[:200]}")


def _refuse_doctype(*_: object) -> None:
    """expat calls this for a document type declaration: entities are never expanded, nothing is fetched."""
    raise InvalidInput("document", "has a document type declaration, which is not allowed: it could define entities")
