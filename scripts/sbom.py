"""Writes the bill of materials of paceline with all extras, as CycloneDX JSON: `python scripts/sbom.py sbom.json`.

It has every package that `paceline[all]` needs, in the version that is installed here and with its licence, and says
which needs which. With the same versions it is the same document.
"""

from __future__ import annotations

import sys
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT, EXTRA = "paceline", "all"
FIELDS = ("License-Expression", "License", "Summary")


def needed(package: Distribution, extras: frozenset[str]) -> list[Requirement]:
    """What a package needs on this machine, with these extras of it."""
    requirements = [Requirement(text) for text in package.requires or []]
    environments = [{"extra": extra} for extra in (extras or {""})]
    return [
        requirement
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate(environment) for environment in environments)
    ]


def closure() -> dict[str, tuple[Distribution, set[str]]]:
    """Every package that is needed, by name, and the names of what it needs itself."""
    found: dict[str, tuple[Distribution, set[str]]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(ROOT, frozenset({EXTRA}))]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed; run: pip install 'paceline[{EXTRA}]'") from None
        _, uses = found.setdefault(name, (package, set()))
        for requirement in needed(package, extras):
            child = canonicalize_name(requirement.name)
            waiting.append((child, frozenset(requirement.extras)))
            if child != name:
                uses.add(child)
    return found


def component(package: Distribution, name: str) -> Component:
    """A package as the bill names it."""
    licences = LicenseFactory()
    metadata = {name: package.metadata[name] for name in FIELDS if name in package.metadata}
    written = metadata.get("License-Expression") or metadata.get("License") or ""
    first = written.strip().partition("\n")[0][:100]
    return Component(
        name=name,
        version=package.version,
        type=ComponentType.APPLICATION if name == ROOT else ComponentType.LIBRARY,
        bom_ref=f"{name}=={package.version}",
        purl=PackageURL("pypi", None, name, package.version),
        description=metadata.get("Summary"),
        licenses=[licences.make_from_string(first)] if first else [],
        properties=[Property(name="paceline:extra", value=EXTRA)] if name == ROOT else [],
    )


def bill() -> str:
    """The document."""
    packages = closure()
    components = {name: component(package, name) for name, (package, _) in sorted(packages.items())}
    document = Bom(components=[each for name, each in components.items() if name != ROOT])
    document.metadata.component = components[ROOT]
    for name, (_, uses) in sorted(packages.items()):
        document.register_dependency(components[name], [components[used] for used in sorted(uses)])
    versions = "\n".join(f"{name}=={component.version}" for name, component in components.items())
    document.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, versions)
    return JsonV1Dot6(document).output_as_string(indent=2)


if __name__ == "__main__":
    text = bill()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(f"{text}\n")
    else:
        sys.stdout.write(f"{text}\n")
