"""The HTTP reference, from the service's own OpenAPI document."""

from __future__ import annotations

from typing import Any

from paceline.server.http.app import create_app
from paceline.server.settings import Settings

METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    """Every operation: what it takes, what it answers; then every schema those name."""
    document = create_app(Settings(database_url="memory://")).openapi()
    lines = ["## Every operation", ""]
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                tag = (operations[method].get("tags") or ["other"])[0]
                groups.setdefault(tag, []).extend(_operation(method, path, operations[method]))
    for tag, entries in groups.items():
        lines += [f"### {tag.replace('-', ' ').capitalize()}", "", *entries]
    lines += ["## Schemas", ""]
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        lines += _schema(name, schema)
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"#### `{method.upper()} {path}`", ""]
    for text in (operation.get("summary"), operation.get("description")):
        if text:
            lines += [_sentence(text), ""]
    rows = [
        (
            f"`{parameter['name']}`",
            parameter["in"],
            _type(parameter.get("schema", {})),
            "yes" if parameter.get("required") else "",
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", [])
    ]
    lines += _table(("parameter", "in", "type", "required", ""), rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += _body(kind, content.get("schema", {}))
    answers = sorted(operation["responses"].items())
    rows = [
        (f"`{status}`", ", ".join(_type(content.get("schema", {})) for content in answer["content"].values()))
        for status, answer in answers
        if status < "400" and answer.get("content")
    ]
    lines += _table(("answer", ""), rows)
    errors = ", ".join(f"`{status}`" for status, _ in answers if status >= "400")
    return [*lines, f"Errors: {errors}.", ""] if errors else lines


def _body(kind: str, schema: dict[str, Any]) -> list[str]:
    needed = schema.get("required", [])
    rows = [
        (f"`{member}`", _type(inner), "yes" if member in needed else "", _sentence(inner.get("description", "")))
        for member, inner in schema.get("properties", {}).items()
    ]
    if rows:
        return [f"Body, `{kind}`:", "", *_table(("member", "type", "required", ""), rows)]
    return [f"Body, `{kind}`: {_type(schema)}.", ""]


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name} {{ #schema-{name.lower()} }}", ""]
    if schema.get("description"):
        lines += [_sentence(schema["description"]), ""]
    needed = schema.get("required", [])
    rows = [
        (f"`{member}`", _type(inner), "yes" if member in needed else "", _sentence(inner.get("description", "")))
        for member, inner in schema.get("properties", {}).items()
    ]
    if rows:
        return lines + _table(("member", "type", "required", ""), rows)
    return [*lines, _type(schema), ""]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#schema-{name.lower()})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_type(option) for option in schema[choice]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = [
        f"{sign} {schema[key]}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("minLength", "length ≥"),
            ("maxLength", "length ≤"),
        )
        if key in schema
    ]
    details = [schema["format"], *bounds] if "format" in schema else bounds
    return kind + (f" ({', '.join(details)})" if details else "")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    cells = [head, ("---",) * len(head), *rows]
    return [*("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells), ""]


def _sentence(text: str) -> str:
    return " ".join(str(text).split())
