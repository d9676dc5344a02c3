"""An attack before its audit, tried for a moment on a few rounds: one that does not apply says so at once."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import final

import torch

from fedspill.attack import ActiveAttack, Attack, time_limit
from fedspill.attack_run import score_guess
from fedspill.audit.matrix import Pair
from fedspill.audit.sealed_attack import is_foreign
from fedspill.audit.why_not import skipped, unread
from fedspill.deployment.deployment import Deployment
from fedspill.errors import FedspillError, NotApplicable, NotKnown
from fedspill.registry import make
from fedspill.threat import ALTERING
from fedspill.trace import MemoryTrace, Trace
from fedspill.trace_folder import FolderRecorder, FolderTrace

ROUNDS = 2  # of a horizontal federation: what sums tell lies between the models of two rounds
SECONDS = 1.0  # for one attack; a convention. Whoever is still at work then has found something to work on.


@final
class AttackTrial:
    """The first rounds of a deployment, recorded in a folder that is removed at the end, and attacks on them."""

    def __init__(self, deployment: Deployment) -> None:
        """Trains the rounds; errors of the user's own code are raised as they are."""
        self.deployment = _shortened(deployment)
        self._folder = tempfile.TemporaryDirectory(prefix="fedspill-trial-")
        self._knowledge = deployment.knowledge()
        self._altered: dict[frozenset[str], Trace] = {}
        try:
            place = Path(self._folder.name) / "trace"
            keep = replace(deployment.keep(), rounds=None)  # the plan may record rounds that are not reached here
            self.deployment.federation(FolderRecorder(place, deployment.protocol(), keep)).run()
            self._trace = FolderTrace(place)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> AttackTrial:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    @property
    def rounds(self) -> int:
        return self.deployment.settings.rounds

    def why_not(self, pair: Pair) -> str:
        """Why the audit would skip this attack, in a few words; empty where it would run, or fail.

        Code of others is not tried: an audit runs it in a process of its own.
        """
        data = unread(pair, self.deployment)
        if data or is_foreign(pair.attack):
            return data
        try:
            with time_limit(SECONDS, pair.attack):
                return self._tried(pair, make("attacks", pair.attack, pair.given))
        except (NotKnown, NotApplicable) as error:
            return skipped(str(error))
        except FedspillError:  # out of time, or an error that the audit will tell
            return ""

    def _tried(self, pair: Pair, attack: Attack) -> str:
        rng = torch.Generator().manual_seed(0)
        view = self._trace.view(pair.threat, me=pair.threat.me, knowledge=self._knowledge)
        if isinstance(attack, ActiveAttack):
            model = next(self._trace.messages("model"))
            attack.plant(replace(model, round=attack.rounds(view).start), view, rng)
            return ""
        trace: Trace = self._trace
        altering = attack.needs.does & ALTERING
        if altering:
            trace = self._altered_by(altering)
            view = trace.view(pair.threat, me=pair.threat.me, knowledge=self._knowledge)
        guess = attack(view, seed=0)
        truth = trace.truth().beside(self.deployment.shares.clients)
        outcome = score_guess(attack.leak, guess, truth)
        return skipped(outcome.why) if outcome.status == "skipped" else ""

    def _altered_by(self, altering: frozenset[str]) -> Trace:
        """The same rounds with a malicious participant, trained once for all attacks that need this one."""
        if altering not in self._altered:
            heard = MemoryTrace(self.deployment.protocol())
            self.deployment.federation(heard, altering=altering).run()
            self._altered[altering] = heard
        return self._altered[altering]


def _shortened(deployment: Deployment) -> Deployment:
    """With a few rounds: of a vertical federation, where a round is a batch, as many as see every sample once."""
    plan = deployment.plan
    enough = -(-len(deployment.shares.clients[0]) // plan.training.batch_size) if deployment.is_vertical else ROUNDS
    rounds = min(enough, plan.federation.rounds)
    short = plan.model_copy(update={"federation": plan.federation.model_copy(update={"rounds": rounds})})
    return replace(deployment, plan=short, settings=replace(deployment.settings, rounds=rounds))
