"""What `fedspill audit --dry-run` foretells, against what the audit then takes.

    python benchmarks/cost.py [plan.toml ...] [--device cuda]

By default the default plan and those of examples/plans. A row tells CPU seconds, peak
memory and disk of an audit by one worker, and in brackets what was foretold over what was measured; asked is a factor
of two. On a GPU also the seconds that units held it, and its memory.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from measured import figures, foretold_and_measured

PLANS = Path(__file__).parents[1] / "examples" / "plans"
USUAL = (Path("default"), *sorted(PLANS.glob("*.toml")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="*", type=Path, help='files, or "default"')
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    on_gpu = asked.device != "cpu"
    columns = ["plan", "CPU s", "peak memory, MB", "disk, MB", *(["GPU s", "its memory, MB"] if on_gpu else [])]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for plan in asked.plans or USUAL:
        with tempfile.TemporaryDirectory() as folder:
            named = None if plan.name == "default" else plan
            row = figures(*foretold_and_measured(named, Path(folder), options=["--device", asked.device]))
        print(f"| {plan.stem} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
