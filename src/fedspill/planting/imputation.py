"""Imputation: what the shadow set alone tells about the attribute, without any access to the model (004)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedspill.planting.targets import Targets

Imputer: TypeAlias = Literal["logistic", "boosting"]


def impute(targets: Targets, shadow: Tensor, imputer: Imputer = "logistic") -> Tensor:
    """(targets,) probability that the attribute is 1, learnt from the known columns of shadow records (n, columns)."""
    known = (targets.known() > 0).cpu()
    secret = (shadow[:, targets.secret_column()] > 0.5).cpu().numpy()
    if secret.all() or not secret.any():
        return torch.full((len(targets),), float(secret.mean()), dtype=torch.float64)
    inputs = shadow.cpu()[:, known].double().numpy()
    if imputer == "logistic":
        learner = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    else:
        learner = HistGradientBoostingClassifier(max_iter=100, learning_rate=0.1, early_stopping=False, random_state=0)
    learner.fit(inputs, secret)
    chances = learner.predict_proba(targets.x.flatten(1).cpu()[:, known].double().numpy())[:, 1]
    return torch.from_numpy(np.asarray(chances, dtype=np.float64))
