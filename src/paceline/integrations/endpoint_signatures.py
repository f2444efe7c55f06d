"""The signature of a limited endpoint, by which FastAPI injects the connection."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, get_args, get_origin

from paceline.extras import needed
from paceline.integrations.functions import function_of

with needed("paceline.integrations.starlette", "starlette"):
    from starlette.requests import HTTPConnection

CONNECTION = "paceline_connection"
"""The parameter by which FastAPI injects the connection into a limited endpoint without one."""


def with_connection(endpoint: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """The name of the parameter for the connection, and the endpoint's signature with it."""
    signature = _signature_of(endpoint)
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if isinstance(kind, type) and issubclass(kind, HTTPConnection):
            return parameter.name, signature
    parameters = list(signature.parameters.values())
    takes_any = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    added = inspect.Parameter(CONNECTION, inspect.Parameter.KEYWORD_ONLY, annotation=HTTPConnection)
    parameters.insert(len(parameters) - takes_any, added)
    return CONNECTION, signature.replace(parameters=parameters)


def _signature_of(endpoint: Callable[..., Any]) -> inspect.Signature:
    """Its signature, with annotations evaluated where possible: FastAPI may look up their names in this module."""
    try:
        signature = inspect.signature(endpoint, eval_str=True)
    except Exception:  # one annotation can't be evaluated: evaluate the others one by one
        signature = inspect.signature(endpoint)
    function = inspect.unwrap(function_of(inspect.unwrap(endpoint)))
    names = getattr(function, "__globals__", {})
    parameters = [
        parameter.replace(annotation=_evaluated(parameter.annotation, names))
        for parameter in signature.parameters.values()
    ]
    returned = _evaluated(signature.return_annotation, names)
    return signature.replace(parameters=parameters, return_annotation=returned)


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    if isinstance(annotation, str):
        with suppress(Exception):  # names that exist later, or only for type checkers, are left to FastAPI
            return _evaluated(eval(annotation, names), names)
    return annotation
