"""The process that an attack runs in: it is handed what its adversary sees and knows, and hands back a guess.

Nothing else is in it: no truth, no other messages, no data of clients. It starts in namespaces of its own where the
system has them (`namespaces.seal`), before anything of the attack is imported. It reads frames from its input and
answers each on its output; it is told what to do by `sealed_attack`, which never runs code of attacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedspill.audit.namespaces import die_with_parent, seal

if TYPE_CHECKING:
    from fedspill.audit.sealed_attack import AttackOrder


def main() -> None:
    die_with_parent()
    orders, answers = _own_pipes()
    unsealed = seal([Path(folder) for folder in sys.argv[1:]])
    _serve(orders, answers, unsealed)


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes under numbers of their own; what is printed or read from here on goes to and comes from nowhere."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    return orders, answers


def _serve(orders: BinaryIO, answers: BinaryIO, unsealed: str) -> None:
    import torch

    from fedspill.audit.frames import Frame, read_frame, write_frame
    from fedspill.audit.worker_process import as_if_fresh

    write_frame(answers, Frame({"ready": True, "unsealed": unsealed}))
    held: _Held | None = None
    while (frame := read_frame(orders)) is not None:
        try:
            if frame.head["do"] == "begin":
                as_if_fresh(torch)
                held = _Held(frame.body)
                answer = Frame({"facts": held.facts()})
            else:
                assert held is not None
                answer = held.answer(frame)
        except BaseException as error:
            answer = Frame({"error": _words(error)})
        write_frame(answers, answer)


def _words(error: BaseException) -> dict[str, str]:
    """What went wrong, without the message of an unknown error: it may quote what the attack read."""
    from fedspill.errors import AttackFailed, FedspillError, NotApplicable, NotKnown
    from fedspill.failing_line import failed_with

    if isinstance(error, NotKnown | NotApplicable):
        return {"kind": "skipped", "text": str(error)}
    if isinstance(error, AttackFailed) and error.__cause__ is not None:
        return {"kind": "crashed", "text": str(error)}
    if isinstance(error, FedspillError):
        return {"kind": "errored", "text": str(error)}
    if isinstance(error, MemoryError):
        return {"kind": "errored", "text": "ran out of memory"}
    return {"kind": "errored", "text": f"raised {failed_with(error)}"}


class _Held:
    """One attack and what its adversary has been told so far."""

    def __init__(self, body: bytes) -> None:
        import pickle

        from fedspill.registry import make
        from fedspill.trace import View

        # Written by our own process a moment ago; nothing from outside is ever unpickled.
        order: AttackOrder = pickle.loads(body)  # noqa: S301
        self._attack = make("attacks", order.attack, order.options)
        self._messages: list[Any] = []
        if order.threat is not None:
            self._view = View(self._said, order.threat, order.known, me=order.me, public=order.public)

    def facts(self) -> dict[str, Any]:
        from fedspill.attack import ActiveAttack
        from fedspill.registry import options_of

        attack = self._attack
        return {
            "title": str(attack.title),
            "leak": str(attack.leak.name),
            "needs": {
                "sees": ["|".join(sorted(group)) for group in attack.needs.sees],
                "knows": sorted(attack.needs.knows),
                "does": sorted(attack.needs.does),
            },
            "active": isinstance(attack, ActiveAttack),
            "control": dict(attack.control) if attack.control else None,
            "options": options_of(attack),
        }

    def _said(self, kind: Any, round: int | None) -> Iterator[Any]:
        return (m.copy() for m in self._messages if kind in (None, m.kind) and round in (None, m.round))

    def answer(self, frame: Any) -> Any:
        import pickle

        from fedspill.audit.frames import Frame, pack_guess, seeded

        match frame.head["do"]:
            case "say":
                self._messages.append(pickle.loads(frame.body))  # noqa: S301 - as above
                return Frame({})
            case "rounds":
                planted = self._attack.rounds(self._view)
                return Frame({"rounds": [planted.start, planted.stop]})
            case "plant":
                model, state = pickle.loads(frame.body)  # noqa: S301 - as above
                made = self._attack.plant(model, self._view, seeded(state))
                import safetensors.torch

                tensors = {name: tensor.contiguous().clone() for name, tensor in made.tensors.items()}
                return Frame({"planted": sorted(tensors)}, safetensors.torch.save(tensors))
            case _:
                guess = self._attack(self._view, seed=frame.head["seed"], limit=None)
                packed = pack_guess(guess)
                return Frame({**packed.head, "used": sorted(self._view.used)}, packed.body)


if __name__ == "__main__":
    main()
