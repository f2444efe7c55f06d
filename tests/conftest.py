"""In which order the tests run, and how hard the property tests look.

`pytest --hypothesis-profile=thorough`, as the check does, or quickly: a test writes how many examples it wants as
`settings(max_examples=examples(500))`; that many are tried thoroughly.
"""

from __future__ import annotations

import gc
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent

# No deadline for one example: on a busy machine any of them may take long.
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not look through all of it again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """File by file, of all folders in turn, and the short ones of `unit` last.

    The workers of a run then rarely all wait (faults do little else) or all compute at once, and end together.
    """
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    folders = [item.path.relative_to(HERE).parts[0] for (item, *_) in files]
    seen = dict.fromkeys(folders, 0)
    order = []
    for folder in folders:
        seen[folder] += 1
        order.append((folder == "unit", seen[folder] / folders.count(folder)))
    items[:] = [item for _, tests in sorted(zip(order, files, strict=True), key=lambda pair: pair[0]) for item in tests]
