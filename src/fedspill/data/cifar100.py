"""CIFAR-100: 60,000 colour images of 32 x 32 in 100 classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedspill.data.cifar import read_cifar
from fedspill.dataset import Dataset, DataSource

_NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
    shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CLASSES = tuple(_NAMES.split())


@dataclass(frozen=True)
class Cifar100(DataSource):
    """Small colour photographs with their 100 fine labels, 50,000 to train and 10,000 to test."""

    name = "cifar100"
    title = "CIFAR-100"
    paper = "Krizhevsky: Learning multiple layers of features from tiny images, 2009"
    folder = "cifar100"
    source = "www.cs.toronto.edu/~kriz/cifar.html"

    normalize: bool = False

    def read(self, folder: Path) -> Dataset:
        return read_cifar(
            self,
            folder,
            inner="cifar-100-binary",
            train_files=("train.bin",),
            test_file="test.bin",
            label_bytes=2,
            pickled=("cifar-100-python", "cifar-100-python.tar.gz", "train"),
            classes=CLASSES,
            normalize=self.normalize,
        )
