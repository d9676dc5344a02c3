"""breaching's own Robbing-the-Fed notebook setting, its code and ours in one run, on the same images and network.

    PYTHONPATH=src:WHERE_BREACHING_IS python benchmarks/robbing_peer.py --batches 10 [--size 224] [--device cuda]

The setting is that of its notebook "Robbing The Fed - Analytic Attack - Malicious Model on ImageNet": 64 images of 224
pixels, a block of 128 bins in front of a ResNet18, connected by addition, measured by the cosine of mode 32. Its block
and its attacker are imported from the package by themselves, so that what the rest of it needs is not needed here. Ours
puts three functionals into the same block's rows and peels, by the network as clients run it, in float32. The block is
told nothing but that images are normalised; our server has 400 other images. Images: one of each ImageNet class, of 64
pixels, enlarged. The ResNet18 has weights drawn anew. Shares and PSNR are after one-to-one matching; an image that is
not found counts as 0 dB.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from planted import header, line, scored
from torch import Tensor, nn

from fedspill.data.image_folder import ImageFolder
from fedspill.dataset import Examples
from fedspill.planting.bins import BinDesign, bins_of
from fedspill.planting.first_layer import PlantedLayer, PlantedNetwork
from fedspill.planting.input_packing import InputPacking
from fedspill.planting.peel import peel
from fedspill.planting.readings import readings_of

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ARCHIVE = "imagenet_samples/imagenet_1perclass_64x64_jpg.zip"
KNOWN = 400  # images that our server has


def its_parts() -> tuple[Any, Any]:
    """Its block and its attacker, without what the package imports beside them."""
    root = next((Path(place) / "breaching" for place in sys.path if (Path(place) / "breaching").is_dir()), None)
    if root is None:
        raise SystemExit("breaching is not there: put the folder that it is installed in on PYTHONPATH.")
    for name in ("", "attacks", "attacks.auxiliaries", "cases", "cases.models", "cases.malicious_modifications"):
        package = ModuleType(f"breaching.{name}".rstrip("."))
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    imprint = importlib.import_module("breaching.cases.malicious_modifications.imprint")
    return imprint.ImprintBlock, importlib.import_module("breaching.attacks.analytic_attack").ImprintAttacker


def resnet18() -> nn.Module:
    try:
        import torchvision
    except RuntimeError:  # its compiled parts do not fit the installed torch; the network needs none of them
        library = torch.library.Library("torchvision", "DEF")
        resnet18.library = library  # type: ignore[attr-defined] # dropping it would undo it
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    made: nn.Module = torchvision.models.resnet18()
    return made


class Data:
    """What its attacker asks of the data."""

    modality, classes, normalize, mean, std = "vision", 1000, True, MEAN, DEVIATION

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


class Config:
    """Its configuration "imprint"."""

    type, attack_type, label_strategy, normalize_gradients = "analytic", "imprint-readout", None, False
    sort_by_bias, text_strategy, token_strategy = False, "no-preprocessing", "decoder-bias"
    token_recovery, breach_reduction, breach_padding = "from-limited-embedding", "weight", True
    impl = namedtuple("impl", ["dtype", "mixed_precision", "JIT"])("float", False, "")


def shares(model: nn.Module, batch: Examples) -> list[Tensor]:
    """What a client sends: the mean gradient of its batch, in the order of the parameters."""
    loss = nn.functional.cross_entropy(model(batch.x), batch.y)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def theirs(attacker: Any, model: nn.Module, block: Any, sent: list[Tensor], data: Data, samples: int) -> Tensor:
    secret = {"weight_idx": 0, "bias_idx": 1, "shape": data.shape, "structure": block.structure}
    device = sent[0].device
    made = attacker(model, nn.CrossEntropyLoss(), Config, {"device": device, "dtype": torch.float})
    payload = {"parameters": list(model.parameters()), "buffers": list(model.buffers()), "metadata": data}
    labels = torch.zeros(samples, dtype=torch.int64, device=device)  # not used
    told = {"num_data_points": samples, "labels": labels, "local_hyperparams": None}
    shared = {"gradients": sent, "buffers": None, "metadata": told}
    found, _ = made.reconstruct([payload], [shared], {"ImprintBlock": secret}, dryrun=False)
    images: Tensor = found["data"]
    return images.detach()


def ours(model: nn.Module, known: Tensor, sent: list[Tensor], samples: int) -> Tensor:
    network = PlantedNetwork(model.eval(), PlantedLayer("0.linear0", "1.fc", ()))
    weight, bias, last = sent[0].double(), sent[1].double(), sent[-1]
    first = network.first
    readings = readings_of(first.weight.double(), first.bias.double(), torch.ones_like(bias)[None])
    present = (last < 0).nonzero().flatten()  # classes that the batch pulls up
    return peel(network, InputPacking.flat(known), weight, bias, samples, readings, labels=present).samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=70_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--bins", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # clients compute in float32
    block_of, attacker = its_parts()
    data = ImageFolder(path=ARCHIVE, size=64, test_share=0.0).load(None)
    mean, deviation = (torch.tensor(part)[:, None, None] for part in (MEAN, DEVIATION))
    results: dict[str, list[Any]] = {"breaching": [], "ours, the same block": []}
    quality: dict[str, list[float]] = {name: [] for name in results}
    for seed in range(asked.first_seed, asked.first_seed + asked.batches):
        rng = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(data.train), generator=rng)[: asked.samples + KNOWN]
        large = nn.functional.interpolate(data.train.x[order], size=asked.size, mode="bicubic").clamp(0, 1)
        x = (large - mean) / deviation
        batch = Examples(x[: asked.samples], data.train.y[order[: asked.samples]]).to(asked.device)
        shape = tuple(x.shape[1:])
        for name in results:
            torch.manual_seed(seed)
            block = block_of(shape, asked.bins, connection="addition", gain=1.0, linfunc="fourier", mode=32)
            model = nn.Sequential(block, resnet18())
            if name != "breaching":
                w, b = bins_of(x[asked.samples :].flatten(1), asked.bins, BinDesign(), rng)
                with torch.no_grad():
                    block.linear0.weight.zero_()
                    block.linear0.bias.fill_(-1.0)
                    block.linear0.weight[: len(w)], block.linear0.bias[: len(b)] = w.float(), b.float()
            model.to(asked.device).eval()
            sent = shares(model, batch)
            began = time.perf_counter()
            if name == "breaching":
                found = theirs(attacker, model, block, sent, Data(shape), asked.samples)
            else:
                found = ours(model, x[asked.samples :], sent, asked.samples)
            took = time.perf_counter() - began
            images = found.cpu() * deviation + mean
            read = scored(images, large[: asked.samples], name != "breaching", took)
            results[name].append(read)
            quality[name].append(read.median)
            print(seed, name, read, flush=True)
    print(f"\n{asked.samples} images of {asked.size} pixels, {asked.bins} rows in front of a ResNet18, {asked.device}")
    header()
    for name, reads in results.items():
        theory = (1 - 1 / asked.bins) ** (asked.samples - 1) if name == "breaching" else None
        line(name, reads, theory)
        print(f"  median PSNR of a batch's images: {statistics.fmean(quality[name]):.1f} dB")


if __name__ == "__main__":
    main()
