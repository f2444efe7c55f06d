"""Runs mutmut on the modules that decide, or on those that are named, and compares survivors with `survivors.toml`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = "src/paceline/"
ACCEPTED = Path(__file__).parent / "survivors.toml"
MUTMUT = str(Path(sys.executable).with_name("mutmut"))
FUNCTION = re.compile(r"^(?P<module>[\w.]+)\.x(?:ǁ(?P<type>\w+)ǁ|_)(?P<name>\w+)__mutmut_\d+$")
NOTICED = {"killed", "timeout"}


class Mutant(NamedTuple):
    """A change of one place: the lines before and after it, each as one text."""

    module: str
    function: str
    before: str
    after: str


def configured() -> list[str]:
    """The modules that are mutated, by their paths below `src/paceline`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mutmut"]
    return [path.removeprefix(SOURCE) for path in settings["only_mutate"]]


def dotted(module: str) -> str:
    return f"paceline.{module.removesuffix('.py').replace('/', '.')}"


def accepted(modules: list[str]) -> set[Mutant]:
    """The accepted survivors of these modules."""
    entries = tomllib.loads(ACCEPTED.read_text("utf-8")).get("accepted", [])
    for entry in entries:
        assert entry.keys() == {*Mutant._fields, "why"}, f"{ACCEPTED.name}: {entry}"
    mutants = [Mutant(*(entry[field] for field in Mutant._fields)) for entry in entries]
    return {mutant for mutant in mutants if mutant.module in modules}


def mutmut(*arguments: str) -> str:
    return subprocess.run([MUTMUT, *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def statuses(modules: list[str]) -> dict[str, str]:
    """What became of each mutant, by its name."""
    lines = re.findall(r"^ +(\S+): (.+)$", mutmut("results", "--all", "true"), re.MULTILINE)
    names = {dotted(module) for module in modules}
    return {name: status for name, status in lines if module_of(name) in names}


def module_of(name: str) -> str:
    match = FUNCTION.match(name)
    assert match is not None, name
    return match["module"]


def mutant(name: str) -> Mutant:
    """What mutmut changed, without the number, which another change of the function would shift."""
    match = FUNCTION.match(name)
    assert match is not None, name
    diff = mutmut("show", name).splitlines()
    before, after = (
        " ".join(line[1:].strip() for line in diff if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in "-+"
    )
    function = f"{match['type']}.{match['name']}" if match["type"] else match["name"]
    return Mutant(match["module"].removeprefix("paceline.").replace(".", "/") + ".py", function, before, after)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("modules", nargs="*", metavar="module", help="such as limits/chain.py; all if none is named")
    modules = parser.parse_args().modules or configured()
    if unknown := set(modules) - set(configured()):
        parser.error(f"{', '.join(sorted(unknown))}: not in [tool.mutmut] of pyproject.toml")
    # What an earlier run knew of tests and results may no longer hold.
    shutil.rmtree(ROOT / "mutants", ignore_errors=True)
    patterns = [f"{dotted(module)}.*" for module in modules]
    children = str(os.cpu_count() or 1)
    log = ROOT / "build/mutation.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as output:
        subprocess.run(
            [MUTMUT, "run", "--max-children", children, *patterns], cwd=ROOT, check=True, stdout=output, stderr=output
        )
    found = statuses(modules)
    survivors = {mutant(name): status for name, status in found.items() if status not in NOTICED}
    known = accepted(modules)
    for module in modules:
        counts = Counter(status for name, status in found.items() if module_of(name) == dotted(module))
        kept = sum(survivor.module == module for survivor in survivors.keys() & known)
        noticed = sum(counts[status] for status in NOTICED)
        print(f"{module}: {counts.total()} mutants, {noticed} noticed, {kept} accepted")
    fresh, gone = survivors.keys() - known, known - survivors.keys()
    for survivor in sorted(fresh):
        print(f"\n{survivor.module}: {survivor.function} ({survivors[survivor]})")
        print(f"- {survivor.before}\n+ {survivor.after}")
    for former in sorted(gone):
        print(f"\n{former.module}: {former.function} (no longer survives: remove it from {ACCEPTED.name})")
        print(f"- {former.before}\n+ {former.after}")
    sys.exit(bool(fresh or gone))


if __name__ == "__main__":
    main()
