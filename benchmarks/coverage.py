# ruff: noqa: E501 - tables
"""How often 95 % intervals hold what they speak of: in synthetic regimes, and over real federations.

    python benchmarks/coverage.py synthetic [RUNS]     clusters that fail rarely, skewed distances, curves
    python benchmarks/coverage.py real [GROUPS]        draws/*.jsonl by draws.py: 1, 3 and 5 federations, against the mean of all
    python benchmarks/coverage.py clients [GROUPS]     some clients of a federation against all of its clients
    python benchmarks/coverage.py compare [PAIRS]      two audits of one plan: changes and other severities
    python benchmarks/coverage.py changes [PAIRS]      the first of these alone, with more pairs
    python benchmarks/coverage.py power [PAIRS]        how often compare finds a difference that is there
    python benchmarks/coverage.py chance               chance with and without hindsight

Nothing here runs a federation; draws.py does. Every figure depends on the seeds of the draws and on SEED alone.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedspill import chance, curve_intervals, differences, rate_intervals
from fedspill import intervals as iv
from fedspill.audit.severity import Levels, levels_of
from fedspill.metric import Score

SEED = 20261116
FOLDER = Path(__file__).parent / "draws"
MAX_FPR = 0.25


# Synthetic regimes


@dataclass(frozen=True)
class Regime:
    """Draws the means of m clusters (m,); `true` is the mean over all clusters."""

    name: str
    scale: iv.Scale
    true: float
    draw: Callable[[np.random.Generator, int], np.ndarray]


def regimes() -> list[Regime]:
    found = []
    for q in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3):
        fails = lambda g, m, q=q: (g.random(m) >= q) * 1.0  # noqa: E731
        found.append(Regime(f"whole clusters fail, {q:.0%}", iv.SHARE, 1 - q, fails))
    for q in (0.02, 0.1):
        succeeds = lambda g, m, q=q: (g.random(m) < q) * 1.0  # noqa: E731
        found.append(Regime(f"whole clusters succeed, {q:.0%}", iv.SHARE, q, succeeds))
    for mu, icc in ((0.5, 0.02), (0.8, 0.02), (0.8, 0.2), (0.95, 0.05), (0.95, 0.3)):
        a = 1 / icc - 1
        found.append(
            Regime(
                f"beta, mean {mu}, icc {icc}",
                iv.SHARE,
                mu,
                lambda g, m, mu=mu, a=a: g.binomial(32, g.beta(mu * a, (1 - mu) * a, m)) / 32,
            )
        )
    for q in (0.02, 0.05, 0.1, 0.2):
        found.append(
            Regime(
                f"0.83 +- 0.06, {q:.0%} of clusters 0",
                iv.SHARE,
                0.83 * (1 - q),
                lambda g, m, q=q: np.where(g.random(m) < q, 0.0, np.clip(g.normal(0.83, 0.06, m), 0, 1)),
            )
        )
    big = np.random.default_rng(1)
    for mu, s in ((0.1, 0.5), (0.1, 1.0), (0.3, 0.8)):

        def logn(g: np.random.Generator, m: int, mu: float = mu, s: float = s) -> np.ndarray:
            return np.minimum(mu * np.exp(g.normal(0, s, m) - s * s / 2), 2)

        found.append(
            Regime(
                f"L1 log-normal, {mu}, sigma {s}", iv.composition_scale(0.8), float(logn(big, 2_000_000).mean()), logn
            )
        )
    for q in (0.02, 0.05, 0.1):
        found.append(
            Regime(
                f"L1 gamma 0.08, {q:.0%} at 0.9",
                iv.composition_scale(0.8),
                0.08 * (1 - q) + 0.9 * q,
                lambda g, m, q=q: np.where(g.random(m) < q, 0.9, g.gamma(4, 0.02, m)),
            )
        )
    found.append(Regime("rank correlation 0.8, skewed", iv.CORRELATION, 0.8, lambda g, m: 2 * g.beta(9, 1, m) - 1))
    return found


def synthetic(runs: int) -> None:
    sizes = (2, 4, 7, 8, 12, 20, 30, 100)
    print(f"interval_over_clusters, {runs} runs each, seed {SEED}: coverage (median width) coverage of Student's")
    print("| regime | " + " | ".join(f"m = {m}" for m in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    worst = 1.0
    for regime in regimes():
        cells = []
        for m in sizes:
            rng = np.random.default_rng([SEED, m])
            hits, old, widths = 0, 0, []
            for _ in range(runs):
                x = torch.from_numpy(np.asarray(regime.draw(rng, m), dtype=np.float64))
                got = iv.interval_over_clusters(x, regime.scale)
                hits += got.low - 1e-9 <= regime.true <= got.high + 1e-9
                widths.append(got.high - got.low)
                half = iv.student_factor(m - 1, 0.95) * float(x.std()) / math.sqrt(m)
                old += abs(float(x.mean()) - regime.true) <= half + 1e-12
            worst = min(worst, hits / runs)
            cells.append(f"{hits / runs:.3f} ({np.median(widths):.2f}) {old / runs:.2f}")
        print(f"| {regime.name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nleast coverage: {worst:.3f}")
    _synthetic_curves(min(runs, 400))


def _synthetic_curves(runs: int) -> None:
    """Normal scores, members shifted; clients shifted too, so that members of one client are alike."""
    print(f"\ncurves, {runs} runs: clients m, members 8 each, 32 non-members; true value by 400,000 targets")
    print("| shift | between clients | m | area | area to FPR 0.25 | TPR at FPR 0.1 |\n|---|---|---|---|---|---|")
    for shift, between in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (2.5, 0.5), (6.0, 0.0)):
        big = np.random.default_rng(2)
        n = 400_000
        pos = np.sort(big.normal(shift, math.hypot(1, between), n))
        neg = np.sort(big.normal(0, 1, n))
        u = 1 - np.searchsorted(neg, pos) / n
        full = float(np.mean(1 - u))
        part = 0.5 * (1 + (np.mean(np.maximum(0.25 - u, 0)) - 0.25**2 / 2) / (0.25 - 0.25**2 / 2))
        rate = float(np.mean(pos > neg[int(0.9 * n)]))
        for m in (4, 12):
            rng = np.random.default_rng([SEED, m])
            hits = np.zeros(3)
            widths: list[list[float]] = [[], [], []]
            for _ in range(runs):
                own = rng.normal(shift, 1, (m, 8)) + between * rng.normal(0, 1, (m, 1))
                scores = torch.from_numpy(np.concatenate([own.ravel(), rng.normal(0, 1, 32)]))
                positive = torch.arange(len(scores)) < 8 * m
                holders = torch.cat([torch.arange(m).repeat_interleave(8), torch.full((32,), -1)])
                one = [curve_intervals.Ranking(positive, scores, curve_intervals.own_clusters(holders))]
                for i, (got, true) in enumerate(
                    (
                        (curve_intervals.measure_area(one), full),
                        (curve_intervals.measure_area(one, 0.25), part),
                        (curve_intervals.measure_tpr(one, 0.1), rate),
                    )
                ):
                    span = got.interval()
                    hits[i] += span.low <= true <= span.high
                    widths[i].append(span.high - span.low)
            cells = [f"{h / runs:.3f} ({np.median(w):.2f})" for h, w in zip(hits, widths, strict=True)]
            print(f"| {shift} | {between} | {m} | " + " | ".join(cells) + " |", flush=True)


# Real federations


@dataclass(frozen=True)
class Finding:
    """All draws of one attack on one plan: the value of each federation, and the measurement of any group of them."""

    plan: str
    attack: str
    metric: str
    values: np.ndarray  # (draws,)
    chance: np.ndarray  # (draws,) without hindsight
    clusters: float  # per federation, on average
    perfect: float
    measured: Callable[[list[int]], iv.OverFederations]  # of a group of draws


def findings() -> Iterator[Finding]:
    for file in sorted(FOLDER.glob("*.jsonl")):
        if file.stem.endswith("48"):
            continue
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for attack in lines[0]["attacks"]:
            drawn = [line["attacks"][attack] for line in lines if "values" in line["attacks"][attack]]
            if drawn:
                yield from _finding(file.stem, attack, drawn)


def _finding(plan: str, attack: str, drawn: list[dict]) -> Iterator[Finding]:
    metric = drawn[0]["metric"]
    if metric in ("membership-auc", "attribute-auc"):
        rankings = [_ranking(one, metric) for one in drawn]
        for name, value, make in (
            (
                metric,
                lambda r: curve_intervals.roc_area(r, MAX_FPR),
                lambda rs: curve_intervals.measure_area(rs, MAX_FPR),
            ),
            (metric.replace("auc", "auc, whole curve"), curve_intervals.roc_area, curve_intervals.measure_area),
            (
                metric.replace("auc", "tpr at 0.1"),
                lambda r: curve_intervals.tpr_at_fpr(r, 0.1),
                lambda rs: curve_intervals.measure_tpr(rs, 0.1),
            ),
        ):
            values = np.array([value(r) for r in rankings])
            base = 0.1 if "tpr" in name else 0.5
            yield _of(
                plan, attack, name, values, np.full(len(values), base), _clients_of(rankings), rankings, make, 1.0
            )
    elif metric == "presence-balanced-accuracy":
        answers = [a for a in map(_answers, drawn) if a.both]
        values = np.array([a.balanced for a in answers])
        count = float(np.mean([len(a.clusters.unique()) for a in answers]))
        yield _of(
            plan,
            attack,
            metric,
            values,
            np.full(len(values), 0.5),
            count,
            answers,
            rate_intervals.measure_balanced,
            1.0,
        )
    else:
        samples = [_sample(one) for one in drawn]
        chance = np.array([_chance(one) for one in drawn])
        level = float(chance.mean())
        scale = iv.composition_scale(level) if metric == "composition-l1" else iv.SHARE
        values = np.array([s.mean for s in samples])
        count = float(np.mean([len(s.clusters.unique()) for s in samples]))
        within = iv.ROUNDS if metric.startswith("quantity") else iv.CLIENTS
        make = lambda group: iv.measure_mean(group, scale, within=within)  # noqa: E731
        yield _of(plan, attack, metric, values, chance, count, samples, make, scale.perfect)


def _of(plan, attack, metric, values, chance, count, items, make, perfect) -> Finding:
    def measured(group: list[int]) -> iv.OverFederations:
        return make([items[i] for i in group])

    return Finding(plan, attack.split("/")[0], metric, values, chance, count, perfect, measured)


def _number(sender: str, number: int) -> int:
    return int(sender.split(":")[1]) if sender.startswith("client:") else number


def _sample(one: dict) -> iv.Sample:
    """Clients are clusters; for sums of a round, rounds are. Distances come averaged by client already."""
    values = torch.tensor(one["values"], dtype=torch.float64)
    if one["metric"] == "composition-l1":
        return iv.Sample(values, torch.arange(len(values)))
    of = one["of"]
    if "answered" in one and len(values) != len(of):
        of = [o for o, yes in zip(of, one["answered"], strict=True) if yes]
    return iv.Sample(values, torch.tensor([_number(sender, number) for number, sender in of]))


def _chance(one: dict) -> float:
    """Without hindsight where the draw says enough for it, else as it was measured."""
    if "counts" not in one:
        return float(np.mean(one["chance"]))
    counts = torch.tensor(one["counts"])
    clusters = torch.tensor([_number(sender, number) for number, sender in one["of"]])
    if one["metric"] == "label-asr":
        return float(chance.label_chance(counts, clusters).mean())
    return float(chance.composition_chance(counts.double() / counts.sum(1, keepdim=True), clusters).mean())


def _ranking(one: dict, metric: str) -> curve_intervals.Ranking:
    holders, member = torch.tensor(one["holder"]), torch.tensor(one["member"]) > 0
    scores = torch.tensor(one["scores"], dtype=torch.float64)
    if metric == "membership-auc":
        return curve_intervals.Ranking(member, scores, curve_intervals.own_clusters(holders))
    return curve_intervals.Ranking(
        torch.tensor(one["value"])[member] > 0, scores[member], curve_intervals.own_clusters(holders[member])
    )


def _clients_of(rankings: list[curve_intervals.Ranking]) -> float:
    return float(np.mean([len(r.clusters[r.positive].unique()) for r in rankings]))


def _answers(one: dict) -> rate_intervals.Answers:
    right, there = torch.tensor(one["right"]) > 0, torch.tensor(one["there"]) > 0
    rounds = torch.arange(len(right))[:, None].expand_as(right)
    return rate_intervals.Answers(right.flatten(), there.flatten(), rounds.flatten())


def _groups(draws: int, size: int, count: int, rng: np.random.Generator) -> list[list[int]]:
    """Groups of different federations: all that do not overlap, and again in other orders until there are enough."""
    found: list[list[int]] = []
    while len(found) < count:
        order = rng.permutation(draws)
        found += [order[i : i + size].tolist() for i in range(0, draws - size + 1, size)]
    return found[:count]


def real(count: int) -> None:
    print(f"real federations, {count} groups each, seed {SEED}: coverage of the mean over all draws (mean width)")
    print("k = 1 speaks of other clients or rounds of its federation; the mean over federations is a harder target.")
    print(
        "| plan | attack | metric | draws | clusters | mean | sd of federations | k = 1 | k = 3 | k = 5 | Student, k = 3 |"
    )
    print("|---" * 11 + "|")
    for finding in findings():
        cells = []
        target, draws = float(finding.values.mean()), len(finding.values)
        for k in (1, 3, 5):
            rng = np.random.default_rng([SEED, k])
            got = [finding.measured(g).interval() for g in _groups(draws, k, count, rng)]
            held = np.mean([i.low - 1e-9 <= target <= i.high + 1e-9 for i in got])
            cells.append(f"{held:.3f} ({np.mean([i.high - i.low for i in got]):.3f})")
        rng = np.random.default_rng([SEED, 3])
        plain = [finding.values[g] for g in _groups(draws, 3, count, rng)]
        held = np.mean(
            [abs(v.mean() - target) <= iv.student_factor(2, 0.95) * v.std(ddof=1) / math.sqrt(3) + 1e-12 for v in plain]
        )
        print(
            f"| {finding.plan} | {finding.attack} | {finding.metric} | {draws} | {finding.clusters:.1f} | {target:.4f} "
            f"| {finding.values.std(ddof=1):.4f} | " + " | ".join(cells) + f" | {held:.3f} |",
            flush=True,
        )


def clients(count: int) -> None:
    """Some clients of a federation, drawn with replacement, against the mean over all 48: the stated population."""
    print(
        f"one federation of 48 clients, m of them drawn with replacement, {count} groups over all draws, seed {SEED}:"
    )
    print("coverage of the mean over all clients of that federation (mean width); Student cut to the scale beside it")
    print("| plan | attack | metric | draws | m = 4 | m = 8 | m = 20 |\n|---|---|---|---|---|---|---|")
    for file in sorted(FOLDER.glob("*48.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for attack in lines[0]["attacks"]:
            drawn = [line["attacks"][attack] for line in lines if "values" in line["attacks"][attack]]
            if not drawn:
                continue
            samples = [_sample(one) for one in drawn]
            level = float(np.mean([_chance(one) for one in drawn]))
            scale = iv.composition_scale(level) if drawn[0]["metric"] == "composition-l1" else iv.SHARE
            means = [iv.cluster_means(s.values, s.clusters)[0] for s in samples]
            cells = []
            for m in (4, 8, 20):
                rng = np.random.default_rng([SEED, m])
                held, old, widths = 0, 0, []
                for turn in range(count):
                    every = means[turn % len(means)]
                    x = every[torch.from_numpy(rng.integers(len(every), size=m))]
                    true, got = float(every.mean()), iv.interval_over_clusters(x, scale)
                    held += got.low - 1e-9 <= true <= got.high + 1e-9
                    widths.append(got.high - got.low)
                    old += (
                        abs(float(x.mean()) - true)
                        <= iv.student_factor(m - 1, 0.95) * float(x.std()) / math.sqrt(m) + 1e-12
                    )
                cells.append(f"{held / count:.3f} ({np.mean(widths):.3f}); {old / count:.3f}")
            print(
                f"| {file.stem} | {attack.split('/')[0]} | {drawn[0]['metric']} | {len(drawn)} | "
                + " | ".join(cells)
                + " |",
                flush=True,
            )


# Two audits of one plan


def compare(count: int) -> None:
    print(f"two audits of one plan, {count} pairs of groups that share no federation, seed {SEED}")
    print(
        "change: p <= 0.05. Other severity: by the cautious end as in 0.1; by the value; as compare says it (and real)."
    )
    print(
        "| plan | attack | metric | k | change | cautious end | by value | said | undecided |\n|---|---|---|---|---|---|---|---|---|"
    )
    totals: dict[int, list[np.ndarray]] = {1: [], 3: [], 5: []}
    for finding in findings():
        if "whole curve" in finding.metric:
            continue  # the same scores as those of the restricted area
        for k in totals:
            rng = np.random.default_rng([SEED, k, 7])
            groups = _groups(len(finding.values), 2 * k, count, rng)
            tally = np.zeros(5)
            for group in groups:
                sides = [group[:k], group[k:]]
                measured = [finding.measured(g) for g in sides]
                between = differences.difference(*measured)
                first, second = (_verdict(finding, g, m) for g, m in zip(sides, measured, strict=True))
                tally += [
                    between.p <= 0.05,
                    first.least != second.least,
                    first.level != second.level,
                    first.changed_to(second, between),
                    (first.undecided + second.undecided) / 2,
                ]
            totals[k].append(tally / len(groups))
            cells = " | ".join(f"{t:.3f}" for t in tally / len(groups))
            print(f"| {finding.plan} | {finding.attack} | {finding.metric} | {k} | {cells} |", flush=True)
    for k, rows in totals.items():
        print(f"| all, mean | | | {k} | " + " | ".join(f"{t:.3f}" for t in np.mean(rows, 0)) + " |")
        print(f"| all, most | | | {k} | " + " | ".join(f"{t:.3f}" for t in np.max(rows, 0)) + " |")


def changes(count: int) -> None:
    """The rate of false changes alone, with many more pairs: with three federations or more it needs no clients."""
    print(f"two audits of one plan, {count} pairs each, seed {SEED}: p <= 0.05")
    print("| plan | attack | metric | draws | k = 3 | k = 5 |\n|---|---|---|---|---|---|")
    for finding in findings():
        # Where no federation differs from another, the clients decide; here they are taken to say nothing.
        least, most = float(finding.values.min()) - 1, float(finding.values.max()) + 1
        open_wide = iv.Interval(least, most, iv.CLIENTS, 1)
        cells = []
        for k in (3, 5):
            rng = np.random.default_rng([SEED, k, 9])
            found = 0
            for group in _groups(len(finding.values), 2 * k, count, rng):
                sides = [tuple(finding.values[g].tolist()) for g in (group[:k], group[k:])]
                found += (
                    differences.difference(*(iv.OverFederations(v, open_wide, (least, most)) for v in sides)).p <= 0.05
                )
            cells.append(f"{found / count:.3f}")
        print(f"| {finding.plan} | {finding.attack} | {finding.metric} | {len(finding.values)} | {' | '.join(cells)} |")


def _verdict(finding: Finding, group: list[int], measured: iv.OverFederations) -> Levels:
    level, interval = float(finding.chance[group].mean()), measured.interval()
    return levels_of(Score(measured.mean, interval.low, interval.high, len(group), level), finding.perfect)


def power(count: int) -> None:
    """How often a difference is found that is there: one attack before, a better one after, on other federations."""
    print(f"{count} pairs: how often a real difference is found at p <= 0.05")
    print(
        "| plan | before | after | difference, in sd of federations | k = 1 | k = 3 | k = 5 | k = 10 |\n|---|---|---|---|---|---|---|---|"
    )
    every = list(findings())
    for before in every:
        for after in every:
            same = before.plan == after.plan and before.metric == after.metric
            apart = abs(after.values.mean() - before.values.mean()) / max(before.values.std(), 1e-9)
            if not same or before.attack <= after.attack or apart > 10:
                continue
            cells = []
            for k in (1, 3, 5, 10):
                rng = np.random.default_rng([SEED, k, 8])
                pairs = _groups(len(before.values), 2 * k, count, rng)
                found = sum(
                    differences.difference(before.measured(g[:k]), after.measured(g[k:])).p <= 0.05 for g in pairs
                )
                cells.append(f"{found / count:.2f}")
            print(
                f"| {before.plan} | {before.attack} | {after.attack} | {apart:.1f} | " + " | ".join(cells) + " |",
                flush=True,
            )


def chance_table() -> None:
    print("| plan | attack | metric | draws | with hindsight, as measured | without |\n|---|---|---|---|---|---|")
    for file in sorted(FOLDER.glob("*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for attack in lines[0]["attacks"]:
            drawn = [line["attacks"][attack] for line in lines if "counts" in line["attacks"].get(attack, {})]
            if drawn:
                old, new = (np.array(x) for x in zip(*((np.mean(o["chance"]), _chance(o)) for o in drawn), strict=True))
                print(
                    f"| {file.stem} | {attack} | {drawn[0]['metric']} | {len(drawn)} | {old.mean():.3f} (sd {old.std():.3f}, "
                    f"max {old.max():.2f}) | {new.mean():.3f} (sd {new.std():.3f}, max {new.max():.2f}) |"
                )


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    {
        "synthetic": lambda: synthetic(number or 1000),
        "real": lambda: real(number or 400),
        "clients": lambda: clients(number or 1200),
        "compare": lambda: compare(number or 300),
        "changes": lambda: changes(number or 2000),
        "power": lambda: power(number or 200),
        "chance": chance_table,
    }[what]()
