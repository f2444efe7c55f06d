"""Read by schemathesis: each sort of request is made once.

Its coverage phase makes the same sort, such as "capacity below its minimum", for every alternative of a body and with
every combination of the other members. The thorough check tries those too (`test_schema.py`).
"""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis.generation.meta import CoveragePhaseData

_made: set[tuple[object, ...]] = set()


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    sort = case.meta.phase.data if case.meta else None
    if not isinstance(sort, CoveragePhaseData):
        return True
    kind = (
        *(case.operation.label, case.method, case.media_type),
        *(sort.scenario, sort.parameter_location, sort.parameter, sort.location, sort.description),
    )
    is_new = kind not in _made
    _made.add(kind)
    return is_new
