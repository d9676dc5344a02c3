"""Residual networks (He et al. 2016): ResNet-18 and -50, and the ResNet-32 for CIFAR that paper 003 widens tenfold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from torch import Tensor, nn

from fedspill.model_spec import ModelSpec
from fedspill.models.checks import image_shape, require_positive

Stem: TypeAlias = Literal["auto", "cifar", "imagenet"]  # auto: cifar under 64 pixels


@final
@dataclass(frozen=True)
class ResNet18(ModelSpec):
    """Four stages of two basic blocks; with the ImageNet stem its parameters have torchvision's names and shapes."""

    name = "resnet18"
    title = "ResNet-18"
    paper = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016; in 000 Decaf and 002 Eavesdrop"

    stem: Stem = "auto"
    last_bias: bool = True

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        stem = _stem(self.stem, min(height, width))
        return ResidualNetwork(BasicBlock, (2, 2, 2, 2), channels, 64, classes, stem=stem, last_bias=self.last_bias)


@final
@dataclass(frozen=True)
class ResNet50(ModelSpec):
    """Bottleneck blocks 3-4-6-3; with the ImageNet stem its parameters have torchvision's names and shapes."""

    name = "resnet50"
    title = "ResNet-50"
    paper = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016; in 003 LLBG"

    stem: Stem = "auto"
    last_bias: bool = True

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = image_shape(shape, self.name)
        stem = _stem(self.stem, min(height, width))
        return ResidualNetwork(Bottleneck, (3, 4, 6, 3), channels, 64, classes, stem=stem, last_bias=self.last_bias)


@final
@dataclass(frozen=True)
class ResNet32(ModelSpec):
    """Three stages of five basic blocks, 16, 32 and 64 channels wide times `width`; 003's network has width 10."""

    name = "resnet32"
    title = "ResNet-32 for CIFAR"
    paper = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016; in 003 LLBG"

    width: int = 1
    last_bias: bool = True

    def __post_init__(self) -> None:
        require_positive("width", self.width)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = image_shape(shape, self.name)
        return ResidualNetwork(
            BasicBlock, (5, 5, 5), channels, 16 * self.width, classes, stem="cifar", last_bias=self.last_bias
        )


@final
class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    growth = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(inner)) + self.downsample(x))
        return out


@final
class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around which the input is added; the 3x3 takes the stride."""

    growth = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, self.growth * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(self.growth * width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(channels, self.growth * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(x)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        out: Tensor = self.relu(self.bn3(self.conv3(inner)) + self.downsample(x))
        return out


@final
class ResidualNetwork(nn.Module):
    """A stem, stages of blocks that double the width and halve the image, a global average, and a linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        stages: Sequence[int],
        channels: int,
        width: int,
        classes: int,
        *,
        stem: Literal["cifar", "imagenet"],
        last_bias: bool,
    ) -> None:
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(
            channels, width, 7 if large else 3, stride=2 if large else 1, padding=3 if large else 1, bias=False
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        self.stages = len(stages)
        incoming = width
        for number, blocks in enumerate(stages, start=1):
            layers: list[nn.Module] = []
            for position in range(blocks):
                layers.append(block(incoming, width, stride=2 if number > 1 and position == 0 else 1))
                incoming = block.growth * width
            self.add_module(f"layer{number}", nn.Sequential(*layers))
            width *= 2
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(incoming, classes, bias=last_bias)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        logits: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return logits


def _stem(asked: Stem, side: int) -> Literal["cifar", "imagenet"]:
    if asked == "auto":
        return "imagenet" if side >= 64 else "cifar"
    return asked


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    """The identity, or a 1x1 convolution where the shape changes (He et al.'s option B)."""
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))
