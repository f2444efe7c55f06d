"""ISO 20022 documents: their schemas, and a reader that validates while it streams."""

NOT_PROVIDED = "NOTPROVIDED"
"""How a document says that there is no such id."""
