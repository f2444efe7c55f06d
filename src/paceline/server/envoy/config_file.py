"""Rules from the YAML of envoyproxy/ratelimit, unchanged.

domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 100}

One file has one domain. Files of a folder that have the same domain are one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError
from paceline.extras import needed
from paceline.server.envoy.descriptors import ANY, RateLimit, RuleNode, Unit

log = logging.getLogger("paceline.envoy")

SUFFIXES = (".yaml", ".yml")
MAX_REQUESTS = 2**32 - 1
MAX_DEPTH = 20
ROOT_MEMBERS = ("domain", "descriptors")
DESCRIPTOR_MEMBERS = (
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
)
LIMIT_MEMBERS = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
YES = {"true", "yes", "on", "y"}
NO = {"false", "no", "off", "n", ""}

Marks = tuple[tuple[str, int, int, int], ...]


class EnvoyConfig:
    """The rules of a file or a folder, which may be edited while the service runs.

    The first load of an invalid file raises. If a file becomes invalid later, that is logged once, and the rules in
    force stay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_rejection: Callable[[], object] = lambda: None
        """Called when a change can't be used."""
        self._seen: Marks | None = None
        self._domains: list[RuleNode] | None = None

    def load(self) -> list[RuleNode]:
        """The rules of each domain: reread if a file changed, else the same objects as before.

        Raises:
            ConfigurationError: the file can't be used, and no rules were ever read.
        """
        seen: Marks = ()
        try:
            files = _files(self.path)
            seen = tuple(_marks(file) for file in files)
            if self._domains is None or seen != self._seen:
                domains = read_domains(files)
                if self._domains is not None and seen != tuple(_marks(file) for file in files):
                    return self._domains  # one is being saved: the next load reads it again
                self._domains = domains
                if self._seen is not None:
                    log.info("envoy config: %s was changed and is in force", self.path)
        except (OSError, ConfigurationError) as error:
            problem = error if isinstance(error, ConfigurationError) else _unreadable(self.path, error)
            if self._domains is None:
                raise problem from None
            if seen != self._seen:
                self.on_rejection()
                log.warning("envoy config: the rules stay as they were: %s", problem)
        self._seen = seen
        return self._domains


def read_domains(files: list[Path]) -> list[RuleNode]:
    """The rules of each domain, from all files that have it.

    Raises:
        ConfigurationError: a file can't be used, or two have the same descriptor.
    """
    domains: dict[str, RuleNode] = {}
    for file in files:
        try:
            domain = parse_domain(file.read_text("utf-8"), domains)
        except UnicodeDecodeError:
            raise ConfigurationError(str(file), "is not UTF-8") from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{file}: {error.field}", error.problem) from None
        domains[domain.path] = domain
    return list(domains.values())


def parse_domain(text: str, known: Mapping[str, RuleNode] | None = None) -> RuleNode:
    """The rules of one document; added to those of its domain that are known.

    Raises:
        ConfigurationError: names the member that is wrong.
    """
    document = _document(text)
    _check_members(document, ROOT_MEMBERS, "")
    domain = _text(document.get("domain"), "domain")
    if not domain:
        raise ConfigurationError("domain", "is missing; name the domain that Envoy sends")
    root = (known or {}).get(domain) or RuleNode(domain)
    _add_descriptors(root, document.get("descriptors"), "descriptors")
    return root


