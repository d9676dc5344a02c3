"""What the build adds to the wheel: the bill of materials, where `make dist` has written one."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SBOM = "sbom.cdx.json"


class BillOfMaterials(BuildHookInterface):
    """Puts sbom.cdx.json into .dist-info/sboms/, as PEP 770 has it; a build without the file goes on without."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        path = Path(self.root) / SBOM
        if path.is_file():
            build_data["sbom_files"].append(str(path))
