"""Language models: the token that was to be predicted at each place, by least squares on the last layer's gradient.

The state of a text's last token leaves no trace in any layer, because nothing is predicted from it; the token itself is
the last that was to be predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.certificate import Batch, features


def with_targets(attacked: AttackedText, prefixes: Sequence[Sequence[int]]) -> Batch | None:
    """The prefixes with the token that comes behind each, of those that the last layer's gradient is made of."""
    head = attacked.gradients.get("head.weight")
    if head is None:
        return None
    longest = max(len(prefix) for prefix in prefixes)
    padded = [[*prefix, *[prefix[-1]] * (longest - len(prefix))] for prefix in prefixes]
    states = features(attacked, padded)  # (texts, length, width); a decoder does not look ahead
    # Texts that begin alike share the states of that beginning, which so count once.
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for row, prefix in enumerate(prefixes):
        for end in range(1, len(prefix) + 1):
            places.setdefault(tuple(prefix[:end]), (row, end - 1))
    if len(places) >= attacked.width:
        return None
    rows = torch.stack([states[row, end] for row, end in places.values()]).double()
    solved = torch.linalg.lstsq(rows.T.cpu(), head.double().T.cpu(), driver="gelsd").solution  # (places, tokens)
    place_of = {prefix: number for number, prefix in enumerate(places)}
    sequences = []
    for prefix in prefixes:
        targets = solved[place_of[tuple(prefix)]]
        behind = int(targets.argmin())
        if float(targets[behind]) < 0:
            sequences.append([*prefix, behind])
    padding = attacked.net.wte.padding_idx
    sequences = [one for one in sequences if one[-1] != padding]
    missed = (rows.T.cpu() @ solved - head.double().T.cpu()).norm() / head.double().norm().cpu()
    return Batch(sequences, [0] * len(sequences), float(missed)) if sequences else None
