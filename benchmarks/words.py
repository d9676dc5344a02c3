"""Tables of the leak `words`: tokens, ROUGE, exact texts and false certificates on fresh batches of Rotten Tomatoes.

    python benchmarks/words.py decoder --layers 12 --hidden 768 --heads 12 --batches 1,4,16,32 --n 20 --device cuda
    python benchmarks/words.py encoder --layers 2 --hidden 256 --heads 4 --batches 1,2,4,8 --trained 100
    python benchmarks/words.py decoder --lora-rank 64 --batches 1,2
    python benchmarks/words.py fedavg | lora | lora-gradients | rows | defenses | row-defenses | matched | members

Every row: n batches, means, the worst exact share, how many texts were certified and how many of those are wrong (it
must be 0), and processor seconds of one batch. Batches are drawn by seed, and no constant was chosen on these seeds.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedspill.attack_run import run_attack
from fedspill.dataset import Dataset, Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import FedspillError
from fedspill.federation.local import accuracy, train
from fedspill.leaks.words.dager import Dager
from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.encoder_texts import Marks
from fedspill.leaks.words.exact.recover import RecoveredText, recover_text
from fedspill.leaks.words.exact.row_space import whitened
from fedspill.leaks.words.true_text import mean_rouge, share_exact, spoken
from fedspill.models.text_transformer import TextTransformer
from fedspill.registry import make
from fedspill.threat import ADVERSARIES
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import LocalTraining, batch_loss, gradient

FIRST = "h.0.attn.c_attn"
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass
class Row:
    """The sums of one cell of a table."""

    values: list[tuple[float, ...]] = field(default_factory=list)
    certified: int = 0
    false: int = 0

    def add(self, found: RecoveredText, real: list[list[int]], dataset: Dataset, seconds: float) -> None:
        vocabulary = dataset.train.vocabulary
        assert vocabulary is not None
        silent = vocabulary.marks | {vocabulary.padding}
        guessed = [spoken(one, silent) for one in found.sequences]
        tokens, truth = set(found.tokens.tolist()) - silent, {token for one in real for token in one}
        hits = len(tokens & truth)
        words = [[vocabulary.text(one).lower().split() for one in part] for part in (guessed, real)]
        left = list(map(tuple, real))
        for one, sure in zip(map(tuple, guessed), found.certified, strict=True):
            self.certified += sure
            self.false += sure and one not in left
            if one in left:
                left.remove(one)
        exact = share_exact(guessed, real)
        rouges = (mean_rouge(words[0], words[1], size) for size in (1, 2))
        self.values.append((hits / max(1, len(tokens)), hits / len(truth), *rouges, exact, seconds))
        prefixes = len({tuple(one[:end]) for one in real for end in range(1, len(one) + 1)})
        line = [len(real), sum(map(len, real)), prefixes, *(round(value, 3) for value in self.values[-1])]
        print(*line, sum(found.certified), found.why[:60], sep="\t", file=sys.stderr, flush=True)

    def show(self, label: str) -> None:
        mean = torch.tensor(self.values).mean(0).tolist()
        worst = min(value[4] for value in self.values)
        slowest = max(value[5] for value in self.values)
        precision, recall, one, two, exact, _ = mean
        print(
            f"| {label} | {len(self.values)} | {precision:.3f} | {recall:.3f} | {one:.3f} | {two:.3f} | {exact:.3f} | "
            f"{worst:.2f} | {self.certified} | {self.false} | {mean[5]:.1f} ({slowest:.1f}) |",
            flush=True,
        )


@contextmanager
def shown(label: str) -> Iterator[Row]:
    """A row that is printed at its end, also where the time is up before."""
    row = Row()
    try:
        yield row
    finally:
        if row.values:
            row.show(label)


def header(what: str) -> None:
    names = "n | precision | recall | ROUGE-1 | ROUGE-2 | exact | worst exact | certified | false | s (most)"
    print(f"\n| {what} | {names} |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)


def sentences(args: argparse.Namespace, *, marked: bool) -> Dataset:
    options = {"marked": marked, "length": args.length + 2 * marked}
    if args.data == "made-up-sentences":
        return make("datasets", args.data, {"marked": marked, "sentences": 4000}).load()  # type: ignore[no-any-return]
    return make("datasets", args.data, options).load(args.data_dir)  # type: ignore[no-any-return]


def network(args: argparse.Namespace, dataset: Dataset, *, causal: bool, **options: Any) -> TextTransformer:
    sizes = {
        "layers": args.layers,
        "hidden": args.hidden,
        "heads": args.heads,
        "freeze_embeddings": not args.embeddings,
    }
    spec = make("models", "gpt" if causal else "bert", {**sizes, **options}).fitted_to(dataset)
    net = spec.build(dataset.shape, len(dataset.classes), seed=args.seed).to(args.device)
    assert isinstance(net, TextTransformer)
    if args.trained:
        rng = torch.Generator().manual_seed(args.seed)
        every = [parameter for parameter in net.parameters()]
        frozen = [parameter for parameter in every if not parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        optimizer = torch.optim.Adam(every, lr=args.trained_lr)
        for _ in range(args.trained):
            drawn = torch.randint(len(dataset.train), (16,), generator=rng)
            optimizer.zero_grad()
            batch_loss(net, dataset.train.take(drawn).to(args.device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for parameter in frozen:
            parameter.requires_grad_(False)
        drawn = torch.randperm(len(dataset.test), generator=rng)[:400]  # the first ones are nearly all of one class
        held = dataset.test.take(drawn).to(args.device)
        print(
            f"trained {args.trained} steps: {accuracy(net, held):.2f} right on {len(held)} held-out texts", flush=True
        )
    return net.eval()


def draw(dataset: Dataset, size: int, number: int, first: int) -> Examples:
    """A batch of test texts, cut to its longest."""
    rng = torch.Generator().manual_seed(first + 1000 * size + number)
    batch = dataset.test.take(torch.randperm(len(dataset.test), generator=rng)[:size])
    assert batch.vocabulary is not None
    longest = int((batch.x != batch.vocabulary.padding).sum(1).max())
    return Examples(batch.x[:, :longest], batch.y, vocabulary=batch.vocabulary)


def texts_of(batch: Examples) -> list[list[int]]:
    assert batch.vocabulary is not None
    silent = batch.vocabulary.marks | {batch.vocabulary.padding}
    return [spoken(row, silent) for row in batch.x.tolist()]


def message(net: TextTransformer, batch: Examples, device: str, change: Change = dict) -> AttackedText:
    sent = change(gradient(net, batch.to(device)))
    return AttackedText(Origin(0, "client:0"), net, sent, len(batch), 1, None, True, True, 0.0)


def noised(sigma: float, seed: int) -> Change:
    """Normal noise of that size on every number."""
    rng = torch.Generator().manual_seed(seed)
    if not sigma:
        return dict
    return lambda sent: {n: t + sigma * torch.randn(t.shape, generator=rng).to(t) for n, t in sent.items()}


def now(args: argparse.Namespace) -> float:
    """Seconds of the processor, or of the clock where a GPU computes."""
    return time.process_time() if args.device == "cpu" else time.perf_counter()


def recover(attacked: AttackedText, marks: Marks, seed: int, method: str = "words") -> RecoveredText:
    rng = torch.Generator().manual_seed(seed)
    if method == "dager":
        return Dager().recover(attacked)
    first = attacked.rows_of(FIRST)
    return recover_text(attacked, [] if first is None else [first], marks, rng)


def transformer_table(args: argparse.Namespace, *, causal: bool) -> None:
    dataset = sentences(args, marked=not causal)
    net = network(args, dataset, causal=causal, lora_rank=args.lora_rank)
    marks = Marks.seen_in(dataset.train.x[:100], net.wte.padding_idx)
    kind = "decoder" if causal else "encoder"
    weights = f"trained {args.trained}" if args.trained else "random"
    weights += f", LoRA r = {args.lora_rank}" if args.lora_rank else ""
    weights += f", noise {args.noise:g}" if args.noise else ""
    header(f"{args.method}, {kind} {args.layers} x {args.hidden}, {weights}, B (tokens)")
    for size in args.batches:
        drawn = [draw(dataset, size, number, args.first) for number in range(args.n)]
        tokens = sum(len(text) for batch in drawn for text in texts_of(batch))
        with shown(f"{size} ({tokens // args.n})") as row:
            for number, batch in enumerate(drawn):
                attacked = message(net, batch, args.device, noised(args.noise, number))
                begin = now(args)
                found = recover(attacked, marks, number, args.method)
                row.add(found, texts_of(batch), dataset, now(args) - begin)


def fedavg_table(args: argparse.Namespace) -> None:
    """Local steps of plain SGD: on the whole batch, or on parts of it."""
    dataset = sentences(args, marked=False)
    net = network(args, dataset, causal=True)
    header(f"decoder {args.layers} x {args.hidden}, B, local steps, learning rate")
    for many, steps, lr in product(args.batches, args.steps, args.lrs):
        size = min(args.step_size or many, many)
        with shown(f"{many}, {steps} of {size}, {lr:g}") as row:
            for number in range(args.n):
                batch = draw(dataset, many, number, args.first).to(args.device)
                training = LocalTraining(lr=lr, batch_size=size, steps=steps)
                attacked = stepped(net, batch, training, number)
                begin = now(args)
                found = recover(attacked, Marks(), number)
                row.add(found, texts_of(batch), dataset, now(args) - begin)


def stepped(net: TextTransformer, batch: Examples, training: LocalTraining, seed: int) -> AttackedText:
    """What a client sends who trains so on these texts; the network is as it was behind it."""
    start = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
    sent = train(net, start, batch, training, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(start[name])
    net.eval()
    steps, whole = training.schedule(len(batch)).steps, training.batch_size >= len(batch)
    moved = {n: -sent[n] / (training.lr * steps) for n, p in net.named_parameters() if p.requires_grad}
    sizes = [sum(float(t[n].double().square().sum()) for n in moved) ** 0.5 for t in (start, sent)]
    rounding = 2.0**-24 * sizes[0] / sizes[1]
    return AttackedText(Origin(0, "c"), net, moved, len(batch), steps, training.lr, whole, True, rounding)


def lora_table(args: argparse.Namespace) -> None:
    """Adapters on the first layer of every block; rounds on the same data, weights moving between them."""
    dataset = sentences(args, marked=False)
    header(f"decoder {args.layers} x {args.hidden} with LoRA, B = {args.batches[0]}, rank, rounds")
    for rank in args.ranks:
        net = network(args, dataset, causal=True, lora_rank=rank)
        for rounds in args.rounds:
            with shown(f"r = {rank}, {rounds}") as row:
                for number in range(args.n):
                    batch = draw(dataset, args.batches[0], number, args.first).to(args.device)
                    start = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
                    stacked: list[Tensor] = []
                    training = LocalTraining(lr=args.lora_lr, batch_size=len(batch), epochs=args.epochs)
                    state = start
                    for turn in range(rounds):
                        sent = train(net, state, batch, training, torch.Generator().manual_seed(turn))
                        stacked.append(sent[f"{FIRST}.lora_A.default.weight"])
                        state = {name: tensor + sent.get(name, 0) for name, tensor in state.items()}
                    with torch.no_grad():
                        for name, parameter in net.named_parameters():
                            parameter.copy_(start[name])
                    net.eval()
                    attacked = AttackedText(Origin(0, "c"), net, {}, len(batch), 1, 1.0, False, False, 0.0)
                    begin = now(args)
                    worth = args.epochs**0.5  # stacked are changes of weights, not gradients
                    name = f"{FIRST}.lora_A.default.weight"
                    moved = [whitened(part, net.get_parameter(name), worth) for part in stacked if bool(part.any())]
                    found = recover_text(attacked, moved, Marks(), torch.Generator().manual_seed(number))
                    row.add(found, texts_of(batch), dataset, now(args) - begin)


def lora_gradients_table(args: argparse.Namespace) -> None:
    """Adapters whose gradients are sent: a client with the same texts in every round, among others who move the model.

    Its texts are read behind so many rounds, all of them together.
    """
    dataset = sentences(args, marked=False)
    many = args.batches[0]
    header(f"decoder {args.layers} x {args.hidden} with LoRA, gradients, B = {many}, rank, rounds")
    for rank in args.ranks:
        rows = {rounds: Row() for rounds in args.rounds}
        for number in range(args.n):
            net = network(args, dataset, causal=True, lora_rank=rank)
            batch = draw(dataset, many, number, args.first)
            others = [draw(dataset, many, 1000 * (other + 1) + number, args.first) for other in range(args.others)]
            sent: list[AttackedText] = []
            for turn in range(max(args.rounds)):
                sent.append(message(net, batch, args.device))
                if turn + 1 in rows:
                    begin = now(args)
                    stacked = [part for one in sent if (part := one.rows_of(FIRST)) is not None and len(part)]
                    found = recover_text(sent[-1], stacked, Marks(), torch.Generator().manual_seed(number))
                    rows[turn + 1].add(found, texts_of(batch), dataset, now(args) - begin)
                all_sent = [sent[-1].gradients, *(gradient(net, other) for other in others)]
                with torch.no_grad():
                    for name in sent[-1].gradients:
                        mean = torch.stack([one[name] for one in all_sent]).mean(0)
                        net.get_parameter(name).sub_(mean, alpha=args.lora_lr)
        for rounds, row in rows.items():
            row.show(f"r = {rank}, {rounds}")


@dataclass
class Federation:
    """A federation that has run: what was recorded, and how well its model does."""

    deployment: Deployment
    trace: MemoryTrace
    accuracy: float

    @staticmethod
    def run(args: argparse.Namespace, plan: dict[str, Any]) -> Federation:
        deployment = Deployment.of(check_plan({"seed": args.seed, **plan}, "benchmark"), args.data_dir)
        trace = MemoryTrace(deployment.protocol(), deployment.keep())
        running = deployment.federation(trace, engine="loop")
        running.run()
        return Federation(deployment, trace, accuracy(running.model, deployment.dataset.test))

    def attacked_by(self, attack: str, threat: str, options: dict[str, Any] | None = None) -> tuple[Any, str]:
        """What an attack says of it, or why it says nothing."""
        truth = self.trace.truth().beside(self.deployment.shares.clients)
        try:
            made, known = make("attacks", attack, options or {}), self.deployment.knowledge()
            return run_attack(made, self.trace, ADVERSARIES[threat], knowledge=known, seed=1, truth=truth), ""
        except FedspillError as error:
            return None, str(error)


def rows_table(args: argparse.Namespace) -> None:
    """The rows of the embedding, over local training and adversaries."""
    print("\n| local training | who | n | precision | recall | by guessing |\n|---|---|---|---|---|---|")
    base = {
        "data": {"name": args.data, **({} if args.data == "made-up-sentences" else {"length": 40})},
        "model": {"name": "mean-embedding"},
        "partition": {"name": "uniform-batch", "batch": 16},
        "federation": {"clients": 40, "rounds": 2, "clients_per_round": 20},
    }
    trainings: dict[str, dict[str, Any]] = {
        "FedSGD": {"algorithm": "fedsgd", "batch_size": 16},
        "1 step": {"lr": 0.1, "batch_size": 16},
        "8 steps": {"lr": 0.1, "batch_size": 4, "epochs": 2},
        "80 steps": {"lr": 0.1, "batch_size": 4, "epochs": 20},
        "8 steps, momentum": {"lr": 0.1, "momentum": 0.9, "batch_size": 4, "epochs": 2},
        "8 steps, weight decay 0.01": {"lr": 0.1, "weight_decay": 0.01, "batch_size": 4, "epochs": 2},
        "8 steps of Adam": {"optimizer": "adam", "lr": 0.001, "batch_size": 4, "epochs": 2},
        "8 steps of Adam, decay 0.01": {
            "optimizer": "adam", "lr": 0.001, "weight_decay": 0.01, "batch_size": 4, "epochs": 2,
        },
    }  # fmt: skip
    for label, training in list(trainings.items())[args.skip :][: args.take]:
        for threat in ("curious-server", "eavesdropper", "curious-server-secagg"):
            plan = {**base, "training": training}
            if threat == "curious-server-secagg":  # sums of ten clients
                few = {
                    "clients": 200 if args.data != "made-up-sentences" else 40,
                    "rounds": 20,
                    "clients_per_round": 10,
                }
                plan["federation"] = few
            outcome, why = Federation.run(args, plan).attacked_by("embedding-rows", threat)
            print_scores(f"{label} | {threat}", outcome, why, ("token-precision", "token-recall"))


def print_scores(label: str, outcome: Any, why: str, names: Sequence[str]) -> None:
    if outcome is None or outcome.status != "ok":
        print(f"| {label} | skipped: {why or outcome.why} |", flush=True)
        return
    values = " | ".join(f"{outcome.scores[n].value:.3f}" if n in outcome.scores else "-" for n in names)
    first = outcome.scores[names[0]]
    print(f"| {label} | {first.n} | {values} | {first.chance:.3f} |", flush=True)


def row_defenses_table(args: argparse.Namespace) -> None:
    """What defenses leave of the rows of averaged embeddings, and what they cost: small enough for one core."""
    print("\n| defense | who | n | words found | precision | recall | by guessing | accuracy |")
    print("|---|---|---|---|---|---|---|---|")
    model, last = {"name": "mean-embedding", "width": 8}, args.federation_rounds - 1
    base: dict[str, Any] = {
        "data": {"name": args.data, **({} if args.data == "made-up-sentences" else {"length": 40})},
        "model": model,
        "partition": "iid",
        "federation": {"clients": 10, "rounds": args.federation_rounds},
        # A word moves in the updates of those who wrote it, and the mean is over all: it takes large steps to learn.
        "training": {"lr": 20.0, "batch_size": 16, "epochs": 5},
        "record": {"rounds": [last - 1, last]},
    }
    cases: dict[str, dict[str, Any]] = {
        "none": {},
        "embeddings frozen": {"model": {**model, "freeze_embeddings": True}},
        "batches of 64": {"training": {**base["training"], "batch_size": 64}},
        **{f"noise {sigma:g}": noise(sigma) for sigma in (1e-3, 1e-2, 1e-1, 1.0)},
        "top 10 %": {"defenses": [{"name": "compression", "drop": 0.9}]},
        "top 1 %": {"defenses": [{"name": "compression", "drop": 0.99}]},
        "top 0.1 %": {"defenses": [{"name": "compression", "drop": 0.999}]},
        "secure aggregation": {  # one sum a round
            "federation": {**base["federation"], "secure_aggregation": True},
            "record": {"rounds": None},
        },
    }
    for label, changes in list(cases.items())[args.skip :][: args.take]:
        threat = "curious-server-secagg" if label == "secure aggregation" else "curious-server"
        run = Federation.run(args, {**base, **changes})
        outcome, why = run.attacked_by("embedding-rows", threat)
        if outcome is None or outcome.status != "ok":
            print(
                f"| {label} | {threat} | skipped: {(why or outcome.why)[:60]} | | | | | {run.accuracy:.3f} |",
                flush=True,
            )
            continue
        names = ("words-found", "token-precision", "token-recall")
        values = " | ".join(f"{outcome.scores[name].value:.3f}" for name in names)
        first = outcome.scores["words-found"]
        print(f"| {label} | {threat} | {first.n} | {values} | {first.chance:.3f} | {run.accuracy:.3f} |", flush=True)


def noise(sigma: float) -> dict[str, Any]:
    return {"defenses": [{"name": "clip-noise", "clip": None, "sigma": sigma}]}


def trained_folder(args: argparse.Namespace, folder: Path) -> None:
    """Writes a decoder that has learnt the training texts centrally, as Hugging Face does: the head is left out."""
    dataset = sentences(args, marked=False)
    net = network(args, dataset, causal=True)
    turned = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    tensors = {name: t.T.contiguous() if name.endswith(turned) else t for name, t in net.state_dict().items()}
    save_file({name: tensor for name, tensor in tensors.items() if "head" not in name}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": args.heads}))


def defenses_table(args: argparse.Namespace) -> None:
    """What each defense leaves, and what it costs on the sentiment task, where a trained decoder is fine-tuned."""
    with TemporaryDirectory() as folder:
        trained_folder(args, Path(folder))
        _defenses_of(args, folder)


def _defenses_of(args: argparse.Namespace, folder: str) -> None:
    print("\n| defense | attack | n | words found | precision | recall | exact | by guessing | accuracy |")
    print("|---|---|---|---|---|---|---|---|---|")
    sizes = {"layers": args.layers, "hidden": args.hidden, "heads": args.heads}
    model, size = {"name": "gpt", "checkpoint": folder, **sizes}, args.batches[0]
    base: dict[str, Any] = {
        "data": {"name": args.data, **({} if args.data == "made-up-sentences" else {"length": args.length})},
        "model": model,
        "partition": "iid",
        "federation": {"clients": 12, "rounds": args.federation_rounds},
        "training": {"algorithm": "fedsgd", "lr": 0.02, "batch_size": size},
        "record": {"rounds": [args.federation_rounds - 2, args.federation_rounds - 1]},
    }
    frozen = {"model": {**model, "freeze_embeddings": True}}
    cases: dict[str, dict[str, Any]] = {
        "none": {},
        "embeddings frozen": frozen,
        "LoRA, r = 8": {"model": {**model, "lora_rank": 8}},
        f"batches of {4 * size}": {"training": {**base["training"], "batch_size": 4 * size}},
        "noise 1e-3": noise(1e-3),
        "noise 1e-2": noise(1e-2),
        "frozen, noise 1e-4": {**frozen, **noise(1e-4)},
        "frozen, noise 1e-3": {**frozen, **noise(1e-3)},
        "top 10 %": {"defenses": [{"name": "compression", "drop": 0.9}]},
        "secure aggregation": {"federation": {**base["federation"], "secure_aggregation": True}},
    }  # fmt: skip
    for label, changes in list(cases.items())[args.skip :][: args.take]:
        threat = "curious-server-secagg" if label == "secure aggregation" else "curious-server"
        run = Federation.run(args, {**base, **changes})
        right = run.accuracy
        for attack in ("embedding-rows", "words"):
            outcome, why = run.attacked_by(attack, threat, {"origins": args.n} if attack == "words" else None)
            names = ("words-found", "token-precision", "token-recall", "exact-sequences")
            if outcome is None or outcome.status != "ok":
                print(
                    f"| {label} | {attack} | skipped: {(why or outcome.why)[:90]} | | | | | | {right:.3f} |", flush=True
                )
                continue
            values = " | ".join(f"{outcome.scores[n].value:.3f}" if n in outcome.scores else "-" for n in names)
            first = outcome.scores["words-found"]
            print(f"| {label} | {attack} | {first.n} | {values} | {first.chance:.3f} | {right:.3f} |", flush=True)


def matched_table(args: argparse.Namespace) -> None:
    """TAG and LAMP on single sentences, with more steps than an audit takes, beside ours."""
    print("\n| attack, s a text | n | words found | ROUGE-1 | ROUGE-2 | exact | by guessing |")
    print("|---|---|---|---|---|---|---|")
    plan = {
        "data": {"name": args.data, **({} if args.data == "made-up-sentences" else {"length": args.length})},
        "model": {"name": "bert", "layers": args.layers, "hidden": args.hidden, "heads": args.heads},
        "partition": {"name": "uniform-batch", "batch": 1},
        "federation": {"clients": args.n, "rounds": 1},
        "training": {"algorithm": "fedsgd", "batch_size": 1},
        "adversary_data": {"per_class": 200},
    }
    run = Federation.run(args, plan)
    names = ("words-found", "rouge-1", "rouge-2", "exact-sequences")
    longer = {"words": {}, "tag": {"steps": 1000}, "lamp": {"turns": 10, "steps": 100, "starts": 50}}
    for attack, options in longer.items():
        begin = now(args)
        outcome, why = run.attacked_by(attack, "curious-server", {"origins": args.n, **options})
        print_scores(f"{attack}, {(now(args) - begin) / args.n:.1f}", outcome, why, names)


def members_table(args: argparse.Namespace) -> None:
    """Whether a sentence was among those of a client, by the leak `membership`; of classifiers and of next words.

    Clients have as many sentences as the last of `--batches` says.
    """
    print("\n| model predicts | attack | score | n | value | by guessing |\n|---|---|---|---|---|---|")
    for objective in ("class", "next"):
        _members(args, objective)


def _members(args: argparse.Namespace, objective: str) -> None:
    plan = {
        "data": {"name": args.data, **({} if args.data == "made-up-sentences" else {"length": 40})},
        "model": {"name": "gpt", "layers": 2, "hidden": 128, "objective": objective},
        "partition": {"name": "uniform-batch", "batch": args.batches[-1]},
        "federation": {"clients": 20, "rounds": 2},
        "training": {"lr": 0.1, "batch_size": min(args.batches[-1], 16) // 2, "epochs": 2},
        "membership": {"members": 80, "others": 200},
    }
    run = Federation.run(args, plan)
    for attack in ("membership", "loss"):
        outcome, why = run.attacked_by(attack, "curious-server")
        if outcome is None or outcome.status != "ok":
            print(f"| {objective} | {attack} | skipped: {why or (outcome and outcome.why)} |", flush=True)
            continue
        for name, score in outcome.scores.items():
            values = f"{score.n} | {score.value:.3f} | {score.chance:.3f}"
            print(f"| {objective} | {attack} | {name} | {values} |", flush=True)


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "decoder": lambda args: transformer_table(args, causal=True),
    "encoder": lambda args: transformer_table(args, causal=False),
    "fedavg": fedavg_table,
    "lora": lora_table,
    "lora-gradients": lora_gradients_table,
    "rows": rows_table,
    "defenses": defenses_table,
    "row-defenses": row_defenses_table,
    "matched": matched_table,
    "members": members_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument(
        "--others", type=int, default=2, help="clients who move the model beside the one of `lora-gradients`"
    )
    parser.add_argument("--data", default="rotten-tomatoes")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--method", choices=("words", "dager"), default="words")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batches", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the model, and of federations")
    parser.add_argument("--first", type=int, default=9600, help="seed of the first batch; earlier ones were tuned on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--embeddings", action="store_true", help="embeddings are trained and sent")
    parser.add_argument("--trained", type=int, default=0, help="steps that the model is trained before")
    parser.add_argument("--trained-lr", type=float, default=3e-4)
    parser.add_argument("--ranks", type=numbers, default=[4, 16, 64])
    parser.add_argument("--rounds", type=numbers, default=[1, 4, 16])
    parser.add_argument(
        "--noise", type=float, default=0.0, help="on every number of a message, in `decoder`, `encoder`"
    )
    parser.add_argument("--lora-rank", type=int, default=0, help="of adapters in `decoder` and `encoder`; 0: none")
    parser.add_argument("--lora-lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=numbers, default=[2, 5, 10], help="local steps of `fedavg`")
    parser.add_argument("--lrs", type=rates, default=[1e-4, 1e-3, 1e-2], help="learning rates of `fedavg`")
    parser.add_argument("--step-size", type=int, default=0, help="texts in one local step of `fedavg`; 0: all")
    parser.add_argument("--skip", type=int, default=0, help="rows of `rows` or `defenses` to leave out")
    parser.add_argument("--take", type=int, default=None, help="rows of these to do; all if not given")
    parser.add_argument("--federation-rounds", type=int, default=30)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the time is up"))
    torch.set_num_threads(1 if args.device == "cpu" else torch.get_num_threads())
    TABLES[args.table](args)


def rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
