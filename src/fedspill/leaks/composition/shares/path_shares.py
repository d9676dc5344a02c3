"""Class shares by path bases: a whitened least-squares fit on the simplex, no descent."""

from __future__ import annotations

import torch
from torch import Tensor

from fedspill.observe.path_bases import PathBases
from fedspill.observe.path_products import path_products
from fedspill.observe.share_fits import positive
from fedspill.observe.simplex import cone_fit, simplex_fit

RIDGE = 0.001  # of the mean variance, in the whitening
SURE = 0.995  # above this agreement the solution needs no help from the null test
DOUBT = 0.15  # how fast a fit that explains little gives way to even shares


def path_shares(bases: PathBases, mean_gradient: Tensor, allowed: Tensor) -> tuple[Tensor, float]:
    """Shares (classes,) and whitened agreement for a mean gradient (outputs, features + 1).

    First with the noise of evenly mixed classes, then with that of the mixture found. Where all classes together
    explain what was seen, the null test could only do harm and is not used.
    """
    products = path_products(bases, mean_gradient)
    even = torch.full((len(allowed),), 1 / len(allowed), dtype=torch.float64)
    by_even = products.at(even, RIDGE)
    every = torch.ones_like(allowed)
    shares, agreement = simplex_fit(by_even, every)
    if agreement > SURE:
        allowed = every
    elif not bool(allowed.all()):
        shares, agreement = simplex_fit(by_even, allowed)
    return simplex_fit(products.at(0.9 * shares + 0.1 * even, RIDGE), allowed)


def direction_shares(bases: PathBases, mean_gradient: Tensor, allowed: Tensor) -> Tensor:
    """Shares (classes,) of `allowed` classes under which the bases add up to the direction of a mean gradient.

    A model pushes its clients' samples less than auxiliary ones that it has not seen, so its size says nothing.
    """
    kept = torch.cat([allowed, torch.ones(1, dtype=torch.bool)])
    even = torch.full((len(allowed),), 1 / len(allowed), dtype=torch.float64)
    factors, _ = cone_fit(path_products(bases, mean_gradient).at(even, RIDGE)[kept][:, kept])
    shares = torch.zeros(len(allowed), dtype=torch.float64)
    shares[allowed] = positive(factors)
    return shares


def hedged(shares: Tensor, allowed: Tensor, agreement: float) -> Tensor:
    """Shares (classes,) drawn towards even shares of the allowed classes, the more the less they explain.

    Least squares on noise gives any answer. The square of the agreement counts as signal, the rest as noise, and noise
    as its square: a fit that explains nearly all is left as it is.
    """
    if agreement > SURE:
        return shares
    signal = agreement**2
    weight = signal / (signal + DOUBT * (1 - signal) ** 2) if signal > 0 else 0.0
    return weight * shares + (1 - weight) * allowed.double() / allowed.sum()


def adam_bias_shares(bases: PathBases, mean_step: Tensor, allowed: Tensor, batch_size: int) -> tuple[Tensor, float]:
    """Shares (classes,) from the last bias under Adam; mean_step (outputs,) is minus its change over lr and steps.

    Adam divides each coordinate by the root of its mean square, here that of the batch mean along the path:
    (E g)^2 + Var g / batch size. It depends on the shares, so the two are found in turns.
    """
    gradients, power = bases.bias_gradients, bases.bias_power  # (classes, outputs)
    shares = allowed.double() / allowed.sum()
    agreement = 0.0
    for _ in range(8):
        mean = shares @ gradients
        spread = (shares @ power - mean**2).clamp_min(0)
        scale = (mean**2 + spread / batch_size).sqrt().clamp_min(1e-12)
        columns = torch.cat([gradients / scale, mean_step[None]])
        found, agreement = simplex_fit(columns @ columns.T, allowed)
        shares = (shares + found) / 2
    return shares, agreement
