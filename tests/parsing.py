"""One thread at a time parses Python, as every traceback does.

Python before 3.12 raises SystemError ("AST constructor recursion depth mismatch") if two do at once; in the report of
a failed test that ends the whole run. `tests/unit/test_parsing.py` shows it.
"""

from __future__ import annotations

import ast
import sys
import threading
from typing import Any

MENDED = (3, 12)


def take_turns() -> None:
    """From now on, in this process, `ast.parse` waits for its turn."""
    if sys.version_info >= MENDED:
        return
    turn = threading.RLock()
    usual = ast.parse

    def parse(*arguments: Any, **options: Any) -> Any:
        with turn:
            return usual(*arguments, **options)

    ast.parse = parse
