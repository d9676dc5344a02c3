"""What each defense leaves of each leak family and what it costs (docs/defenses_measured.md), one plan a family.

    FEDSPILL_DATA=... python benchmarks/frontier.py inputs groups membership attributes --workers 2 --out audits

Each plan of benchmarks/frontier/ is an audit; the same command continues where it stopped. A setting closes a leak when
the attacker who knows it stays below a tenth of the way from chance to a perfect guess (at the cautious end of the 95 %
interval) and at most 2 points of accuracy are lost. Accuracies have Student's interval over seeds, each seed's loss
being held against the same seed without a defense.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedspill.audit.defense_frontier import GOOD_ENOUGH, MOST_LOST
from fedspill.audit.jobs import RecordJob
from fedspill.audit.outcomes import RecordOutcome
from fedspill.audit.result_from_store import StoredAudit
from fedspill.audit.run_audit import run_audit
from fedspill.audit.store import Store
from fedspill.audit.target import AS_DEPLOYED, DefenseSetting
from fedspill.deployment.plan import read_plan
from fedspill.intervals import mean_interval

PLANS = Path(__file__).with_name("frontier")
HEAD = "| setting | accuracy | change | s/round | attack | score | chance | n | advantage | told | closes |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=sorted(path.stem for path in PLANS.glob("*.toml")))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, help="another first seed than the plan's")
    parser.add_argument("--out", type=Path, default=Path("frontier-audits"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for family in asked.families:
        plan = read_plan(PLANS / f"{family}.toml").model_copy(update={"workers": asked.workers})
        if asked.seed is not None:
            plan = plan.model_copy(update={"seed": asked.seed})
        folder = asked.out / f"{family}-{plan.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        run_audit(plan, folder, data_dir=asked.data_dir)
        result = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        print("\n".join(table(family, result, StoredAudit(Store(folder, create=False), folder))), flush=True)


def table(family: str, result: dict[str, Any], audit: StoredAudit) -> list[str]:
    """Markdown: the deployment as it is, then every setting, for each attack that was tried on."""
    lines = [
        f"### {family}: {result['deployment']}; seeds {', '.join(map(str, audit.seeds))}",
        "",
        HEAD,
        "|---" * 11 + "|",
    ]
    for finding in result["findings"]:
        if finding["status"] != "ok":
            lines.append(f"| as deployed | | | | {finding['id']} | {finding['status']}: {finding['why']} |")
            continue
        lines.append(line(audit, AS_DEPLOYED, finding["id"], finding))
        for point in (finding["defenses"] or {"tried": []})["tried"]:
            setting = DefenseSetting(point["defense"], tuple(sorted(point["options"].items())))
            lines.append(line(audit, setting, finding["id"], point))
    return [*lines, ""]


def line(audit: StoredAudit, setting: DefenseSetting, attack: str, point: dict[str, Any]) -> str:
    """One setting and one attack."""
    before, after = accuracies(audit, AS_DEPLOYED), accuracies(audit, setting)
    change = [100 * (a - b) for a, b in zip(after, before, strict=True)]
    parts = [
        setting.label,
        interval([100 * a for a in after]),
        interval(change) if setting.defense else "",
        seconds(audit, setting),
    ]
    if point["status"] != "ok":
        return f"| {' | '.join([*parts, attack, point['status'] + ': ' + point['why']])} |"
    score = point["score"]
    found = f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]"
    closes = point["advantage"] < GOOD_ENOUGH and sum(change) / len(change) >= -100 * MOST_LOST
    told = "" if not setting.defense else "yes" if point["adaptive"] else "no"
    parts += [attack, found, f"{score['chance']:.3f}", str(score["n"]), f"{point['advantage']:.3f}", told]
    return f"| {' | '.join([*parts, ('yes' if closes else 'no') if setting.defense else ''])} |"


def accuracies(audit: StoredAudit, setting: DefenseSetting) -> list[float]:
    """Of every seed."""
    return [outcome.right / outcome.tested for outcome in _records(audit, setting)]


def seconds(audit: StoredAudit, setting: DefenseSetting) -> str:
    found = [outcome.seconds_per_round for outcome in _records(audit, setting)]
    return f"{sum(found) / len(found):.3f}"


def interval(values: Sequence[float]) -> str:
    low, high = mean_interval(torch.tensor(values))
    return f"{sum(values) / len(values):.1f} [{low:.1f}, {high:.1f}]"


def _records(audit: StoredAudit, setting: DefenseSetting) -> list[RecordOutcome]:
    known = Store(audit.target.folder, create=False).results()
    found = [known[RecordJob(setting, seed).key(audit.target.code)].outcome for seed in audit.seeds]
    return [outcome for outcome in found if isinstance(outcome, RecordOutcome)]


if __name__ == "__main__":
    main()
