"""Large models and many clients: minutes, peak memory and disk of audits that nobody would run on a laptop otherwise.

    python benchmarks/large_models.py vit gpt many --limit-gb 24
    python benchmarks/large_models.py vit224 gpt --clients 4 --rounds 1 --limit-minutes 6 --device cuda

vit   ViT-B/16, 86 million parameters, on pictures of 32 pixels: messages as with 224, a fortieth of the arithmetic
vit224  the same on made-up pictures of 224 pixels, for `--device cuda`: on one core it would take an hour
gpt   a decoder of GPT-2's shape, 124 million parameters, on generated sentences
many  10,000 clients x 20 rounds of an MLP, all clients in every round; of the first and the last the last layer is kept

Each audit is the command `fedspill audit`. Memory is that of the whole process tree, as `limits.memory_mb` counts it:
what the processes hold for themselves, without pages of files that the system can drop. A run that exceeds
--limit-gb or --limit-minutes is stopped. With `--device cuda` also the memory of the GPU. What `--dry-run` foretells
stands in brackets, over what was measured; below, what each unit took and found.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from measured import GpuWatch

from fedspill.audit.process_tree import end_tree, memory_of

_LABELS_MEMBERSHIP_COMPOSITION = """
adversaries = ["curious-server"]
attacks = ["labels", "membership", "decaf", "composition-by-counts"]
candidates = []

[federation]
clients = 10
rounds = 3

[membership]
members = 20
others = 20

[targets]
members = 0
others = 0

[limits]
seconds = 7200
memory_mb = 24000
"""

PLANS = {
    "vit": """
[data]
name = "cifar10"

[model]
name = "vit"
patch_size = 16
hidden = 768
layers = 12
heads = 12
mlp = 3072

[partition]
name = "main-labels"
low = 1
high = 3
per_label = 8
minor = 1
minor_samples = 2

[training]
lr = 0.01
batch_size = 8

[adversary_data]
per_class = 4
""",
    "gpt": """
[data]
name = "made-up-sentences"
sentences = 600

[model]
name = "gpt"
tokens = 50257
hidden = 768
layers = 12
heads = 12

[training]
lr = 0.01
batch_size = 8
steps = 2

[adversary_data]
per_class = 10
""",
}
PLANS["vit224"] = PLANS["vit"].replace('name = "cifar10"', 'name = "custom"\nfactory = "large_models:pictures"')
PLANS = {name: _LABELS_MEMBERSHIP_COMPOSITION + plan for name, plan in PLANS.items()}
PLANS["many"] = """
adversaries = ["curious-server"]
attacks = ["llbg", "ebi"]
candidates = []

[data]
name = "mnist"

[model]
name = "mlp"
widths = [64]

[partition]
name = "iid"

[federation]
clients = 10000
rounds = 20

[training]
lr = 0.1
batch_size = 4

[adversary_data]
per_class = 1

[membership]
members = 0
others = 0

[record]
leaks = ["labels"]
rounds = [0, 19]

