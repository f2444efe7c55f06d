"""Read by schemathesis: each sort of request is made once.

Its coverage phase makes the same sort, such as "capacity below its minimum", for every alternative of a body and with
every combination of the other members; and it tries every method that an operation does not have, where each path with
one and each method at one path show that they are refused. The thorough check tries those too (`test_schema.py`).
"""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis.generation.meta import CoveragePhaseData, CoverageScenario

CANCELS = ("DELETE", "/api/v1/slots/{eventId}/explain")
"""It cancels the event whose id ends with `/explain`, so it need not be refused."""

_made: set[tuple[object, ...]] = set()


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    sort = case.meta.phase.data if case.meta else None
    if not isinstance(sort, CoveragePhaseData):
        return True
    if sort.scenario is CoverageScenario.UNSPECIFIED_HTTP_METHOD:
        if (case.method, case.operation.path) == CANCELS:
            return False
        return _is_new("path", case.operation.path) | _is_new("method", case.method)
    return _is_new(
        *(case.operation.label, case.method, case.media_type),
        *(sort.scenario, sort.parameter_location, sort.parameter, sort.location, sort.description),
    )


def _is_new(*sort: object) -> bool:
    is_new = sort not in _made
    _made.add(sort)
    return is_new
