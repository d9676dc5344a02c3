"""The real files, where they are there, are read completely and correctly."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from fedspill.data.adult import Adult
from fedspill.data.celeba_attributes import CelebaAttributes
from fedspill.data.celeba_images import CelebaImages
from fedspill.data.ham10000 import Ham10000
from fedspill.data.image_folder import ImageFolder
from fedspill.data.mnist import Mnist
from fedspill.data.yale import Yale
from fedspill.dataset import Dataset, Examples
from fedspill.registry import make


@dataclass(frozen=True)
class Facts:
    """What is known about a data set as it lies in the folder."""

    name: str
    shape: tuple[int, ...]
    sizes: tuple[int, int]
    counts: tuple[int, ...]  # of every class, train and test together; one number: the same for all
    options: dict[str, object] = field(default_factory=dict)
    first_label: int | None = None
    note: str = ""


FACTS = [
    Facts(
        "mnist",
        (1, 28, 28),
        (60_000, 10_000),
        (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958),
        first_label=5,
    ),
    Facts("fashion-mnist", (1, 28, 28), (60_000, 10_000), (7000,), first_label=9),
    Facts(
        "cifar10",
        (3, 32, 32),
        (15_000, 5_000),
        (1990, 1989, 2055, 2007, 2014, 1914, 2024, 2009, 2026, 1972),
        first_label=6,
        note="20,000 of the original 60,000",
    ),
    Facts("cifar100", (3, 32, 32), (5_000, 1_000), (60,), first_label=11, note="6,000 of the original 60,000"),
    Facts(
        "fer2013",
        (1, 48, 48),
        (4_486, 1_497),
        (847, 86, 861, 1509, 983, 642, 1055),
        first_label=0,
        note="17 with ambiguous labels were left out",
    ),
    Facts("ham10000", (3, 28, 28), (7_017, 2_998), (327, 514, 1099, 115, 6705, 142, 1113)),
    Facts("celeba-attributes", (39,), (162_770, 39_829), (98_766, 103_833), first_label=1),
    Facts("celeba-images", (3, 64, 64), (1_440, 360), (869, 931), note="1,800 of the original 202,599"),
    Facts("adult", (108,), (32_561, 16_281), (37_155, 11_687), first_label=0),
    Facts("adult", (104,), (30_162, 15_060), (34_014, 11_208), {"missing_values": "drop"}, first_label=0),
    Facts("yale", (1, 32, 32), (135, 30), (11,)),
    Facts("olivetti", (1, 64, 64), (320, 80), (10,)),
    Facts("olivetti", (1, 32, 32), (320, 80), (10,), {"size": 32}),
    Facts("android-permissions", (86,), (16_425, 4_106), (10_270, 10_261), note="20,531 of the original 29,332 apps"),
    Facts(
        "image-folder",
        (3, 32, 32),
        (1_600, 400),
        (10,),
        {"path": "tiny_imagenet32/tiny_imagenet_32x32_2000_jpg.zip", "size": 32},
    ),
    Facts(
        "image-folder",
        (3, 64, 64),
        (1_000, 0),
        (1,),
        {"path": "imagenet_samples/imagenet_1perclass_64x64_jpg.zip", "test_share": 0},
    ),
    Facts(
        "image-folder",
        (3, 224, 224),
        (20, 0),
        (1,),
        {"path": "imagenet_samples/imagenet_20_224x224_jpg.zip", "size": 224, "test_share": 0},
    ),
]


def in_unit_range(examples: Examples) -> bool:
    return len(examples) == 0 or (float(examples.x.min()) >= 0 and float(examples.x.max()) <= 1)


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: "-".join([facts.name, *map(str, facts.options.values())]))
def test_shapes_sizes_classes_and_ranges(data_dir: Path, facts: Facts) -> None:
    dataset: Dataset = make("datasets", facts.name, facts.options).load(data_dir)
    assert dataset.shape == facts.shape
    assert (len(dataset.train), len(dataset.test)) == facts.sizes
    classes = len(dataset.classes)
    counts = torch.cat([dataset.train.y, dataset.test.y]).bincount(minlength=classes).tolist()
    assert counts == (list(facts.counts) if len(facts.counts) > 1 else [facts.counts[0]] * classes)
    if facts.name != "adult":
        assert in_unit_range(dataset.train)
        assert in_unit_range(dataset.test)
        assert float(dataset.train.x.max()) > 0.9
    if facts.first_label is not None:
        assert int(dataset.train.y[0]) == facts.first_label
    assert facts.note in dataset.note
    assert bool(facts.note) == bool(dataset.note)


def test_mnist_looks_like_mnist(data_dir: Path) -> None:
    dataset = Mnist().load(data_dir)
    assert float(dataset.train.x.mean()) == pytest.approx(0.1307, abs=1e-4)  # the figure everyone normalises with
    assert float(dataset.train.x.std()) == pytest.approx(0.3081, abs=1e-4)


def test_location_labels_and_sizes(data_dir: Path) -> None:
    dataset = make("datasets", "location30").load(data_dir)
    assert dataset.shape == (446,)
    assert len(dataset.train) + len(dataset.test) == 5_010
    assert dataset.train.y.unique().tolist() == list(range(30))
    assert dataset.train.x.unique().tolist() == [0, 1]
    assert dataset.note == ""


def test_yale_is_the_same_from_matlab_and_from_npz(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "yale_faces").mkdir()
    shutil.copy(data_dir / "yale_faces" / "Yale_32x32.mat", tmp_path / "yale_faces")
    one, other = Yale().load(data_dir), Yale().load(tmp_path)
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.train.y, other.train.y)
    assert torch.equal(one.test.x, other.test.x)


def test_extended_yale_leaves_out_the_striped_images(data_dir: Path) -> None:
    dataset = Yale(extended=True, test_share=0).load(data_dir)
    assert len(dataset.train) == 2_412
    assert len(dataset.classes) == 38
    with np.load(data_dir / "yale_faces" / "yaleB_32x32.npz", allow_pickle=False) as arrays:
        striped = torch.from_numpy(arrays["x"][[76, 78]]).float().div(255)
    for image in striped:
        assert not (dataset.train.x[:, 0] == image).all(dim=(1, 2)).any()


def test_no_skin_lesion_is_on_both_sides(data_dir: Path) -> None:
    dataset = Ham10000().load(data_dir)
    with np.load(data_dir / "ham10000" / "ham10000_28x28_rgb.npz", allow_pickle=False) as arrays:
        lesion_of = {image.tobytes(): lesion for image, lesion in zip(arrays["x"], arrays["lesion"], strict=True)}
    sides = [
        {lesion_of[image.tobytes()] for image in (part.x * 255).round().to(torch.uint8).numpy()}
        for part in (dataset.train, dataset.test)
    ]
    assert not sides[0] & sides[1]
    shares = dataset.test.y.bincount() / torch.tensor([327, 514, 1099, 115, 6705, 142, 1113])
    assert (shares - 0.3).abs().max() < 0.02


def test_celeba_attributes_of_the_first_image(data_dir: Path) -> None:
    dataset = CelebaAttributes().load(data_dir)
    said = {name for name, value in zip(dataset.columns, dataset.train.x[0].tolist(), strict=True) if value}
    assert said == {
        "Arched_Eyebrows",
        "Brown_Hair",
        "Heavy_Makeup",
        "High_Cheekbones",
        "Mouth_Slightly_Open",
        "No_Beard",
        "Pointy_Nose",
        "Smiling",
        "Straight_Hair",
        "Wearing_Earrings",
        "Wearing_Lipstick",
        "Young",
    }
    assert dataset.train.users is not None
    assert int(dataset.train.users[0]) == 2880
    assert len(Examples.join([dataset.train, dataset.test]).users.unique()) == 10_177  # type: ignore[union-attr]


def test_celeba_features_of_the_paper(data_dir: Path) -> None:
    six = ("Arched_Eyebrows", "Big_Nose", "Heavy_Makeup", "Male", "Wearing_Lipstick", "Young")
    dataset = CelebaAttributes(features=six).load(data_dir)
    assert dataset.columns == six
    labels = dataset.train.y.float()
    for column in range(6):  # chosen by their correlation with Attractive
        assert abs(float(torch.corrcoef(torch.stack([dataset.train.x[:, column], labels]))[0, 1])) > 0.2


def test_celeba_people_are_on_one_side_of_the_part_that_is_here(data_dir: Path) -> None:
    dataset = CelebaImages(size=None, limit=300).load(data_dir)
    assert dataset.shape == (3, 109, 89)
    assert dataset.train.users is not None
    assert dataset.test.users is not None
    assert not set(dataset.train.users.tolist()) & set(dataset.test.users.tolist())
    assert len(dataset.train) + len(dataset.test) == 300


def test_adult_first_row(data_dir: Path) -> None:
    dataset = Adult().load(data_dir)
    row = dataset.train.x[0]
    assert {dataset.columns[index] for index in row[6:].nonzero().ravel() + 6} == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    }
    assert dataset.columns[:2] == ("age", "fnlwgt")
    assert float(row[0]) == pytest.approx((39 - 38.5816) / 13.6404, abs=1e-3)  # mean and deviation of the published set
    assert torch.allclose(dataset.train.x[:, :6].mean(dim=0), torch.zeros(6), atol=1e-4)
    assert torch.allclose(dataset.train.x[:, :6].std(dim=0), torch.ones(6), atol=1e-3)
    for group in dataset.groups:
        assert (dataset.train.x[:, list(group)].sum(dim=1) == 1).all()


def test_classes_of_tiny_imagenet_are_its_wordnet_names(data_dir: Path) -> None:
    dataset = ImageFolder(path="tiny_imagenet32/tiny_imagenet_32x32_2000_jpg.zip", size=32, per_class=1).load(data_dir)
    listed = (data_dir / "tiny_imagenet32" / "wnids.txt").read_text().splitlines()
    assert set(dataset.classes) == {line.split("\t")[0] for line in listed}
