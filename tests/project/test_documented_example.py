"""The code in the explanation page runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/explanation/admission.md"


def test_the_first_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["decision"].allowed
    assert names["decision"].plan == "gold"