[limits]
seconds = 7200
memory_mb = 24000
"""


@dataclass(frozen=True)
class Cost:
    """What an audit took."""

    name: str
    minutes: float
    peak_gb: float
    disk_gb: float
    gpu_gb: float
    stopped: bool
    foretold: dict[str, float]  # by `--dry-run`
    units: dict[str, float]  # seconds of the clock
    findings: dict[str, str]

    def words(self) -> str:
        told = self.foretold
        said = [
            f"{self.minutes:.1f} min ({told['minutes'] / self.minutes:.2f})",
            f"{self.peak_gb:.2f} GB ({told['memory_bytes'] / 1e9 / self.peak_gb:.2f})",
            f"{self.disk_gb:.2f} GB of disk ({told['disk_bytes'] / 1e9 / self.disk_gb:.2f})",
        ]
        if self.gpu_gb:
            said.append(f"{self.gpu_gb:.2f} GB of the GPU ({told['gpu_memory_bytes'] / 1e9 / self.gpu_gb:.2f})")
        return ", ".join([*said, "stopped at the limit" if self.stopped else "whole"])


def pictures(classes: int = 10, side: int = 224) -> tuple[torch.Tensor, ...]:
    """A pattern of eight by eight for each class, enlarged, and noise on it."""
    rng = torch.Generator().manual_seed(0)
    patterns = torch.nn.functional.interpolate(torch.rand(classes, 3, 8, 8, generator=rng), side)
    made = []
    for count in (400, 200):
        y = torch.arange(count) % classes
        made += [(patterns[y] + 0.2 * torch.randn(count, 3, side, side, generator=rng)).clamp(0, 1), y]
    return tuple(made)


def audit(name: str, folder: Path, limit_gb: float, limit_minutes: float, options: list[str]) -> Cost:
    plan, out, told = (folder / name for name in (f"{name}.toml", name, f"{name}.json"))
    plan.write_text(PLANS[name])
    importable = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": importable}
    command = [sys.executable, "-m", "fedspill", "audit", str(plan), *options]
    subprocess.run([*command, "--dry-run", "--json", str(told)], env=environment, check=True)
    foretold = {key: value for key, value in json.loads(told.read_text()).items() if isinstance(value, int | float)}
    print(f"{name}: foretold {foretold}", flush=True)
    began, peak, disk, stopped, gpu = time.perf_counter(), 0, 0, False, GpuWatch()
    command += ["--out", str(out)]
    with subprocess.Popen(command, start_new_session=True, env=environment) as process:
        looked = 0.0
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            if time.perf_counter() - looked > 5:
                looked, disk = time.perf_counter(), max(disk, _bytes_below(out))
            if peak > limit_gb * 1e9 or time.perf_counter() - began > 60 * limit_minutes:
                stopped = True
                end_tree(process.pid)
            time.sleep(0.2)
    minutes = (time.perf_counter() - began) / 60
    disk = max(disk, _bytes_below(out))
    found = _findings(out / "audit.json")
    taken = gpu.taken() / 1e9
    return Cost(name, minutes, peak / 1e9, disk / 1e9, taken, stopped, foretold, _units(out), found)


def _units(folder: Path) -> dict[str, float]:
    """Of each unit that ended, its seconds."""
    with closing(sqlite3.connect(folder / "audit.sqlite")) as database:
        rows = database.execute("SELECT kind, job, seconds FROM results ORDER BY seconds DESC").fetchall()
    return {
        f"{kind} {json.loads(job).get('pair', {}).get('attack', '')}".strip(): seconds for kind, job, seconds in rows
    }


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            total += path.stat().st_size if path.exists() else 0
    return total


def _findings(path: Path) -> dict[str, str]:
    """Of each finding its score, or why there is none."""
    if not path.is_file():
        return {}
    found = {}
    for finding in json.loads(path.read_text())["findings"]:
        score = finding.get("score") or {}
        value = score.get("value")
        said = f"{value:.3f}, chance {score['chance']:.3f}, n {score['n']}" if value is not None else finding.get("why")
        found[finding["id"]] = f"{finding['status']}: {said}; {'; '.join(finding.get('notes', [])[:4])}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(PLANS))
    parser.add_argument("--limit-gb", type=float, default=24.0)
    parser.add_argument("--limit-minutes", type=float, default=math.inf)
    parser.add_argument("--clients", type=int, help="fewer than in the plan")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--keep", type=Path, help="folder for plans and audits; else they are removed")
    parser.add_argument("--json", type=Path)
    given, options = parser.parse_known_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="fedspill-large-"))
    folder.mkdir(parents=True, exist_ok=True)
    costs = []
    try:
        for name in given.names:
            for what in ("clients", "rounds"):
                if asked := getattr(given, what):
                    PLANS[name] = re.sub(rf"^{what} = \d+", f"{what} = {asked}", PLANS[name], flags=re.M)
            cost = audit(name, folder, given.limit_gb, given.limit_minutes, options)
            costs.append(cost)
            print(f"{name}: {cost.words()}", flush=True)
            print("    " + ", ".join(f"{unit} {seconds:.1f} s" for unit, seconds in cost.units.items()))
            for finding, said in cost.findings.items():
                print(f"    {finding}: {said}")
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
