"""How hard the property tests look: `pytest --hypothesis-profile=thorough`, as the check does, or quickly.

A test writes how many examples it wants as `settings(max_examples=examples(500))`; that many are tried thoroughly.
"""

from __future__ import annotations

from hypothesis import settings

# No deadline for one example: on a busy machine any of them may take long.
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile("quick")
