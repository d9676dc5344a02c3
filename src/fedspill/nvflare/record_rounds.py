"""RecordRounds: a filter for the results that an NVFlare server receives; it changes none, and writes a trace."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedspill.adapters.protocol import StatedTraining
from fedspill.failing_line import failed_with
from fedspill.federation.horizontal import Weighting
from fedspill.nvflare.exchange import sender_of
from fedspill.nvflare.job_recording import LOG, JobRecording
from fedspill.nvflare.site_round import ExamplesStated
from fedspill.threat import adversary as named_adversary


class RecordRounds(Filter):
    """`recipe.add_server_input_filter(RecordRounds("digits.trace", lr=0.1, batch_size=16), tasks=["train"])`.

    Training is as without it: results pass unchanged, nothing waits for the disk, and whatever fails here is logged,
    noted in the trace and left behind. What was sent is seen by NVFlare's events.

    to                  the folder of the recording; a name that is taken gets a number
    lr, batch_size, local_epochs, optimizer   how clients train, for attacks that need to know it
    weighting           how clients are weighed in the sum, for the aggregate in the trace
    head                the last linear layer ("fc3"), or its weight; found by itself where the update shows it
    adversary           who the recording is for: what it does not see is not written
    tasks               those that train; the model of any other is not recorded
    examples_key        what clients send their number of examples as, in the metadata of their model; from clients
                        that say their number of steps alone it is taken to be steps times batch size
    leave_out_unsound   block NaN, infinities, wrong shapes, second replies and impossible numbers of examples, which
                        would otherwise be summed; NVFlare then does as for a client that failed
    """

    def __init__(
        self,
        to: str,
        lr: float | None = None,
        batch_size: int | None = None,
        local_epochs: int = 1,
        optimizer: str = "sgd",
        weighting: Weighting = "examples",
        head: str | None = None,
        adversary: str = "curious-server",
        tasks: tuple[str, ...] = ("train",),
        examples_key: str = "examples",
        leave_out_unsound: bool = False,
    ) -> None:
        super().__init__()
        # NVFlare writes a component into the job's configuration by its arguments, which it finds under their names.
        self.to = str(to)
        self.lr, self.batch_size, self.local_epochs, self.optimizer = lr, batch_size, local_epochs, optimizer
        self.weighting, self.head, self.adversary = weighting, head, adversary
        self.tasks = tuple(tasks)
        self.examples_key, self.leave_out_unsound = examples_key, leave_out_unsound
        self._recording = JobRecording(
            Path(to),
            StatedTraining(lr, batch_size, local_epochs, optimizer, weighting),
            head,
            named_adversary(adversary),  # refuses an unknown name here, where its author sees it
            ExamplesStated(examples_key, batch_size, local_epochs),
            leave_out_unsound,
        )

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """A result of a client on its way in. It leaves as it came."""
        sound = True
        try:
            sound = self._recording.note_reply(sender_of(fl_ctx), fl_ctx.get_prop(FLContextKey.TASK_ID), shareable)
        except Exception as error:
            LOG.error("fedspill: a result is not recorded: %s", failed_with(error))
        if not sound and self.leave_out_unsound:
            raise ContentBlockedException("fedspill: the update is unsound; the recording says how")
        return shareable

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        try:
            task = fl_ctx.get_prop(FLContextKey.TASK_NAME)
            if event_type == EventType.AFTER_TASK_DATA_FILTER and task in self.tasks:
                sent = fl_ctx.get_prop(FLContextKey.TASK_DATA)
                self._recording.note_sent(sender_of(fl_ctx), fl_ctx.get_prop(FLContextKey.TASK_ID), sent)
            elif event_type == EventType.END_RUN:
                self._recording.close()
        except Exception as error:
            LOG.error("fedspill: %s is not recorded: %s", event_type.strip("_"), failed_with(error))
