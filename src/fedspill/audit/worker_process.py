"""A worker process: takes one job after the other from a pipe, and answers each with what came of it.

It speaks frames of JSON, each behind its length; nothing is pickled. What a job prints goes nowhere, since it may be
data. The process ends when its pipe closes, and at once when its owner is gone.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from fedspill.audit.clean_slate import as_if_fresh
from fedspill.audit.jobs import Job, job_from
from fedspill.audit.namespaces import be_unreadable, become_subreaper
from fedspill.audit.other_machine import refuse_other_machine
from fedspill.audit.recordings import Recordings
from fedspill.audit.target import Target
from fedspill.audit.worker import frame, read_frame
from fedspill.errors import FedspillError
from fedspill.failing_line import failed_with, place_of


def serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Takes jobs until their pipe closes; first of all it is told the environment and what is audited."""
    _end_with(os.getppid())
    become_subreaper()
    be_unreadable()
    started = read_frame(orders)
    if started is None:
        return
    os.environ.update(started["environment"])
    target = Target.from_json(started["target"])
    if started["digest"] is not None:
        try:
            refuse_other_machine(target, started["digest"])
        except FedspillError as error:
            answers.write(frame({"refused": str(error)}))
            return
    recordings = Recordings(target, [Path(folder) for folder in started["hidden"]])
    answers.write(frame({"ready": True}))
    while (order := read_frame(orders)) is not None:
        as_if_fresh()
        began = time.perf_counter()
        outcome = _outcome(job_from(order), recordings)
        answers.write(frame({"outcome": outcome, "seconds": time.perf_counter() - began}))


def _outcome(job: Job, recordings: Recordings) -> dict[str, Any]:
    """What came of it; whatever goes wrong is a reason in words that hold no data."""
    try:
        outcome: dict[str, Any] = job.run(recordings).model_dump(mode="json")
        json.dumps(outcome, allow_nan=False)
    except FedspillError as error:
        return {"status": "errored", "why": str(error)}
    except MemoryError:
        return {"status": "errored", "why": "ran out of memory"}
    except SystemExit as error:
        return {"status": "errored", "why": f"called exit {place_of(error)}"}
    except BaseException as error:
        # Not the message: it may quote what was trained on.
        return {"status": "errored", "why": f"raised {failed_with(error)}"}
    return outcome


def _end_with(owner: int) -> None:
    """Ends this process soon after its owner, even when the owner was killed in the middle of a job."""

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(0.1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