def _add_descriptors(parent: RuleNode, written: Any, where: str, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ConfigurationError("descriptors", f"are nested more than {MAX_DEPTH} deep")
    for index, member in enumerate(_list(written, where)):
        place = f"{where}[{index}]"
        _check_members(member, DESCRIPTOR_MEMBERS, f"{place}.")
        key = _text(member.get("key"), f"{place}.key")
        if not key:
            raise ConfigurationError(f"{place}.key", "is missing; every descriptor needs one")
        value = _text(member.get("value"), f"{place}.value")
        name = f"{key}_{value}" if value else key
        if name in parent.children:
            raise ConfigurationError(
                place, f"{name!r} stands here twice, or in another file; give each key and value one descriptor"
            )
        shares = _flag(member, "share_threshold", place)
        if shares and ANY not in name:
            raise ConfigurationError(f"{place}.share_threshold", "needs a value with a wildcard (*)")
        node = RuleNode(
            f"{parent.path}.{name}",
            _limit(member, place),
            value_to_metric=_flag(member, "value_to_metric", place),
            shared=name if shares else None,
        )
        _add_descriptors(node, member.get("descriptors"), f"{place}.descriptors", depth + 1)
        parent.add(name, node)


def _limit(descriptor: Mapping[str, Any], place: str) -> RateLimit | None:
    shadow, quota, detailed_metric = (
        _flag(descriptor, name, place) for name in ("shadow_mode", "quota_mode", "detailed_metric")
    )
    written = descriptor.get("rate_limit")
    if written is None:
        return None
    place = f"{place}.rate_limit"
    _check_members(written, LIMIT_MEMBERS, f"{place}.")
    unlimited = _flag(written, "unlimited", place)
    unit = _unit(_text(written.get("unit"), f"{place}.unit"), f"{place}.unit", unlimited)
    name = _text(written.get("name"), f"{place}.name")
    replaces = []
    for index, member in enumerate(_list(written.get("replaces"), f"{place}.replaces")):
        _check_members(member, ("name",), f"{place}.replaces[{index}].")
        other = _text(member.get("name"), f"{place}.replaces[{index}].name")
        if not other or other == name:
            raise ConfigurationError(f"{place}.replaces[{index}].name", "must be the name of another limit")
        replaces.append(other)
    requests = _number(written.get("requests_per_unit"), f"{place}.requests_per_unit")
    return RateLimit(requests, unit, unlimited, shadow, quota, name, tuple(replaces), detailed_metric)


def _unit(text: str, where: str, unlimited: bool) -> Unit | None:
    try:
        unit = Unit(text.lower())
    except ValueError:
        if unlimited:
            return None
        raise ConfigurationError(where, f"{text!r} is none of {', '.join(Unit)}") from None
    if unlimited:
        raise ConfigurationError(where, "must not be given when unlimited is true")
    return unit


def _document(text: str) -> Mapping[str, Any]:
    with needed("PACELINE_ENVOY_CONFIG", "grpc"):
        import yaml

    class TextLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Leaves scalars as they are written: a value of `1.10` or `on` is text, as Envoy sends it."""

        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":merge", ":null"))]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        document = yaml.load(text, TextLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigurationError("YAML", f"can't be read: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping):
        raise ConfigurationError("domain", "is missing; write a mapping with domain and descriptors")
    return document


def _check_members(value: Any, known: tuple[str, ...], prefix: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationError(prefix.rstrip(".") or "document", "must be a mapping")
    for name in value:
        if name not in known:
            raise ConfigurationError(f"{prefix}{name}", f"is not known here; known are {', '.join(known)}")


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigurationError(where, "must be a list")
    return value


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigurationError(where, "must be text")
    return value


def _flag(member: Mapping[str, Any], name: str, place: str) -> bool:
    text = _text(member.get(name), f"{place}.{name}").lower()
    if text not in YES | NO:
        raise ConfigurationError(f"{place}.{name}", "must be true or false")
    return text in YES


def _number(value: Any, where: str) -> int:
    text = _text(value, where) or "0"
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > MAX_REQUESTS:
        raise ConfigurationError(where, f"{text[:40]!r} is not a whole number from 0 to {MAX_REQUESTS}")
    return int(text)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # Hidden names: the folders by which Kubernetes swaps a ConfigMap, and editors' temporary files.
    names = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))
    if not names:
        raise ConfigurationError(str(path), f"has no file that ends with {' or '.join(SUFFIXES)}")
    return names


def _marks(file: Path) -> tuple[str, int, int, int]:
    status = file.stat()
    # The inode too: an editor that replaces the file may keep time and size.
    return str(file), status.st_mtime_ns, status.st_size, status.st_ino


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(str(path), f"can't be read: {error.strerror or error}")
