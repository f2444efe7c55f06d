"""Tests about the whole tree: public names, imports, what the documents say of files, the tests themselves."""
