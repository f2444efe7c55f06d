"""Mutation tests of the modules that decide: `make mutation`, or `make mutation MODULE=limits/chain.py`.

mutmut changes one place of a module at a time, such as `>` to `>=`, and runs the tests that reach it; a mutant that no
test notices survives. `[tool.mutmut]` in `pyproject.toml` names the modules and the tests, `survivors.toml` the
survivors that are accepted, each with its reason. A new one fails the run, and so does an entry whose
mutant is gone.
"""
