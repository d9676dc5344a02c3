"""Defenses do to a message what they say, and nothing else."""

import pytest
import torch

from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.errors import UsageError
from fedspill.messages import Message
from fedspill.seeds import generator


def update(**tensors: torch.Tensor) -> Message:
    return Message(0, "client:0", "server", "update", tensors, {"examples": 3})


def norm(message: Message) -> float:
    return float(torch.cat([t.flatten() for t in message.tensors.values()]).norm())


def test_clipping_scales_the_whole_update_to_the_norm() -> None:
    message = update(a=torch.tensor([3.0, 0.0]), b=torch.tensor([[4.0]]))
    clipped = ClipNoise(clip=1.0, sigma=0).outgoing(message, generator(0))
    assert norm(clipped) == pytest.approx(1.0)
    assert torch.allclose(clipped.tensors["a"] / clipped.tensors["b"], torch.tensor([[0.75, 0.0]]))
    assert clipped.info == message.info


def test_a_small_update_is_not_scaled_up() -> None:
    message = update(a=torch.tensor([0.1, 0.2]))
    assert torch.equal(ClipNoise(clip=1.0, sigma=0).outgoing(message, generator(0)).tensors["a"], message.tensors["a"])


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_noise_has_the_stated_size_and_law(law: str) -> None:
    message = update(a=torch.zeros(1_000_000))
    noise = ClipNoise(clip=None, sigma=0.3, law=law).outgoing(message, generator(1)).tensors["a"]  # type: ignore[arg-type]
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    kurtosis = float((noise**4).mean() / (noise**2).mean() ** 2)
    assert kurtosis == pytest.approx({"gaussian": 3.0, "laplace": 6.0}[law], rel=0.1)


def test_noise_is_by_generator() -> None:
    message = update(a=torch.zeros(10))
    once, again, other = (ClipNoise().outgoing(message, generator(seed)).tensors["a"] for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_compression_keeps_the_largest_of_each_tensor() -> None:
    message = update(a=torch.tensor([1.0, -5.0, 2.0, 3.0]), b=torch.tensor([10.0, 20.0]))
    kept = Compression(drop=0.5).outgoing(message, generator(0)).tensors
    assert kept["a"].tolist() == [0, -5, 0, 3]
    assert kept["b"].tolist() == [0, 20]


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("shape", [(1000,), (20, 50)])
def test_compression_cuts_at_the_order_statistic(drop: float, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=generator(3)).round(decimals=1)  # with ties
    (kept,) = Compression(drop=drop).outgoing(update(a=tensor), generator(0)).tensors.values()
    threshold = tensor.abs().flatten().sort().values[int(drop * tensor.numel()) - 1]
    assert torch.equal(kept, torch.where(tensor.abs() > threshold, tensor, 0))


@pytest.mark.parametrize("make", [lambda: ClipNoise(clip=0), lambda: ClipNoise(sigma=-1), lambda: Compression(drop=1)])
def test_senseless_options_are_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]
