"""Published attacks on vertical federations at their papers' settings, as far as the data and the towers are here.

    python benchmarks/vertical_papers.py li     # lengths and directions of gradients, two uneven classes
    python benchmarks/vertical_papers.py fu     # completion, breast cancer Wisconsin, as in the authors' code
    python benchmarks/vertical_papers.py luo    # equality solving and generative regression, probabilities alone
    python benchmarks/vertical_papers.py fsha --device cuda   # MNIST, networks, rates and rounds of the authors' code
    python benchmarks/vertical_papers.py unsplit --device cuda --turns 1000  # MNIST, cut behind layers 1, 2, 3 and 5

Figures are means over federations (--seeds, from --first on) with Student's 95 % half-width. FEDSPILL_DATA names the
data folder. One thread.
"""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from vertical import Cell, Figures, federate, load, seeds, value

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Dataset, Examples
from fedspill.federation.hijack import PILOT_RATE
from fedspill.federation.local import accuracy
from fedspill.federation.private_towers import PrivateTowers, PrivateTowerSettings
from fedspill.leaks.features.guess import FeatureRows
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.models.split_lenet import SplitLeNet
from fedspill.models.split_resnet import SplitResNet
from fedspill.models.vertical import Columns, Tower, VerticalNet, vertical_net
from fedspill.registry import make
from fedspill.threat import ACTIVE_PARTY, CURIOUS_PARTY, MALICIOUS_PARTY
from fedspill.training import LocalTraining


def li(args: argparse.Namespace) -> None:
    """Split learning: one party has all features, the other the labels. ROC area by epoch."""
    for share in (0.24, 0.05):
        found = Figures()
        for seed in seeds(args):
            model = {"parties": 1, "widths": [64, 16], "head_widths": [64]}
            cell = federate(args, _thinned(load("adult"), share, seed), seed, model, epochs=20)
            known = cell.known(1)
            found.add("test accuracy", accuracy(cell.federation.model, cell.dataset.test))
            found.add("share of the rarer class", float(known["class_prior"].min()))
            for epoch in (0, 1, 4, 19):
                for attack in ("gradient-norm", "gradient-direction"):
                    outcome = cell.run(attack, CURIOUS_PARTY, known, cell.epochs(epoch, epoch), use=0)
                    found.add(f"{attack}, epoch {epoch}, AUC", value(outcome, "sample-label-auc"))
        found.show(f"Li et al., Adult, {share:.0%} of the rarer class, n = {args.samples}")


