"""A trace as a folder: trace.json, index.jsonl and one safetensors file per round; the truth in a folder of its own.

A large message has a file of its own, which is written as soon as it is said: no round is ever held in memory, and
whoever may see one message can be handed its file. The round's file holds the others; of a round with very many, packs
of them are written before it ends.

Every byte is covered by a check: index.jsonl is a chain (each line carries a hash of its content and of the line before
it), its first line holds the hash of trace.json, and the line of a round holds the hashes of that round's files. The
line that says "finished" comes last, so a recording that was cut short is known as such, and can be opened up to its
last whole round by asking for it.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, final

from torch import Tensor

from fedspill.errors import FedspillError, InputRefused, NotWritten, TraceRefused, UsageError
from fedspill.files import (
    LIMITS,
    FileLimits,
    check_safetensors,
    dump_json,
    parse_json,
    read_bytes,
    read_json,
    read_tensors,
    sha256,
    write_bytes,
    write_tensors,
)
from fedspill.messages import KINDS, Kind, Message
from fedspill.placement import brought_back, on_gpu
from fedspill.tensor_file import TensorFile, bytes_of, is_large
from fedspill.trace import KEEP_ALL, Event, Keep, Origin, Recorder, Trace, Truth

FORMAT = "fedspill-trace"
VERSION = 2
READABLE = (1, 2)  # in version 1 all messages of a round lie in one file
PACK_BYTES = 64 << 20  # of small messages that wait for their round to end (convention)
WRITERS = 4  # large messages from a GPU that are written at a time, and held in memory (convention)
PACK_TENSORS = 20_000  # the same; a file may have 100,000, and its header must be read whole


@final
class FolderRecorder(Recorder):
    """Writes a trace folder round by round; what is under a final name is whole."""

    def __init__(self, folder: Path, protocol: Mapping[str, Any], keep: Keep = KEEP_ALL) -> None:
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UsageError(
                    f"{folder} already exists and is not an empty folder.", remedy="Name another --trace folder."
                )
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise NotWritten(f"{folder} cannot be made: {error.strerror}.") from None
        self._folder = folder
        self._keep = keep
        self._said: list[_Said] = []
        self._waiting: list[int] = []  # places of messages that are in memory still
        self._waiting_bytes = self._waiting_tensors = 0
        self._facts: dict[tuple[Origin, str], Tensor] = {}
        self._events: list[Event] = []
        self._why_dropped: FedspillError | None = None  # the round
        self._background = _BackgroundWriter()
        self._check = ""
        self._rounds = 0
        write_bytes(
            folder / "trace.json", dump_json({"format": FORMAT, "version": VERSION, "protocol": dict(protocol)})
        )
        self._line({"type": "start", "trace": sha256(folder / "trace.json")})

    def say(self, message: Message) -> None:
        """A large message is written now. If it cannot be, its round is dropped when it ends."""
        if self._keep.wants(message) and self._why_dropped is None:
            try:
                self._said.append(self._recorded(message))
                if self._waiting_bytes >= PACK_BYTES or self._waiting_tensors >= PACK_TENSORS:
                    self._pack(message.round)
            except FedspillError as error:
                self._why_dropped = error

    def _recorded(self, message: Message) -> _Said:
        wanted = self._keep.wanted(message)
        if not is_large(wanted):
            self._waiting.append(len(self._said))
            self._waiting_bytes += bytes_of(wanted)
            self._waiting_tensors += len(wanted)
            return _Said(self._keep.cut(message), list(wanted))
        self._refuse_full_disk(bytes_of(wanted))
        name = Path("rounds") / f"{message.round:06d}" / f"{len(self._said):06d}.safetensors"
        kept = replace(message, tensors={})
        if not on_gpu(wanted):
            return _Said(kept, list(wanted), self._write(name, wanted))
        # The copy is ours alone, so it can be written while the GPU goes on.
        return _Said(kept, list(wanted), self._background.begin(partial(self._write, name, brought_back(wanted))))

    def _pack(self, number: int) -> None:
        """Writes what waits into a file of several messages."""
        name = Path("rounds") / f"{number:06d}" / f"pack-{self._waiting[0]:06d}.safetensors"
        self._refuse_full_disk(self._waiting_bytes)
        file = self._write(name, self._waiting_messages())
        for place in self._waiting:
            said = self._said[place]
            self._said[place] = replace(said, message=replace(said.message, tensors={}), pack=file)
        self._waiting, self._waiting_bytes, self._waiting_tensors = [], 0, 0

    def _waiting_messages(self) -> dict[str, Tensor]:
        """The tensors of those in memory, by place and name."""
        waiting = ((place, self._said[place].message.tensors) for place in self._waiting)
        return {f"{place}/{name}": tensor for place, tensors in waiting for name, tensor in tensors.items()}

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None:
        if self._keep.wants_round(origin.round):
            self._facts[origin, name] = value.detach().to("cpu", copy=True)

    def note_event(self, event: Event) -> None:
        self._events.append(event)

    def end_round(self, number: int) -> None:
        """Files first, their line in the index last. A round that cannot be written is dropped whole."""
        try:
            if self._why_dropped is not None:
                raise self._why_dropped
            self._end_round(number)
        except FedspillError:
            self._background.finish()
            shutil.rmtree(self._folder / "rounds" / f"{number:06d}", ignore_errors=True)
            raise
        finally:
            self._said, self._facts, self._events, self._why_dropped = [], {}, [], None
            self._waiting, self._waiting_bytes, self._waiting_tensors = [], 0, 0

    def _end_round(self, number: int) -> None:
        if self._said or self._events:
            self._refuse_full_disk(self._waiting_bytes)
            self._background.finish()
            line: dict[str, Any] = {"type": "round", "round": number}
            line["messages"] = [said.as_json() for said in self._said]
            line["events"] = [{"party": event.party, "what": event.what} for event in self._events]
            facts = {f"{origin.sender}/{name}": value for (origin, name), value in self._facts.items()}
            line["file"] = self._write(Path("rounds") / f"{number:06d}.safetensors", self._waiting_messages())
            line["truth"] = self._write(Path("truth") / f"{number:06d}.safetensors", facts)
            self._line(line)
            self._rounds += 1

    def finish(self) -> None:
        self._line({"type": "finished", "rounds": self._rounds})

    def _write(self, name: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        path = self._folder / name
        try:
            for folder in reversed(name.parents[:-1]):
                (self._folder / folder).mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise NotWritten(f"{path.parent} cannot be made: {error.strerror}.") from None
        return {"name": name.as_posix(), "sha256": write_tensors(path, tensors)}

    def _line(self, content: dict[str, Any]) -> None:
        """Appends a line whole or not at all: half a line would make those behind it unreadable."""
        check = _chain(self._check, content)
        path = self._folder / "index.jsonl"
        try:
            with open(path, "ab", buffering=0, opener=_owner_only) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    rest = memoryview(dump_json({**content, "check": check}) + b"\n")
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    file.truncate(end)
                    raise
        except OSError as error:
            raise NotWritten(f"{path} cannot be written: {error.strerror}.") from None
        self._check = check

    def _refuse_full_disk(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed > 0.9 * free:
            raise UsageError(
                f"Recording this round takes {needed:,} bytes, {free:,} are free under {self._folder}.",
                remedy="Record fewer rounds, clients or layers, or free some space.",
            )


class _BackgroundWriter:
    """Writes in a few threads, which end with each round: processes that are copied later must not have any.

    A thread hashes, or waits until a disk has it all, which others need not wait for.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._begun: list[Future[dict[str, str]]] = []

    def begin(self, write: Callable[[], dict[str, str]]) -> Future[dict[str, str]]:
        """Waits while WRITERS messages are on their way: memory must not fill with what a disk is too slow for."""
        self._threads = self._threads or ThreadPoolExecutor(WRITERS)
        if len(self._begun) == WRITERS:
            wait(self._begun, return_when=FIRST_COMPLETED)
        self._begun = [begun for begun in self._begun if not begun.done()]
        self._begun.append(self._threads.submit(write))
        return self._begun[-1]

    def finish(self) -> None:
        """Whatever has begun is written, or has failed; who asks for the result is told."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._threads, self._begun = None, []


@dataclass(frozen=True, eq=False)
class _Said:
    """A message of the round that is being recorded; without its tensors where these lie in a file already."""

    message: Message
    tensors: list[str]
    file: dict[str, str] | Future[dict[str, str]] | None = None  # of its own, or on its way there
    pack: dict[str, str] | None = None  # that it shares with others

    def as_json(self) -> dict[str, Any]:
        message = self.message
        files = {"file": self.file.result() if isinstance(self.file, Future) else self.file, "pack": self.pack}
        own = {name: file for name, file in files.items() if file is not None}
        return {
            "sender": message.sender,
            "receiver": message.receiver,
            "kind": message.kind,
            "info": dict(message.info),
            "tensors": self.tensors,
            **own,
        }


# The least that numbers of a protocol may be; a learning rate is more than 0.
_NUMBERS = {"classes": 1, "local_lr": 0, "batch_size": 1, "local_epochs": 1, "client_count": 0, "samples": 0}
MOST = 1 << 40
MOST_CLASSES = 100_000  # without a head that has as many rows


@final
class FolderTrace(Trace):
    """A trace read back from its folder; refused whole if any byte of it is not as recorded."""

    def __init__(self, folder: Path | str, *, partial: bool = False, limits: FileLimits = LIMITS) -> None:
        """Checks every file. `partial` opens an unfinished or cut recording up to its last whole round."""
        self._folder = Path(folder)
        self._limits = limits
        if not self._folder.is_dir():
            raise TraceRefused(f"{self._folder} is not a folder.", remedy="Name a folder made by `fedspill simulate`.")
        try:
            header = read_json(self._folder / "trace.json", limits)
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise TraceRefused(f"{self._folder}/trace.json is not the header of a {FORMAT}.")
            if type(header.get("version")) is not int or header["version"] not in READABLE:
                raise TraceRefused(
                    f"{self._folder} has trace version {header.get('version')!r}; "
                    f"this release reads {' and '.join(map(str, READABLE))}.",
                    remedy="Upgrade fedspill.",
                )
            if not isinstance(header.get("protocol"), dict):
                raise TraceRefused(f"{self._folder}/trace.json says nothing of the protocol.")
            self.protocol = header["protocol"]
            self._rounds, cut = self._read_index(partial)
            self._refuse_absurd_protocol()
            self.events = [
                Event(line["round"], event["party"], event["what"]) for line in self._rounds for event in line["events"]
            ]
        except TraceRefused:
            raise
        except InputRefused as error:
            raise TraceRefused(f"Trace {self._folder} is refused: {error.problem}", remedy=error.remedy) from None
        except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
            raise TraceRefused(f"Trace {self._folder} is refused: its index is malformed ({error!r}).") from None
        if cut:
            self.events.append(Event(len(self._rounds), "trace", f"opened up to here only: {cut}"))

    def _refuse_absurd_protocol(self) -> None:
        """What the header says is believed only as far as the messages bear it out: it is read before any of them."""
        for name, least in _NUMBERS.items():
            value = self.protocol.get(name)
            if value is None:
                continue
            sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not sound or value < least or value > MOST or (name == "local_lr" and value == 0):
                raise TraceRefused(f"{self._folder}/trace.json says {name} = {str(value)[:40]}, which cannot be.")
        classes, head = self.protocol.get("classes"), self.protocol.get("head_weight")
        if classes is None or not isinstance(head, str):
            if isinstance(classes, int) and classes > MOST_CLASSES:
                raise TraceRefused(f"{self._folder}/trace.json says {classes:,} classes and names no head.")
            return
        rows, said = self._rows_of(head), f"{self._folder}/trace.json says {classes:,} classes"
        if rows is not None and rows != classes and (rows, classes) != (1, 2):
            raise TraceRefused(f"{said}; its head {head!r} has {rows:,} rows.")
        if rows is None and classes > MOST_CLASSES:
            raise TraceRefused(f"{said}, and no message has its head {head!r}.")

    def _rows_of(self, head: str) -> int | None:
        """The first dimension of that tensor in the first message that has it."""
        for line in self._rounds:
            for index, entry in enumerate(line["messages"]):
                if head in entry["tensors"]:
                    key = head if "file" in entry else f"{index}/{head}"
                    shape = check_safetensors(self._file_of(entry, line), self._limits)[key]["shape"]
                    return int(shape[0]) if len(shape) >= 2 else 0
        return None

    def messages(self, kind: Kind | None = None, *, round: int | None = None) -> Iterator[Message]:
        for line in self._rounds:
            if round in (None, line["round"]):
                yield from self._round(line, kind)

    def _round(self, line: dict[str, Any], kind: Kind | None) -> Iterator[Message]:
        """One read of a file for all wanted messages in it; large ones are mapped when they are looked at."""
        wanted = [(index, entry) for index, entry in enumerate(line["messages"]) if kind in (None, entry["kind"])]
        for path, together in groupby(wanted, key=lambda one: self._file_of(one[1], line)):
            group = list(together)
            if "file" in group[0][1]:
                yield from (self._message(line, entry, self._large(entry)) for _, entry in group)
                continue
            keys = [f"{index}/{name}" for index, entry in group for name in entry["tensors"]]
            stored = read_tensors(path, only=keys, limits=self._limits)
            for index, entry in group:
                tensors = {name: stored[f"{index}/{name}"] for name in entry["tensors"]}
                yield self._message(line, entry, tensors)

    def _message(self, line: Mapping[str, Any], entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Message:
        info = dict(entry["info"])
        return Message(line["round"], entry["sender"], entry["receiver"], entry["kind"], tensors, info)

    def _file_of(self, entry: Mapping[str, Any], line: Mapping[str, Any]) -> Path:
        """Where the tensors of a message lie."""
        file = entry.get("file") or entry.get("pack") or line["file"]
        return self._folder / str(file["name"])

    def _large(self, entry: Mapping[str, Any]) -> TensorFile:
        path = self._folder / entry["file"]["name"]
        found = TensorFile.open(path, self._limits)
        if set(found) != set(entry["tensors"]):
            raise InputRefused(f"{path} has other tensors than the index says.")
        return found.in_order(entry["tensors"])

    def truth(self) -> Truth:
        facts: dict[tuple[Origin, str], Tensor] = {}
        for line in self._rounds:
            for key, value in read_tensors(self._folder / line["truth"]["name"], limits=self._limits).items():
                party, _, name = key.rpartition("/")
                facts[Origin(line["round"], party), name] = value
        return Truth(facts)

    def _read_index(self, partial: bool) -> tuple[list[dict[str, Any]], str]:
        """The lines of the rounds, each checked with its files; and, of a partial reading, why it stops early."""
        path = self._folder / "index.jsonl"
        if path.is_symlink():
            raise TraceRefused(f"{path} is a link.")
        rounds: list[dict[str, Any]] = []
        check, finished = "", False
        lines = read_bytes(path, self._limits).splitlines(keepends=True)
        if not lines:
            raise TraceRefused(f"{path} is empty.")
        for number, raw in enumerate(lines, start=1):
            try:
                line = self._checked_line(raw, check, f"{path} line {number}")
                if finished:
                    raise TraceRefused(f"{path} goes on after its end.")
                check = line["check"]
                if number == 1:
                    self._checked_start(line)
                elif line["type"] == "round":
                    self._checked_round(line)
                    if rounds and line["round"] <= rounds[-1]["round"]:
                        raise TraceRefused(f"{path} line {number}: round {line['round']} is out of order.")
                    rounds.append(line)
                elif line["type"] == "finished" and line["rounds"] == len(rounds):
                    finished = True
                else:
                    raise TraceRefused(f"{path} line {number} is neither a round nor the end.")
            except InputRefused as error:
                if partial and number > 1:
                    return rounds, error.problem
                raise
        if not finished and not partial:
            raise TraceRefused(
                f"Trace {self._folder} is unfinished: {len(rounds)} whole rounds, then it stops.",
                remedy="Open what is whole with --partial.",
            )
        return rounds, "" if finished else "the recording was not finished"

    def _checked_line(self, raw: bytes, check: str, where: str) -> dict[str, Any]:
        line = parse_json(raw, where)
        try:
            canonical = raw == dump_json(line) + b"\n"
        except (ValueError, RecursionError):  # what can be read and not be written: lone surrogates, deep nesting
            canonical = False
        if not canonical or not isinstance(line, dict):
            raise TraceRefused(f"{where} is cut short or altered.")
        content = {key: value for key, value in line.items() if key != "check"}
        if line.get("check") != _chain(check, content):
            raise TraceRefused(f"{where} does not match its check: it was altered after recording.")
        return line

    def _checked_start(self, line: dict[str, Any]) -> None:
        if line["type"] != "start":
            raise TraceRefused(f"The index of {self._folder} does not begin with its start.")
        self._same("trace.json", line["trace"])

    def _checked_round(self, line: dict[str, Any]) -> None:
        if type(line["round"]) is not int or line["round"] < 0:
            raise TraceRefused(f"Trace {self._folder}: {line['round']!r} is no number of a round.")
        for part in ("file", "truth"):
            self._same(line[part]["name"], line[part]["sha256"])
        own = [entry[part] for entry in line["messages"] for part in ("file", "pack") if part in entry]
        for name, expected in dict.fromkeys((file["name"], file["sha256"]) for file in own):
            self._same(name, expected)
        for entry in line["messages"]:
            if entry["kind"] not in KINDS:
                raise TraceRefused(f"Trace {self._folder}: {entry['kind']!r} is no kind of message.")
            words = [entry["sender"], entry["receiver"], *entry["tensors"], *entry["info"]]
            plain = all(isinstance(value, int | float | str) for value in entry["info"].values())
            if not isinstance(entry["tensors"], list) or not plain or not all(isinstance(word, str) for word in words):
                raise TraceRefused(f"Trace {self._folder}: a message of round {line['round']} is malformed.")
        for event in line["events"]:
            if not isinstance(event["party"], str) or not isinstance(event["what"], str):
                raise TraceRefused(f"Trace {self._folder}: an event of round {line['round']} is malformed.")

    def _same(self, name: str, expected: str) -> None:
        """The file of that name is in the folder itself and has the recorded hash."""
        path, inside = self._folder / name, PurePosixPath(name)
        on_the_way = [self._folder / part for part in (inside, *inside.parents) if part.parts]
        if inside.is_absolute() or ".." in inside.parts or any(step.is_symlink() for step in on_the_way):
            raise TraceRefused(f"Trace {self._folder} names a file outside itself: {name!r}.")
        if not path.is_file():
            raise TraceRefused(f"{path} is missing.")
        if path.stat().st_size > self._limits.file_bytes:
            raise TraceRefused(f"{path} has {path.stat().st_size:,} bytes, the limit is {self._limits.file_bytes:,}.")
        if sha256(path) != expected:
            raise TraceRefused(
                f"{path} was altered, cut or replaced after recording: its SHA-256 is not the recorded one."
            )


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _chain(check: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(check.encode() + dump_json(content)).hexdigest()[:32]
