"""Least squares with shares that are not negative and add up to 1, computed from inner products alone.

Many problems are solved at once. Which shares are zero is found by exchanging all wrong signs together (block
principal pivoting, Portugal, Judice and Vicente 1994), a few small linear systems per problem; the rare problem that
this does not settle is handed to the active-set method of Lawson and Hanson.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

_SUM_WEIGHT = 1e4  # weight of the constraint that shares add up to 1, over the largest column
_EXCHANGES = 60  # at most, before a problem is handed over
_JOINT_EXCHANGES = 6  # of all wrong signs at once; then one sign at a time, which cannot run in circles
_SLACK = 1e-10  # how far beyond zero a value must lie for its sign to count as wrong
_RIDGE = 1e-13  # over the mean diagonal, since equal columns would leave the shares between them undetermined


def simplex_fit(products: Tensor, allowed: Tensor) -> tuple[Tensor, float]:
    """`simplex_fits` of one problem: products (m + 1, m + 1), allowed (m,); shares (m,) and agreement."""
    shares, agreement = simplex_fits(products[None], allowed[None])
    return shares[0], float(agreement[0])


def simplex_fits(products: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Shares (n, m) >= 0 that add up to 1 and are 0 where not `allowed` (n, m), and how well they agree (n,).

    The agreement is the cosine between fit and target, at least 0: unlike a residual it does not mistake a fit of the
    right direction and the wrong length for a bad one, and pure noise shows as an agreement near 0. Without an allowed
    column shares are even and agree with nothing.

    products (n, m + 1, m + 1): inner products of m columns and, last, the target.
    """
    table = products.double().numpy()
    free = allowed.numpy()
    m = free.shape[1]
    shares = np.full((len(table), m), 1 / m)
    agreement = np.zeros(len(table))
    some = free.any(1) & np.isfinite(table).all((1, 2))
    if some.any():
        shares[some], settled = _pivoted(table[some, :m, :m], table[some, :m, m], free[some])
        for index in np.flatnonzero(some)[~settled]:
            shares[index] = _one_by_one(table[index], np.flatnonzero(free[index]))
        agreement[some] = _agreements(table[some], shares[some])
    return torch.from_numpy(shares), torch.from_numpy(agreement)


def _pivoted(gram: np.ndarray, inner: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares (n, m) that meet the conditions of a minimum, and for which problems (n,) they do."""
    n, m = inner.shape
    scale = np.einsum("nii->n", gram) / m
    sound = scale > 0
    scale = np.where(sound, scale, 1)
    gram = gram / scale[:, None, None] + _RIDGE * np.eye(m)
    inner = inner / scale[:, None]
    active, shares = free.copy(), np.zeros((n, m))
    settled, left = np.zeros(n, dtype=bool), np.flatnonzero(sound)
    for step in range(_EXCHANGES):
        if not len(left):
            break
        found, slope = _with_active(gram[left], inner[left], active[left])
        # A share below zero leaves; a column outside, whose share would lower the error if it grew, enters.
        wrong = np.where(active[left], found < -_SLACK, (slope < -_SLACK) & free[left])
        done = ~wrong.any(1) & np.isfinite(found).all(1)
        shares[left[done]] = found[done].clip(0)
        settled[left[done]] = True
        active[left] ^= wrong if step < _JOINT_EXCHANGES else _last_only(wrong)
        emptied = ~active[left].any(1)
        active[left[emptied]] = free[left[emptied]]
        left = left[~done]
    total = shares.sum(1, keepdims=True)
    return np.divide(shares, total, out=shares, where=total > 0), settled


def _last_only(wrong: np.ndarray) -> np.ndarray:
    """Of the marks in each row (n, m) the last one."""
    last: np.ndarray = wrong & (np.cumsum(wrong[:, ::-1], 1)[:, ::-1] == 1)
    return last


def _with_active(gram: np.ndarray, inner: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares (n, m) that add up to 1, zero outside `active`, and the slope (n, m) of the error at those zeros."""
    n, m = inner.shape
    both = active[:, :, None] & active[:, None, :]
    system = np.zeros((n, m + 1, m + 1))
    system[:, :m, :m] = np.where(both, gram, 0)
    system[:, range(m), range(m)] += ~active
    system[:, :m, m] = system[:, m, :m] = active
    right = np.concatenate([np.where(active, inner, 0), np.ones((n, 1))], 1)
    try:
        solved = np.linalg.solve(system, right[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:  # numpy refuses all systems where one is singular, so none counts as settled
        return np.full((n, m), np.nan), np.zeros((n, m))
    shares = np.where(active, solved[:, :m], 0)
    slope = np.einsum("nij,nj->ni", gram, shares) - inner + solved[:, m:]
    return shares, slope


def _one_by_one(table: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Shares (m,) of one problem by Lawson and Hanson, the sum enforced by a heavy row."""
    columns, target = _columns_and_target(table, chosen)
    firm = _SUM_WEIGHT * max(float(np.linalg.norm(columns, axis=0).max()), 1e-300)
    found, _ = nnls(np.vstack([columns, np.full((1, len(chosen)), firm)]), np.append(target, firm))
    shares = np.zeros(len(table) - 1)
    shares[chosen] = found / found.sum() if found.sum() > 0 else 1 / len(chosen)
    return shares


def cone_fit(products: Tensor) -> tuple[Tensor, float]:
    """Factors (m,) >= 0 without further constraint, and their agreement; products as in `simplex_fit`."""
    table = products.double().numpy()
    columns, target = _columns_and_target(table, np.arange(len(table) - 1))
    found, _ = nnls(columns, target)
    return torch.from_numpy(found), float(_agreements(table[None], found[None])[0])


def _columns_and_target(table: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns (k + 1, k) and target (k + 1,) with the given inner products: a triangular root of them."""
    pick = np.append(chosen, len(table) - 1)
    table = table[pick][:, pick]
    scale = np.sqrt(np.maximum(np.diag(table), 1e-300))  # so that columns of any size count alike
    values, vectors = np.linalg.eigh(table / scale[:, None] / scale)
    root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T * scale
    return root[:, :-1], root[:, -1]


def _agreements(table: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(n,) the cosine between the fit and the target, at least 0, from inner products (n, m + 1, m + 1)."""
    m = shares.shape[1]
    length = np.einsum("ni,nij,nj->n", shares, table[:, :m, :m], shares).clip(0)
    size = np.sqrt(length * table[:, m, m].clip(0))
    overlap = np.einsum("ni,ni->n", shares, table[:, :m, m])
    cosine: np.ndarray = np.divide(overlap, size, out=np.zeros_like(size), where=size > 0).clip(0, 1)
    return cosine