def _thinned(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The same with so many of the second class left out that its share is `share`."""
    rng = torch.Generator().manual_seed(seed)
    kept = []
    for part in (dataset.train, dataset.test):
        ones, others = (part.y == 1).nonzero().flatten(), (part.y != 1).nonzero().flatten()
        wanted = min(len(ones), round(share / (1 - share) * len(others)))
        kept.append(part.take(torch.cat([others, ones[torch.randperm(len(ones), generator=rng)[:wanted]]])))
    return dataclasses.replace(dataset, train=kept[0], test=kept[1])


def fu(args: argparse.Namespace) -> None:
    """Two parties with 14 columns each, batches of 16, 30 epochs, 20 known labels."""
    found = Figures()
    training = LocalTraining(optimizer="sgd", lr=0.01, momentum=0.9, batch_size=16)
    args = argparse.Namespace(**{**vars(args), "batch": 16, "samples": 426})
    for seed in seeds(args):
        bare = federate(args, _wisconsin(seed), seed, partial(_wisconsin_net, seed, norms=False), epochs=30,
                        training=training)  # fmt: skip
        found.add("cone, 2 labels, a head without batch norms", value(bare.run("cone", CURIOUS_PARTY, bare.known(1))))
        model = partial(_wisconsin_net, seed)
        for attack, threat in (("model-completion", CURIOUS_PARTY), ("active-completion", MALICIOUS_PARTY)):
            malicious = attack == "active-completion"
            cell = federate(args, _wisconsin(seed), seed, model, epochs=30, training=training, malicious=malicious)
            known = cell.known(10)
            found.add(f"test accuracy, {attack}", accuracy(cell.federation.model, cell.dataset.test))
            found.add(f"{attack}, 20 labels", value(cell.run(attack, threat, known)))
            found.add(f"cone, 2 labels, {attack}'s federation", value(cell.run("cone", CURIOUS_PARTY, cell.known(1))))
        found.add("commonest class", float(known["class_prior"].max()))
    found.show("Fu et al., breast cancer Wisconsin, n = 406")


def _wisconsin_net(seed: int, *, norms: bool = True) -> VerticalNet:
    """The networks of the authors' code: towers that end linear in two outputs, batch norms between all layers.

    Without `norms` there are none in the head.
    """

    def tower() -> Tower:
        inner = [nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 2)]
        return Tower(nn.Flatten(), nn.Linear(14, 20), nn.Sequential(*inner))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second = (nn.BatchNorm1d(4) if norms else nn.Identity() for _ in range(2))
        neck = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 4), second, nn.ReLU())
        net = VerticalNet(Columns([range(14), range(14, 28)]), [(14,), (14,)], [tower(), tower()], nn.Linear(4, 2),
                          neck=neck, double_softmax=False)  # fmt: skip
        for layer in net.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
    return net


def _wisconsin(seed: int) -> Dataset:
    """569 people, three quarters to train; the columns that the authors' code takes, in its order."""
    table = load_breast_cancer()
    order = [1, *range(4, 30), 0]  # without the mean perimeter and the mean area; the mean radius last
    x, y = torch.tensor(table.data[:, order]), torch.tensor(1 - table.target)  # 1: malignant
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, test = mixed[:426], mixed[426:]
    x = ((x - x[train].mean(0)) / x[train].std(0)).float()
    parts = [Examples(x[part], y[part]) for part in (train, test)]
    return Dataset("breast cancer Wisconsin", ("benign", "malignant"), parts[0], parts[1])


def luo(args: argparse.Namespace) -> None:
    """Logistic regression; mean square error of features scaled to 0 to 1, beside the paper's two ways of guessing."""
    for data, unknowns in (("adult", (1, 2, 10, 40)), ("location30", (29, 90))):
        dataset = load(data)
        for unknown in unknowns:
            found = Figures()
            for seed in seeds(args):
                cell = _regression(args, dataset, unknown, seed)
                known = cell.known(1)
                errors: dict[str, float] = {}
                for attack in ("equality-solving", "generative-regression"):
                    outcome = cell.run(attack, ACTIVE_PARTY, known)
                    if outcome is not None:
                        errors |= _errors(outcome, cell, attack)
                        found.add(f"{attack}, whole rows", value(outcome, "feature-rows"))
                for name, error in errors.items():
                    found.add(f"{name}, error", error)
            classes = len(dataset.classes)
            found.show(f"Luo et al., {data}, {classes} classes, {unknown} unknown, {args.rows} predictions")


def _regression(args: argparse.Namespace, dataset: Dataset, unknown: int, seed: int) -> Cell:
    columns = dataset.train.x[0].numel()
    lively = dataset.train.x.flatten(1).std(0) > 0.05
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
    asked = order[lively[order]][:unknown].tolist()
    others = [column for column in range(columns) if column not in set(asked)]
    model = {"widths": [len(dataset.classes)], "top": "sum", "columns": [asked, others]}
    return federate(args, dataset, seed, model, epochs=20, predictions=args.rows, hand_over=True, secure_sum=True)


def _errors(outcome: Outcome, cell: Cell, attack: str) -> dict[str, float]:
    """Mean square errors per feature; guessing draws evenly from 0 to 1, or from a normal distribution about 1/2."""
    guess = outcome.guess
    assert isinstance(guess, FeatureRows)
    truth = cell.truth()
    columns = torch.tensor(guess.columns)
    real = torch.cat([
        truth.get(origin, "inputs").flatten(1).double()[places][:, columns]
        for origin, places in zip(guess.of, guess.places, strict=True)
    ])  # fmt: skip
    low, high = cell.known(1)["feature_ranges"].double()
    span = (high - low).clamp_min(1e-12)
    scaled, said = (real - low) / span, (torch.cat(list(guess.rows)).double() - low) / span
    rng = torch.Generator().manual_seed(0)
    even = torch.rand(scaled.shape, generator=rng, dtype=torch.float64)
    normal = 0.5 + 0.25 * torch.randn(scaled.shape, generator=rng, dtype=torch.float64)

    def error(guessed: Tensor) -> float:
        return float((guessed - scaled).square().mean())

    return {
        attack: error(said),
        "guessing evenly": error(even),
        "guessing about 1/2": error(normal),
        "the columns' means": error(scaled.mean(0).expand_as(scaled)),
    }


def fsha(args: argparse.Namespace) -> None:
    """MNIST in 32 x 32 and three colours, the test set public; mean square errors of pixels from -1 to 1 by round."""
    dataset = load("mnist")
    found = Figures()
    for seed in seeds(args):
        rng = torch.Generator().manual_seed(seed)
        own = torch.randperm(len(dataset.train), generator=rng)[: args.samples]
        stock, public = _coloured(dataset.train.take(own)), _coloured(dataset.test).x
        net = vertical_net(SplitResNet(level=4).build((3, 32, 32), 10, seed=seed))
        training = LocalTraining(optimizer="adam", lr=PILOT_RATE, batch_size=64)
        settings = PrivateTowerSettings(rounds=args.rounds, training=training)
        made = PrivateTowers(net, stock, settings, seed, device=args.device, hijacked_with=public)
        assert made.hijack is not None
        for number, batch in enumerate(made.batches):
            made.round(number)
            if (number + 1) % 500 == 0:
                real = 2 * made.examples.x[batch.to(args.device)].flatten(1) - 1
                with torch.no_grad():
                    sent = made.model.net.towers[0](real.unflatten(1, (3, 32, 32)) / 2 + 0.5)
                error = float((made.hijack.read_back(sent) - real).square().mean())
                found.add(f"fsha, round {number + 1}, error", error)
                print(f"    seed {seed}, round {number + 1}: error {error:.4f}", flush=True)
        found.add("the mean image, error", float((2 * (made.examples.x - made.examples.x.mean(0))).square().mean()))
    found.show(f"Pasquini et al., MNIST, {args.samples} private images")


def _coloured(examples: Examples) -> Examples:
    """Images of 28 x 28 in one colour as 32 x 32 in three."""
    larger = nn.functional.interpolate(examples.x, size=(32, 32), mode="bilinear", align_corners=False)
    return Examples(larger.expand(-1, 3, -1, -1).contiguous(), examples.y)


def unsplit(args: argparse.Namespace) -> None:
    """MNIST, ten images at a time; mean square errors of pixels from 0 to 1, and how many are recognised."""
    dataset = load("mnist")
    for cut in (1, 2, 3, 5):
        found = Figures()
        for seed in seeds(args):
            spec = SplitLeNet(cut=cut)

            def build(seed: int = seed, spec: SplitLeNet = spec) -> VerticalNet:
                return vertical_net(spec.build(dataset.shape, 10, seed=seed))

            cell = federate(args, dataset, seed, build, epochs=10, predictions=10)
            attack = make("attacks", "unsplit", {"turns": args.turns, "most": 10})
            outcome = run_attack(attack, cell.trace, ACTIVE_PARTY, knowledge=cell.known(1), seed=seed,
                                 truth=cell.truth(), device=args.device)  # fmt: skip
            guess = outcome.guess
            assert isinstance(guess, RebuiltImages)
            real = cell.truth().get(guess.of[0], "inputs").flatten(1)
            found.add("unsplit, error", float((guess.images[0] - real).square().mean()))
            found.add("the mean image, error", float((real - real.mean(0)).square().mean()))
            for metric in ("images-recognised", "images-r2"):
                found.add(metric, value(outcome, metric))
            found.add("test accuracy", accuracy(cell.federation.model, cell.dataset.test))
        found.show(f"Erdogan et al., MNIST, cut behind layer {cut}, {args.turns} turns, 10 images")


PAPERS = {"li": li, "fu": fu, "luo": luo, "fsha": fsha, "unsplit": unsplit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=9400)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10_000, help="of fsha")
    parser.add_argument("--turns", type=int, default=200, help="of unsplit")
    parser.add_argument("--device", default="cpu", help="of fsha and unsplit")
    args = parser.parse_args()
    PAPERS[args.paper](args)


if __name__ == "__main__":
    main()
