"""Whether samples explain a whole update: their labels by the last layer, then training on them as the client did.

Only what gives the update down to the rounding of float32 is explained. Batches that are cut at random cannot be
trained on again, so that this is for clients whose every step is all of their samples, by SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedspill.leaks.inputs.errors import CannotRecover
from fedspill.leaks.inputs.exact.certificate import mismatch_up_to_scale
from fedspill.leaks.inputs.exact.leading_layers import module_chain
from fedspill.leaks.inputs.observed_gradients import AttackedMessage
from fedspill.leaks.inputs.search.candidate_gradients import GradientFunction, gradients_of, local_steps_of
from fedspill.leaks.inputs.search.search import one_hot

ROUNDING = 2.0**-24  # of float32, relative
EXPLAINED = 8.0  # times the rounding of float32 weights that an update may differ from the one that was sent
MOST_ROUNDING = 1e-2  # share of an update from which on rounding hides too much to prove anything


@dataclass(frozen=True, eq=False)
class ExplainedUpdate:
    """Labels of the samples, and whether training on them gives the whole update, as far as float32 shows it."""

    labels: Tensor  # (k,)
    explained: bool


def labels_by_last_layer(attacked: AttackedMessage, samples: Tensor) -> Tensor:
    """(k,) the labels of samples (k, *shape): the last layer's gradient is (p - y) times features, and both are known.

    Raises CannotRecover where no linear layer is the last one, or it was frozen or held back.

    Exact after one step; after more of them nearly so, as long as the model did not move far.
    """
    chain = module_chain(attacked.model)
    linear = [place for place, (_, module) in enumerate(chain) if isinstance(module, nn.Linear)]
    if not linear:
        raise CannotRecover("the network has no last linear layer that all goes through")
    last = linear[-1]
    name, head = chain[last]
    if f"{name}.weight" not in attacked.gradients:
        raise CannotRecover(f"the message holds nothing of {name}.weight, so that labels are not told")
    with torch.no_grad():
        features = nn.Sequential(*(module for _, module in chain[:last]))(samples)
        logits = head(features)
    gradient = attacked.gradients[f"{name}.weight"].double() / attacked.step_weight
    sent = torch.linalg.lstsq(features.T, gradient.T).solution * attacked.samples  # (k, logits)
    if logits.shape[1] == 1:
        binary: Tensor = ((logits.sigmoid() - sent)[:, 0] > 0.5).long()
        return binary
    labels: Tensor = (logits.softmax(1) - sent).argmax(1)
    return labels


def can_be_trained_again(attacked: AttackedMessage) -> bool:
    """Whether it is known which samples each step had: all of them, by SGD with or without momentum."""
    known = attacked.plain or attacked.momentum > 0
    return attacked.steps == 1 or (known and attacked.schedule.batch_size >= attacked.samples)


def is_sgd(attacked: AttackedMessage) -> bool:
    """Whether steps are known to be those of SGD, with or without momentum, whatever samples each had."""
    return attacked.lr is not None and (attacked.plain or attacked.momentum > 0)


def trained_again(attacked: AttackedMessage) -> GradientFunction:
    """What training as the client did would send, as a function of samples and labels."""
    model = attacked.as_client_ran
    if attacked.steps == 1 or attacked.lr is None:
        return gradients_of(model)
    every = [slice(0, attacked.samples)] * attacked.steps
    return local_steps_of(model, every, attacked.lr, attacked.momentum)


def explain_update(
    attacked: AttackedMessage, samples: Tensor, classes: int, labels: Tensor | None = None
) -> ExplainedUpdate:
    """For samples (k, *shape): each label by the last layer, or as given; then all of them by the update as a whole.

    A label that was read wrong shows in the whole, and is exchanged.
    """
    labels = labels_by_last_layer(attacked, samples) if labels is None else labels
    if len(samples) != attacked.samples or not can_be_trained_again(attacked):
        return ExplainedUpdate(labels, explained=False)
    trained = trained_again(attacked)
    room = room_for_rounding(attacked)

    def missed(of: Tensor) -> float:
        return mismatch_up_to_scale(trained, attacked.gradient_list, samples, one_hot(of, classes).double())[0]

    least = missed(labels)
    for index in range(len(labels)):
        if least < room:
            break
        for other in range(classes):
            tried = labels.clone()
            tried[index] = other
            if other != int(labels[index]) and (now := missed(tried)) < least:
                labels, least = tried, now
    return ExplainedUpdate(labels, least < room)


def room_for_rounding(attacked: AttackedMessage) -> float:
    """What float32 may leave of the message, relative: the rounding of gradients, and of weights in an update."""
    sent = torch.stack([g.square().sum() for g in attacked.gradient_list]).sum().sqrt()
    relative = 16 * ROUNDING
    if attacked.lr is not None:
        weights = torch.stack([p.detach().square().sum() for p in attacked.model.parameters()]).sum().sqrt()
        relative += ROUNDING * attacked.steps**0.5 * float(weights) / (attacked.lr * float(sent))
    return min(EXPLAINED * relative, MOST_ROUNDING)
