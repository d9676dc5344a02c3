"""Everything but fedspill.flower and fedspill.nvflare works without Flower and NVFlare."""

from __future__ import annotations

import subprocess
import sys

NO_FLOWER = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flwr", "ray", "nvflare"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Refuse())
import fedspill
found = [module.name for module in pkgutil.walk_packages(fedspill.__path__, "fedspill.")]
names = [name for name in found if not name.startswith(("fedspill.flower", "fedspill.nvflare"))]
for name in names:
    if name != "fedspill.__main__":
        importlib.import_module(name)
assert len(names) > 50, names
assert "flwr" not in sys.modules
try:
    import fedspill.flower
except ImportError as error:
    assert "pip install 'fedspill[flower]'" in str(error), error
else:
    raise AssertionError
try:
    import fedspill.nvflare
except ImportError as error:
    assert "pip install 'fedspill[nvflare]'" in str(error), error
else:
    raise AssertionError
from fedspill.audit.engines import federation_of
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import UsageError
made = Deployment.of(check_plan({"federation": {"engine": "flower"}}, "test"))
try:
    federation_of(made)
except UsageError as error:
    assert "pip install 'fedspill[flower]'" in str(error), error
else:
    raise AssertionError
"""


def test_no_module_outside_flower_needs_it_and_a_plan_that_does_says_how_to_install_it() -> None:
    done = subprocess.run([sys.executable, "-c", NO_FLOWER], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
