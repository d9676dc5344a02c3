"""Replayed training sends what a plain loop sends. Graphs need a GPU; here their work is done again instead."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from spine import CLASSES, blobs, federation, network, ragged_clients
from test_federation_engines import TRAININGS, Odd
from torch import Tensor, nn

from fedspill.errors import UsageError
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import state_of, train
from fedspill.federation.replayed import (
    LAUNCHED_FIRST,
    MOST_GRAPHS,
    Lane,
    Place,
    runs,
    side_by_side,
    why_not_replayable,
)
from fedspill.federation.trainers import training_rng
from fedspill.training import LocalTraining, Tensors


class Here(Lane):
    """Does everything at once, and counts what was recorded and replayed."""

    def __init__(self, can_record: bool = True) -> None:
        self.can_record = can_record
        self.recordings = self.replays = self.joins = 0

    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def joined(self) -> None:
        self.joins += 1

    def recorded(self, work: Callable[[], None]) -> Callable[[], None] | None:
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            work()

        return replay if self.can_record else None

    def random_state(self) -> Tensor | None:
        return torch.random.get_rng_state()


def start_of(model: nn.Module) -> Tensors:
    return {name: tensor.clone() for name, tensor in state_of(model).items()}


def both(model: nn.Module, training: LocalTraining, lanes: list[Here], sizes: tuple[int, ...]) -> list[list[Tensors]]:
    """Two rounds by a plain loop and in places."""
    clients, start = ragged_clients(sizes), start_of(model)
    places = [Place(model, training, lane) for lane in lanes]
    looped, placed = [], []
    for number in range(2):
        rngs = [training_rng(0, number, index) for index in range(len(clients))]
        looped += [train(model, start, own, training, rng) for own, rng in zip(clients, rngs, strict=True)]
        work = [(index, own, training_rng(0, number, index)) for index, own in enumerate(clients)]
        found = list(side_by_side(places, start, work))
        assert [index for index, _ in found] == list(range(len(clients)))
        placed += [change for _, change in found]
    return [looped, placed]


def assert_equal(looped: list[Tensors], placed: list[Tensors]) -> None:
    """But for rounding: inputs of several steps lie in one tensor, and processors add up unaligned ones otherwise."""
    for one, other in zip(looped, placed, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.allclose(one[name], other[name], atol=1e-6, rtol=1e-5), name


@pytest.mark.parametrize("name", TRAININGS)
def test_places_send_what_a_loop_sends_whatever_the_training(name: str) -> None:
    lanes = [Here(), Here()]
    assert_equal(*both(network(), TRAININGS[name], lanes, (7, 13, 16, 9, 2)))
    assert all(lane.replays for lane in lanes) or name == "one batch"


@pytest.mark.parametrize("what", ["frozen", "shared", "unused", "batch norm", "buffer", "dropout"])
def test_places_send_what_a_loop_sends_whatever_the_model(what: str) -> None:
    training = LocalTraining(batch_size=5, epochs=3, weight_decay=0.1)
    lane = Here()
    assert_equal(*both(Odd(what), training, [lane], (7, 12, 8)))
    assert (lane.recordings == 0) == (what == "dropout")  # what draws random numbers is launched step by step


def test_frozen_statistics_stay_frozen() -> None:
    training = LocalTraining(batch_size=5, epochs=3, batch_norm="eval")
    _, placed = both(Odd("batch norm"), training, [Here()], (12, 8))
    assert not any(change["extra.running_mean"].any() for change in placed)


def test_what_cannot_be_recorded_is_launched() -> None:
    lane = Here(can_record=False)
    assert_equal(*both(network(), LocalTraining(batch_size=4), [lane], (16, 16, 9)))
    assert (lane.recordings, lane.replays) == (1, 0)


def test_a_few_sizes_of_step_are_recorded_and_each_after_its_first_steps() -> None:
    lane = Here()
    sizes = (11, 12, 13, 14, 15, 16, 17, 18)
    both(network(), LocalTraining(batch_size=10, epochs=3), [lane], sizes)
    assert lane.recordings == MOST_GRAPHS
    assert lane.replays > lane.recordings
    once = Here()
    both(network(), LocalTraining(batch_size=100), [once], (5,))
    assert (once.recordings, once.replays) == (0, 0)
    assert LAUNCHED_FIRST == 2


def test_equal_steps_in_a_row_are_replayed_together() -> None:
    assert runs([4, 4, 3, 4]) == [(4, 2), (3, 1), (4, 1)]
    lane = Here()
    both(network(), LocalTraining(batch_size=2), [lane], (30, 30))
    # Of 15 steps two are launched first; the others are 8 + 4 + 1 at once, and from the second client on 8 + 4 + 2 + 1.
    assert lane.recordings == 4
    assert lane.replays == 3 + 4 + 4 + 4


def test_nobody_is_handed_on_before_his_place_is_joined_nor_left_running() -> None:
    lanes, model, training = [Here(), Here()], network(), LocalTraining(batch_size=4)
    places = [Place(model, training, lane) for lane in lanes]
    work = [(index, blobs(8, index), training_rng(0, 0, index)) for index in range(3)]
    sent = side_by_side(places, start_of(model), work)
    next(sent)
    assert [lane.joins for lane in lanes] == [1, 0]
    sent.close()
    assert [lane.joins for lane in lanes] == [2, 1]


def test_gradients_defended_steps_and_cpus_are_not_replayed() -> None:
    gpu = torch.device("cuda")
    assert why_not_replayable(LocalTraining(), gpu) is None
    assert "GPU" in str(why_not_replayable(LocalTraining(), torch.device("cpu")))
    assert "fedsgd" in str(why_not_replayable(LocalTraining(algorithm="fedsgd"), gpu))
    for workers in (1, 2):
        with pytest.raises(UsageError, match="recorded on a GPU"):
            federation(engine="replayed", workers=workers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("what", ["batch norm", "control flow", "dropout", "unused"])
def test_on_a_gpu_a_federation_comes_to_the_same_model(name: str, what: str) -> None:
    """Dropout draws other masks than on a CPU, but the same in every engine."""
    if what == "batch norm" and name == "batch of one":
        pytest.skip("batch norm refuses steps of one sample")
    if what == "batch norm" and "ada" in name:
        pytest.skip("a bias before batch norm has a gradient of rounding errors, which these optimizers blow up")
    models = []
    for engine in ("loop", "auto"):
        settings = Settings(rounds=3, training=TRAININGS[name])
        clients = ragged_clients((7, 12, 8, 12, 7))
        running = Horizontal(Odd(what), clients, settings, seed=3, classes=CLASSES, engine=engine, device="cuda")
        running.run()
        models.append(state_of(running.model))
    for one, other in zip(models[0].values(), models[1].values(), strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-3), (one - other).abs().max()
