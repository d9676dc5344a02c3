"""A server that asks the same samples again, by models that hardly differ: what two rounds tell from each other.

    python benchmarks/asked_again.py [--seeds 10] [--first-seed 9000] [--rounds 10 40] [--shares 0.02 0.1 0.3]

The server holds its honest model still and moves nothing but the biases of the first layer, a little in every round,
so that each neuron slides over a share of the inputs on its way. What a client sends in two rounds then differs by the
samples that fire in one of them only. The client answers with one step on all of its samples, or on a part of them
that is drawn anew in every round. Differences of rounds that are up to ten apart are read. Nothing is vouched for:
whoever holds the truth says which of them are samples, so this is what a server could read at most. The last row is of
honest models, which move everywhere: what a server that does not tamper would read of a client that answers so.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import torch
from arms import HONEST, Federation, federation
from torch import Tensor

from fedspill.dataset import Dataset
from fedspill.defense import ClientContext
from fedspill.defenses.gradient_gate import GradientGate
from fedspill.defenses.guard import Guard
from fedspill.federation.local import train
from fedspill.messages import EVERYONE, SERVER, Message
from fedspill.planting.reading_place import ReadingPlace
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.training import LocalTraining, Tensors

APART = 10  # rounds
GATES = {
    "none": None,
    "gate over pairs, all samples": GradientGate(pairs=True, part=1.0),
    "gate over pairs": GradientGate(pairs=True),
}


@dataclass
class Asked:
    """What came of one federation."""

    accepted: int  # rounds until the guard stopped it
    read: float
    chance: float = 0.0  # the same of as many records that were not asked


def slid(state: Tensors, place: ReadingPlace, share: float, way: float) -> Tensors:
    """The model with every neuron moved over `share` of the server's inputs, `way` of it gone; weights as they are."""
    layer = place.layer
    heights = (place.features().to(state[layer.weight]) @ state[layer.weight].T).sort(0).values
    silent = (heights < -state[layer.bias]).double().mean(0)
    places = ((silent + share * (way - 0.5)).clamp(0.05, 0.95) * (len(heights) - 1)).long()
    return {**state, layer.bias: -heights.gather(0, places[None])[0]}


def asked_again(
    made: Federation, share: float | None, rounds: int, gate: GradientGate | None, guard: bool, seed: int, batch: int
) -> Asked:
    place, own = ReadingPlace.of(made.model, made.known), made.own.take(torch.arange(batch))
    training = LocalTraining(algorithm="fedsgd", batch_size=batch)
    training = training if gate is None else gate.local(training)
    memory: dict[str, Tensor] = {}
    previous: Message | None = None
    sent: list[tuple[Tensor, Tensor]] = []
    for number in range(HONEST + rounds):
        state = made.states[number if share is None else min(number, HONEST)]
        if share is not None and number >= HONEST:
            state = slid(state, place, share, (number - HONEST) / rounds)
        if guard:
            message = Message(number, SERVER, EVERYONE, "model", state)
            verdict = Guard().incoming(message, previous, ClientContext(memory, lambda: made.model, made.own))
            if verdict.action != "accept":
                break
            memory, previous = dict(verdict.memory) if verdict.memory is not None else memory, message
        if number >= HONEST:
            moved = train(made.model, state, own, training, generator(seed, number))
            sent.append((moved[place.layer.weight].double(), moved[place.layer.bias].double()))
    found = [
        (weight - sent[other][0])[rows] / (bias - sent[other][1])[rows, None]
        for number, (weight, bias) in enumerate(sent)
        for other in range(max(0, number - APART), number)
        for rows in [(bias != 0) & (sent[other][1] != 0) & ((bias - sent[other][1]).abs() > 1e-12)]
    ]
    if not found or not sum(map(len, found)):
        return Asked(len(sent), 0.0)
    x = place.packing().unpack(torch.cat(found)).flatten(1).double()
    return Asked(len(sent), met(x, own.x), met(x, made.known[:batch]))


def met(x: Tensor, records: Tensor) -> float:
    """The share of records that are in x (n, features), to 30 dB: the model is not quite the same in two rounds."""
    nearest = torch.cdist(x, records.flatten(1).double()).amin(0)
    return float((nearest < 0.0316 * records[0].numel() ** 0.5).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--neurons", type=int, default=128)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rounds", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.02, 0.1, 0.3], help="of the inputs, slid over")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data: Dataset = make("datasets", asked.data).load(None)
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    made = [federation(data, asked.neurons, seed, HONEST + max(asked.rounds)) for seed in seeds]
    print(f"{asked.data}, {asked.neurons} neurons, one step on {asked.batch} samples, {asked.seeds} federations")
    print("| slid over | rounds | gate | guard | stopped | read, mean (most) | of records that were not asked |")
    print("|---|---|---|---|---|---|---|")
    for share in (*asked.shares, None):
        for rounds in asked.rounds:
            for gate, rule in GATES.items():
                for guard in (False, True):
                    all_of = [
                        asked_again(one, share, rounds, rule, guard, seed, asked.batch)
                        for one, seed in zip(made, seeds, strict=True)
                    ]
                    read, stopped = [one.read for one in all_of], sum(one.accepted < rounds for one in all_of)
                    print(
                        f"| {'honest models' if share is None else share} | {rounds} | {gate} | "
                        f"{'guard' if guard else ''} | {stopped}/{len(all_of)} | "
                        f"{statistics.fmean(read):.2f} ({max(read):.2f}) | "
                        f"{statistics.fmean(one.chance for one in all_of):.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
