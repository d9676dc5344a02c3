"""Least squares under simple constraints, from inner products alone: no descent, and no matrix as long as a layer."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

_FIRM = 1e4  # weight of the constraint that shares add up to 1, over the largest column


def simplex_fit(products: Tensor, allowed: Tensor) -> tuple[Tensor, float]:
    """Shares (m,) >= 0 that add up to 1 and are 0 where not `allowed` (m,), and how well they agree with the target.

    The agreement is the cosine between fit and target, at least 0: unlike a residual it does not mistake a fit of the
    right direction and the wrong length for a bad one, and pure noise shows as an agreement near 0.

    products (m + 1, m + 1): inner products of m columns and, last, the target.
    """
    chosen = torch.nonzero(allowed).flatten().tolist()
    shares = torch.zeros(len(allowed), dtype=torch.float64)
    if not chosen:
        return torch.full_like(shares, 1 / len(shares)), 0.0
    columns, target = _short_form(products, chosen)
    firm = _FIRM * max(float(np.linalg.norm(columns, axis=0).max()), 1e-300)
    found, _ = nnls(np.vstack([columns, np.full((1, len(chosen)), firm)]), np.append(target, firm))
    found = found / found.sum() if found.sum() > 0 else np.full(len(chosen), 1 / len(chosen))
    shares[chosen] = torch.from_numpy(found)
    return shares, _agreement(columns @ found, target)


def cone_fit(products: Tensor) -> tuple[Tensor, float]:
    """Factors (m,) >= 0 without further constraint, and their agreement; products as in `simplex_fit`."""
    columns, target = _short_form(products, list(range(len(products) - 1)))
    found, _ = nnls(columns, target)
    return torch.from_numpy(found), _agreement(columns @ found, target)


def _short_form(products: Tensor, chosen: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Columns (k + 1, k) and target (k + 1,) with the given inner products: a triangular root of them."""
    pick = [*chosen, len(products) - 1]
    table = products[pick][:, pick].double().numpy()
    scale = np.sqrt(np.maximum(np.diag(table), 1e-300))  # so that columns of any size count alike
    values, vectors = np.linalg.eigh(table / scale[:, None] / scale)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T * scale
    return root[:, :-1], root[:, -1]


def _agreement(fit: np.ndarray, target: np.ndarray) -> float:
    size = float(np.linalg.norm(fit) * np.linalg.norm(target))
    return max(float(fit @ target) / size, 0.0) if size > 0 else 0.0
