"""What `fedspill audit --dry-run` foretells, against what the audit then takes.

    python benchmarks/cost.py [plan.toml ...]

By default the default plan and three of examples/plans. A row tells CPU seconds, peak memory and disk of an audit by
one worker, and in brackets what was foretold over what was measured; asked is a factor of two.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measured import figures, foretold_and_measured

PLANS = Path(__file__).parents[1] / "examples" / "plans"
USUAL = [None, *(PLANS / f"{name}.toml" for name in ("people", "single-gradients", "bank_and_shop"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", nargs="*", type=Path)
    print("| plan | CPU s | peak memory, MB | disk, MB |\n|---|---|---|---|")
    for plan in parser.parse_args().plans or USUAL:
        with tempfile.TemporaryDirectory() as folder:
            row = figures(*foretold_and_measured(plan, Path(folder)))
        print(f"| {plan.stem if plan else 'default'} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
