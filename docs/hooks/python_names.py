"""The Python reference, from the docstrings of the public names."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import textwrap
from types import ModuleType
from typing import Any, ForwardRef

MODULES = (
    "paceline",
    "paceline.dispatch.registry",
    "paceline.dispatch.config",
    "paceline.downstream.signals",
    "paceline.downstream.usage",
    "paceline.downstream.verdicts",
    "paceline.integrations.fastapi",
    "paceline.integrations.starlette",
    "paceline.integrations.asgi",
    "paceline.integrations.flask",
    "paceline.integrations.django",
    "paceline.integrations.django_tasks",
    "paceline.integrations.django_admin",
    "paceline.integrations.drf",
    "paceline.integrations.celery",
    "paceline.integrations.litestar",
    "paceline.integrations.quart",
    "paceline.integrations.aiohttp",
    "paceline.integrations.grpc",
    "paceline.integrations.grpc_client",
    "paceline.integrations.functions",
    "paceline.integrations.requests",
    "paceline.compat.limits",
    "paceline_sms",
    "paceline.testing",
)
LONGEST_LINE = 100


def page() -> str:
    """Every public name of each public module."""
    lines: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        lines += [f"## {name}", "", _doc(module), ""]
        for public in sorted(_public(module)):
            lines += _entry(public, getattr(module, public))
    return "\n".join(lines)


def _public(module: ModuleType) -> list[str]:
    named = getattr(module, "__all__", None)
    if named is not None:
        return list(named)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]


def _entry(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return _class(name, value)
    if callable(value):
        return [f"### `{name}`", "", *_code(_signature(name, value)), _doc(value), ""]
    return [f"### `{name}`", "", f"`{value!r}`", ""]


def _class(name: str, value: type) -> list[str]:
    base = value.__mro__[1].__name__ if issubclass(value, Exception) else ""
    lines = [f"### `{name}`", ""]
    if issubclass(value, enum.Enum):
        lines += [_doc(value), "", ", ".join(f"`{member.value}`" for member in value), ""]
        return lines
    lines += _code(_signature(name, value))
    if base:
        lines += [f"Is a `{base}`.", ""]
    lines += [_doc(value), ""]
    owners = _owners(value)
    fields = [field for owner in owners for field in _fields(owner)]
    if fields:
        lines += ["| | |", "|---|---|", *(f"| `{field}` | {about} |" for field, about in fields), ""]
    members = {member: inner for owner in owners for member, inner in vars(owner).items()}
    for member, inner in members.items():
        if member.startswith("_"):
            continue
        function = inner.__func__ if isinstance(inner, classmethod | staticmethod) else inner
        if isinstance(function, property) and inspect.getdoc(function):
            lines += [f"**`{member}`**: {_doc(function)}", ""]
        elif inspect.isfunction(function) and inspect.getdoc(function):
            bound = not isinstance(inner, staticmethod)
            lines += [*_code(_signature(member, function, without_first=bound)), _doc(function), ""]
    return lines


def _owners(value: type) -> list[type]:
    """Where the members of a class are written: itself, and before it what it is built on that has no entry here."""
    public = set(importlib.import_module("paceline").__all__)
    inner = [
        base
        for base in reversed(value.__mro__[1:])
        if base.__module__.startswith("paceline.limits") and base.__name__ not in public
    ]
    return [*inner, value]


def _fields(value: type) -> list[tuple[str, str]]:
    """Annotated attributes, with the text that stands below each in the source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    except (OSError, TypeError, SyntaxError):
        return []
    fields: list[tuple[str, str]] = []
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        if name.startswith("_") or "ClassVar" in ast.unparse(statement.annotation):
            continue
        about = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        shown = f"{name}: {ast.unparse(statement.annotation)}".replace("|", "\\|")
        fields.append((shown, " ".join(str(about).split()).replace("|", "\\|")))
    return fields


def _signature(name: str, value: Any, *, without_first: bool = False) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    if without_first and parameters and parameters[0].name == "cls":
        parameters = parameters[1:]
    prefix = "async " if inspect.iscoroutinefunction(inspect.unwrap(value)) else ""
    returns = signature.return_annotation
    after = "" if inspect.isclass(value) or returns is inspect.Signature.empty else f" -> {_annotation(returns)}"
    shown = _parameters(parameters)
    line = f"{prefix}{name}({', '.join(shown)}){after}"
    if len(line) <= LONGEST_LINE:
        return line
    inner = "".join(f"    {text},\n" for text in shown)
    return f"{prefix}{name}(\n{inner}){after}"


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameters(parameters: list[inspect.Parameter]) -> list[str]:
    shown: list[str] = []
    starred = False
    for parameter in parameters:
        stars = _STARS.get(parameter.kind, "")
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
        starred = starred or parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        text = stars + parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_default(parameter.default)}"
        shown.append(text)
    return shown


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if callable(value):
        return getattr(value, "__name__", "…")
    shown = repr(value)
    return "…" if shown.startswith("<") else shown


def _code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def _doc(value: Any) -> str:
    """The docstring, with its examples still indented, also where nothing else follows the first line."""
    text = getattr(value, "__doc__", None) or ""
    if inspect.ismodule(value):
        return inspect.cleandoc(text)
    try:
        first = inspect.getsourcelines(inspect.unwrap(getattr(value, "fget", value)))[0][0]
    except (OSError, TypeError):
        return inspect.cleandoc(text)
    indent = " " * (len(first) - len(first.lstrip()) + 4)
    return "\n".join(line.removeprefix(indent) for line in text.strip().splitlines())
