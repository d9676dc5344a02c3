"""The published attacks as compositions of parts; each says where the published text leaves a choice."""

from __future__ import annotations

from torch import nn

from fedspill.leaks.inputs.search.objectives import (
    CosineDistance,
    GaussianKernel,
    LayeredSquares,
    SquaredDistance,
    TensorNorms,
)
from fedspill.leaks.inputs.search.optimizers import Adam, Lbfgs
from fedspill.leaks.inputs.search.priors import (
    BatchNormStatistics,
    EpochAgreement,
    GroupConsistency,
    SquaredNorm,
    TotalVariation,
    ValueRange,
)
from fedspill.leaks.inputs.search.search import Recipe


def dlg(steps: int = 300) -> Recipe:
    """Zhu et al., Deep Leakage from Gradients, 2019: squared distance, L-BFGS, inputs and labels together.

    The released code makes 300 outer steps of 20 L-BFGS moves; `steps` counts moves. iDLG (Zhao et al. 2020) is the
    same with the label read from the last layer, given as `targets`.
    """
    return Recipe(SquaredDistance(), Lbfgs(), steps)


def inverting_gradients(
    steps: int = 24_000, variation: float = 0.2, *, signed: bool = True, restarts: int = 1
) -> Recipe:
    """Geiping et al., Inverting Gradients, 2020: cosine distance, total variation, signed Adam with step decay.

    The authors' repository has TV 0.1, unsigned, 4,800 steps as its default; the `breaching` framework, which paper 003
    uses, has TV 0.2, signed, 24,000 steps.
    """
    adam = Adam(0.1, steps, signed=signed, schedule="steps")
    return Recipe(CosineDistance(), adam, steps, (TotalVariation(variation),), restarts, boxed=True)


def sapag(steps: int = 2_000, *, per_entry: bool = False, lr: float = 0.01) -> Recipe:
    """Wang et al., SAPAG, 2020: a Gaussian kernel of the differences, tensor by tensor; here with Adam as optimizer.

    The paper names AdamW and a kernel width from the gradients' variance; of CAFE's two readings this is the one of its
    released code: the variance of each observed tensor. Its sum of squares saturates the kernel for all but tiny
    tensors; `per_entry` takes the mean instead.
    """
    return Recipe(GaussianKernel(per_entry=per_entry), Adam(lr, steps), steps, start="uniform")


def fedavg_leakage(
    steps: int,
    lr: float,
    variation: float,
    agreement: float,
    epochs: int,
    local_steps: int,
    between: tuple[float, float] | None,
) -> Recipe:
    """Dimitrov et al., Data Leakage in Federated Averaging, 2022: squares by layer, and epochs that agree.

    Weights 0.001 for variation, 2 for the range of values and 1000 for the agreement of epochs are the released ones;
    the distance is that of the sum over local steps, over their number, times two.
    """
    inside = (ValueRange(2.0, *between),) if between is not None else ()
    priors = (TotalVariation(variation), *inside, EpochAgreement(agreement, epochs))
    return Recipe(LayeredSquares(2.0 / local_steps), Adam(lr, steps, schedule="decay"), steps, priors)


def grad_inversion(
    model: nn.Module,
    steps: int = 20_000,
    *,
    group: int = 5,
    batch_norm: bool = True,
    variation: float = 1e-4,
    statistics: float = 0.1,
) -> Recipe:
    """Yin et al., See through Gradients, 2021: norms by layer, variation, batch-norm statistics, a group.

    Weights 1e-4, 1e-6, 0.1 (first layer tenfold) and 0.01; Adam 0.1 with 50 warm-up steps, cosine decay and Langevin
    noise of 0.2. The group's mean is not registered to its members by optical flow, as in other re-implementations.
    The published weights go with a sum of distances over the layers of a ResNet50, weighted 1e-3; here the sum is
    relative to what was observed, so that smaller networks may need others.
    """
    priors = [TotalVariation(variation), SquaredNorm(variation / 100)]
    adam = Adam(0.1, steps, schedule="cosine", warmup=min(50, steps), langevin=0.2)
    features = (BatchNormStatistics(model, statistics),) if batch_norm else ()
    consistency = (GroupConsistency(0.01),) if group > 1 else ()
    return Recipe(TensorNorms(), adam, steps, (*priors, *features, *consistency), group, boxed=True, enough=1e-5)
