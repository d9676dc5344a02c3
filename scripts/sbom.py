"""Software bill of materials (CycloneDX 1.6): fedspill and all that it needs to run, as installed where this is run.

    python scripts/sbom.py sbom.cdx.json

`make dist` calls it with the environment that the tests run in; hatch_build.py puts the file into the wheel. It holds
no time and no random number, so that the same environment gives the same file.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = "fedspill"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_by(found: Distribution) -> list[str]:
    """Names of what a distribution needs here, without extras."""
    wanted = [Requirement(line) for line in found.requires or []]
    return sorted({canonical(one.name) for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})})


def closure(name: str) -> dict[str, tuple[Distribution, list[str]]]:
    """By name: each distribution that is needed, and what it needs itself."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        try:
            installed = distribution(one)
        except PackageNotFoundError:
            sys.exit(f"{one} is needed and not installed; install fedspill here first.")
        found[one] = (installed, needed_by(installed))
        waiting += found[one][1]
    return found


def reference(found: Distribution) -> str:
    # A local part of a version (2.13.0+cpu) says which build; its plus sign is written as purl wants it.
    return f"pkg:pypi/{canonical(found.name)}@{found.version.replace('+', '%2B')}"


def component(found: Distribution, kind: str = "library") -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": kind,
        "bom-ref": reference(found),
        "name": found.name,
        "version": found.version,
        "purl": reference(found),
    }
    license_ = found.metadata.get("License-Expression")
    if license_:
        made["licenses"] = [{"expression": license_}]
    return made


def bill(name: str = ROOT) -> dict[str, Any]:
    """The whole document."""
    found = dict(sorted(closure(name).items()))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(found[name][0], "application")},
        "components": [component(one) for key, (one, _) in found.items() if key != name],
        "dependencies": [
            {"ref": reference(one), "dependsOn": [reference(found[key][0]) for key in needs]}
            for one, needs in found.values()
        ],
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=2) + "\n", encoding="utf-8")
