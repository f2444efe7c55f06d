"""Hypothesis under mutation tests: the same examples in every run, and no search for a smaller one that fails too."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutation",
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
