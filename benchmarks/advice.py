"""Whether advice holds: the combination that the default audit advises, deployed and audited anew on other seeds.

    python benchmarks/advice.py FOLDER [--seeds 101 102 103] [--workers 2]

FOLDER holds an audit of the default plan, or gets one. Every row of its second table, "after", is held against the row
of the new audit: kept is a severity at most one level higher, and an accuracy within two points.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedspill import AuditResult, run_audit
from fedspill.audit.result import LeakRow
from fedspill.deployment.plan import Choice, default_plan

POINTS = 0.02


def level(row: LeakRow | None) -> int:
    """0 where nothing was found."""
    return int(row.severity) if row is not None and row.severity is not None and row.state == "found" else 0


def held(promised: AuditResult, anew: AuditResult) -> bool:
    """Prints each row, promised and measured."""
    assert promised.after is not None
    rows = {row.leak: row for row in anew.leaks}
    kept = True
    for row in promised.after.leaks:
        before, after = level(row), level(rows.get(row.leak))
        kept &= after <= before + 1
        print(f"  {row.title:44} promised {before} measured {after}{'' if after <= before + 1 else '  BROKEN'}")
    told, measured = promised.after.advice.accuracy, anew.accuracy
    assert told is not None
    assert told.value is not None
    assert measured is not None
    assert measured.value is not None
    print(f"  accuracy promised {told.value:.4f} measured {measured.value:.4f}")
    return kept and measured.value >= told.value - POINTS


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    options.add_argument("--workers", type=int, default=2)
    asked = options.parse_args()
    plan = default_plan().model_copy(update={"workers": asked.workers})
    promised = run_audit(plan, asked.folder)
    if promised.after is None:
        print("nothing is advised")
        return
    advised = promised.after.advice.defenses
    print("advised:", ", ".join(defense.setting for defense in advised))
    defenses = tuple(Choice(name=defense.name, **defense.options) for defense in advised)
    kept = 0
    for seed in asked.seeds:
        again = plan.model_copy(update={"seed": seed, "defenses": defenses, "candidates": ()})
        print(f"seed {seed}")
        kept += held(promised, run_audit(again, asked.folder.with_name(f"{asked.folder.name}-{seed}")))
    print(f"kept on {kept} of {len(asked.seeds)} seeds")


if __name__ == "__main__":
    main()
