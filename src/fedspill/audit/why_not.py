"""Why an attack was not run, in a few words: what its adversary cannot, and what was not tested."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedspill.audit.matrix import Pair
from fedspill.audit.severity import State
from fedspill.deployment.deployment import OFFERED, Deployment
from fedspill.threat import ALTER_RETURNED, ALTER_TRAINING, made_for, stands_in

# What an adversary may know, short enough for a cell of a table.
KNOWN_AS = {
    "active_features": "its own features",
    "architecture": "the model's code",
    "asked_records": "whole records to ask about",
    "aux_data": "labelled data of the kind",
    "batch_size": "the batch size",
    "class_prior": "how common classes are",
    "client_count": "the number of clients",
    "defense": "the defenses",
    "feature_ranges": "the features' ranges",
    "few_labels": "labels of a few samples",
    "labels_per_client": "labels per client",
    "local_epochs": "the number of epochs",
    "local_lr": "the learning rate",
    "optimizer": "the optimizer",
    "own_data": "data of its own",
    "paired_aux": "what another party holds of a few",
    "party_features": "its own features",
    "samples": "the number of samples",
    "shadow_data": "much data of the kind",
    "table_schema": "the table's columns",
    "targets": "the records looked for",
    "unlabelled_aux": "unlabelled data of the kind",
}
_SEEN_AS = {"returned": "gradients that come back", "embedding": "embeddings", "prediction": "predictions"}
_DONE_AS = {ALTER_TRAINING: "train other than agreed", ALTER_RETURNED: "send back other gradients"}
OF_ANOTHER_KIND = 99  # `lacks` of an attack on vertical federations in a horizontal one, and the other way round
HOLDS_IT = "holds it itself"
OTHERS_RUN_IT = "other adversaries run it"  # a weaker one has the same attack, and its answer counts for both
_UNSAID = re.compile(r"may know .*\((\w+)\), but this trace does not say it")  # as View.knows says it
LONGEST = 110  # characters of a reason in a cell: a sentence; one that is cut in its middle tells nothing


@dataclass(frozen=True)
class WhyNot:
    """The state of an attack that has no score, and the reason in a few words; fewer `lacks` are nearer to a score."""

    state: State
    short: str
    lacks: int


def lacking(pair: Pair) -> WhyNot:
    """Of an attack that its adversary cannot run, or that the plan gives too little for."""
    needs, threat = pair.facts.needed(), pair.threat
    if stands_in(threat) != made_for(needs):
        return WhyNot("not tested", "no attack on this kind of federation", OF_ANOTHER_KIND)
    if threat.name in pair.leak.held_by:
        return WhyNot("not tested", HOLDS_IT, 0)
    unseen = [kinds for kinds in needs.sees if not any(threat.sees_of_others(kind) for kind in kinds)]
    unknown, undone = sorted(needs.knows - threat.knows), sorted(needs.does - threat.does)
    lacks = len(unseen) + len(unknown) + len(undone)
    if unseen:
        return WhyNot("cannot", _unseen(unseen[0]), lacks)
    if undone:
        return WhyNot("cannot", f"may not {_DONE_AS.get(undone[0], 'alter the model')}", lacks)
    if unknown:
        return WhyNot("cannot", f"does not know {KNOWN_AS[unknown[0]]}", lacks)
    absent = sorted(needs.knows & (set(pair.without) | (threat.knows - OFFERED)))
    short = f"the plan does not set aside {KNOWN_AS[absent[0]]}" if absent else OTHERS_RUN_IT
    return WhyNot("not tested", short, 1)


def reason(pair: Pair, deployment: Deployment | None = None) -> str:
    """Why an audit does not run it, as far as one knows without trying; empty where it may run."""
    if pair.lacks():
        not_run = lacking(pair)
        return f"{pair.adversary} {not_run.short}" if not_run.state == "cannot" else not_run.short
    return unread(pair, deployment) if deployment is not None else ""


def unread(pair: Pair, deployment: Deployment) -> str:
    """Why a plan has none of what the attack is about; empty if it has."""
    train = deployment.dataset.train
    absent = {
        "words": "" if train.is_text else "the inputs are no tokens",
        "records": "" if train.schema is not None else "the data are no table",
        "attributes": "" if deployment.plan.targets.attribute else "the plan asks for no attribute",
    }
    return absent.get(pair.facts.leak, "")


def skipped(why: str) -> str:
    """The heart of a reason that an attack gave itself when it looked at what there was."""
    sentence = re.split(r"(?<=[a-z])\. ", why)[0]
    if unsaid := _UNSAID.search(sentence):
        return f"not given: {KNOWN_AS.get(unsaid[1], unsaid[1])}"
    last = re.sub(r"\s*\(.*?\)", "", sentence.rpartition(": ")[2]).rstrip(".")
    last = last if len(last) <= LONGEST else last.split(", ")[0]
    short = last if len(last) <= LONGEST else last[: LONGEST - 4].rpartition(" ")[0] + " ..."
    return short if re.match("[A-Z]{2}", short) else short[:1].lower() + short[1:]  # LOKI is a name, "A ..." is none


def _unseen(kinds: frozenset[str]) -> str:
    if kinds & {"returned", "embedding", "prediction"}:
        return f"sees no {' or '.join(sorted(_SEEN_AS.get(kind, kind) for kind in kinds))}"
    if "aggregate" not in kinds:
        return "sees no single update"
    return "sees no sums" if kinds == {"aggregate"} else "sees no updates"
