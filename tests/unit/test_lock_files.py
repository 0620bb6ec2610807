"""Lock files have exact versions with hashes, and can be installed from any registry."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_packages_that_check_scripts_are_locked_by_their_hashes() -> None:
    wanted = json.loads((ROOT / "package.json").read_text())
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]

    for name, version in wanted["devDependencies"].items():
        assert locked[f"node_modules/{name}"]["version"] == version
    packages = {name: package for name, package in locked.items() if name}
    assert [name for name, package in packages.items() if "integrity" not in package] == []
    # No address of a registry is locked.
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_nothing_that_checks_scripts_is_served() -> None:
    assert "dependencies" not in json.loads((ROOT / "package.json").read_text())
