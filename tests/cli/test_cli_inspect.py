"""Inspect: label counts from checkpoints or a gradient of networks that nobody here wrote, or a clear refusal."""

import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from command_line import Run
from torch import Tensor, nn

from fedspill.dataset import Examples
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.labels.checkpoints import inspect_gradient, inspect_update, schedule_from
from fedspill.models.heads import last_linear
from fedspill.observe.find_head import find_head
from fedspill.registry import make
from fedspill.threat import CURIOUS_SERVER, ThreatModel
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining

CLASSES = 7
Tensors = dict[str, Tensor]


class Transformer(nn.Module):
    """Rows of an image as words, as in any tutorial: every layer in front of a layer norm adds up to zero, too."""

    def __init__(self, norm_first: bool = False, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        layer = nn.TransformerEncoderLayer(
            width, 2, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.norm(self.encoder(self.embed(x.squeeze(1))).mean(1)))
        return out


class Words(nn.Module):
    """Pixels as words of a vocabulary: an embedding in front of a layer norm adds up to zero along its width."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(17, 12)
        self.norm = nn.LayerNorm(12)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.norm(self.words((x.flatten(1) * 16).long())).mean(1))
        return result


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "transformer": (Transformer, "classifier"),
    "transformer, norm first": (lambda: Transformer(norm_first=True), "classifier"),
    "words": (Words, "out"),
    "convolutional": (convolutional, "7"),
    "perceptron": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, CLASSES)), "3"),
    "logistic": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)), "1"),
    "square": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, CLASSES)), "3"),
}  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> Examples:
    """128 digits of seven classes, unbalanced."""
    train = make("datasets", "digits").load().train
    keep = torch.nonzero(train.y < CLASSES).flatten()
    chosen: Examples = train.take(keep[torch.argsort(train.y[keep], stable=True)][:128])
    order = torch.randperm(128, generator=torch.Generator().manual_seed(2))
    spread = torch.cat([chosen.y[:64], torch.arange(64) % CLASSES])
    return Examples(chosen.x[order], spread[order])


def network(name: str) -> nn.Module:
    torch.manual_seed(8)
    return NETWORKS[name][0]()


def recorded(model: nn.Module, examples: Examples, training: LocalTraining) -> MemoryTrace:
    """One client, one round, through the library."""
    head = last_linear(model, examples.x[:2])
    protocol = {
        "classes": CLASSES,
        "head_weight": head.weight,
        "head_bias": head.bias,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
    }
    trace = MemoryTrace(protocol)
    Horizontal(model, [examples], Settings(rounds=1, training=training), 5, CLASSES, trace).run()
    return trace


# One who holds a gradient but not the model that it is of.
WITHOUT_MODEL = replace(CURIOUS_SERVER, sees=frozenset(c for c in CURIOUS_SERVER.sees if c.kind != "model"))


def library_counts(trace: MemoryTrace, name: str, threat: ThreatModel = CURIOUS_SERVER) -> list[int]:
    counts: list[int] = make("attacks", name)(trace.view(threat), seed=0).counts[0].tolist()
    return counts


def files(folder: Path, trace: MemoryTrace, change: Callable[[Tensors], Tensors] = dict) -> tuple[Path, Path]:
    """Before and after, as checkpoints that any framework might have written."""
    before = dict(next(trace.messages("model")).tensors)
    update = next(trace.messages("update")).tensors
    after = {name: tensor + update[name] if name in update else tensor for name, tensor in before.items()}
    for name, state in (("before", before), ("after", after)):
        safetensors.torch.save_file(change(state), folder / f"{name}.safetensors")
    return folder / "before.safetensors", folder / "after.safetensors"


def gradient_file(
    folder: Path, model: nn.Module, examples: Examples, change: Callable[[Tensors], Tensors] = dict
) -> Path:
    loss = nn.functional.cross_entropy(model(examples.x), examples.y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    tensors = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    safetensors.torch.save_file({n: t.contiguous() for n, t in change(tensors).items()}, folder / "g.safetensors")
    return folder / "g.safetensors"


def real_counts(examples: Examples) -> list[int]:
    return torch.bincount(examples.y, minlength=CLASSES).tolist()


def written(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


@pytest.mark.parametrize("name", NETWORKS)
def test_two_checkpoints_give_what_the_library_gives(run: Run, tmp_path: Path, digits: Examples, name: str) -> None:
    training = LocalTraining(lr=0.05, batch_size=13, batch_norm="eval")
    trace = recorded(network(name), digits, training)
    before, after = files(tmp_path, trace)
    arguments = ["--lr", 0.05, "--local-steps", 10, "--batch-size", 13, "--samples", 128]
    result = run("inspect", "--before", before, "--after", after, *arguments, "--json", tmp_path / "x.json")
    assert result.code == 0, result.said
    found = written(tmp_path / "x.json")
    assert found["classes"] == CLASSES
    assert found["head"]["name"] == NETWORKS[name][1]
    assert {"name", "classes", "features", "bias", "transposed"} <= set(found["head"])
    assert not found["head"]["transposed"]
    counts = {item["name"]: item["counts"] for item in found["attacks"]}
    assert {"llg", "ebi", "llbg"} < set(counts)
    for attack, listed in counts.items():
        assert listed == library_counts(trace, attack), attack
        assert sum(listed) == 128
    assert found["best"] == {"name": found["best"]["name"], "counts": counts[found["best"]["name"]]}
    assert NETWORKS[name][1] in result.said


def test_inspect_says_how_sure_it_is_what_it_took_for_granted_and_hides_no_class(
    run: Run, tmp_path: Path, digits: Examples
) -> None:
    trace = recorded(network("perceptron"), digits, LocalTraining(lr=0.1, batch_size=32))
    before, after = files(tmp_path, trace)
    words = ["inspect", "--before", str(before), "--after", str(after), "--lr", "0.1", "--batch-size", "32"]
    found = inspect_update(before, after, lr=0.1, batch_size=32)
    assert found.expects is not None
    ended = run(*words)
    assert f"labels expects {round(100 * found.expects)} of 100 labels to be right" in ended.said
    assert "taken for one local step of 32 samples" in ended.said
    told = [line.split() for line in ended.out.splitlines() if line[:1].isdigit()]
    some = [index for index in range(CLASSES) if any(int(counts[index]) for counts in found.counts.values())]
    assert [int(row[0]) for row in told] == some
    assert "taken for" not in run(*words, "--samples", "128").said


@pytest.mark.parametrize("name", NETWORKS)
def test_one_gradient_gives_what_the_library_gives(run: Run, tmp_path: Path, digits: Examples, name: str) -> None:
    model = network(name).eval()
    path = gradient_file(tmp_path, model, digits)
    result = run("inspect", "--gradient", path, "--batch-size", 128, "--json", tmp_path / "x.json")
    assert result.code == 0, result.said
    found = written(tmp_path / "x.json")
    assert found["head"]["name"] == NETWORKS[name][1]
    trace = recorded(model, digits, LocalTraining(algorithm="fedsgd", batch_size=128, batch_norm="eval"))
    for item in found["attacks"]:
        assert item["counts"] == library_counts(trace, item["name"], WITHOUT_MODEL), item["name"]
    # Behind a layer norm the features add up to zero, and what LLG would read is rounding.
    normed = name in ("transformer", "transformer, norm first", "words")
    assert ("llg" in [item["name"] for item in found["attacks"]]) != normed
    assert ("LLG reads nothing" in result.said) == normed


def test_a_head_without_a_bias_behind_a_layer_norm_tells_nothing(run: Run, tmp_path: Path, digits: Examples) -> None:
    layers = [nn.Flatten(), nn.Linear(64, 20), nn.LayerNorm(20), nn.Linear(20, CLASSES, bias=False)]
    path = gradient_file(tmp_path, nn.Sequential(*layers), digits)
    result = run("inspect", "--gradient", path, "--batch-size", 128)
    assert result.code == 2
    assert "nothing there tells labels" in result.said


def test_what_is_read_is_close_to_the_truth(tmp_path: Path, digits: Examples) -> None:
    inspected = inspect_gradient(gradient_file(tmp_path, network("perceptron"), digits), batch_size=128)
    real = real_counts(digits)
    for name in ("llbg", inspected.best):
        common = sum(min(a, b) for a, b in zip(inspected.counts[name].tolist(), real, strict=True))
        assert common / 128 > 0.85, name


def kerasic(tensors: Tensors) -> Tensors:
    """The names and the orientation of Keras: dense_1/kernel:0 of shape (features, classes)."""
    renamed = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        kind = "kernel:0" if part == "weight" else "bias:0"
        renamed[f"dense_{layer}/{kind}"] = tensor.T.contiguous() if part == "weight" else tensor
    return renamed


def flaxen(tensors: Tensors) -> Tensors:
    return {n.replace(".weight", ".kernel"): t.T.contiguous() if t.ndim == 2 else t for n, t in tensors.items()}


def plain_words(tensors: Tensors) -> Tensors:
    return {n.replace("1.weight", "W1").replace("1.bias", "b1").replace("3.weight", "W2").replace("3.bias", "b2"): t
            for n, t in tensors.items()}  # fmt: skip


def underscored(tensors: Tensors) -> Tensors:
    return {n.replace(".", "_"): t for n, t in tensors.items()}


@pytest.mark.parametrize("dialect", [kerasic, flaxen, plain_words, underscored])
def test_names_and_orientation_of_other_frameworks(
    run: Run, tmp_path: Path, digits: Examples, dialect: Callable[[Tensors], Tensors]
) -> None:
    trace = recorded(network("perceptron"), digits, LocalTraining(lr=0.05, batch_size=16))
    before, after = files(tmp_path, trace, dialect)
    arguments = ["--lr", 0.05, "--batch-size", 16, "--samples", 128, "--json", tmp_path / "x.json"]
    result = run("inspect", "--before", before, "--after", after, *arguments)
    assert result.code == 0, result.said
    found = written(tmp_path / "x.json")
    assert found["head"]["bias"]
    assert found["head"]["transposed"] == (dialect in (kerasic, flaxen))
    for item in found["attacks"]:
        assert item["counts"] == library_counts(trace, item["name"]), item["name"]


def test_several_epochs_are_counted_once(tmp_path: Path, digits: Examples) -> None:
    trace = recorded(network("perceptron"), digits, LocalTraining(lr=0.01, batch_size=16, epochs=2))
    before, after = files(tmp_path, trace)
    inspected = inspect_update(before, after, lr=0.01, batch_size=16, samples=128, local_steps=16)
    for name, counts in inspected.counts.items():
        assert counts.tolist() == library_counts(trace, name), name


# Heads.


def test_a_head_can_be_named_and_a_wrong_one_is_noticed(run: Run, tmp_path: Path, digits: Examples) -> None:
    path = gradient_file(tmp_path, network("perceptron"), digits)
    for name in ("3", "3.weight"):
        assert run("inspect", "--gradient", path, "--batch-size", 128, "--head", name).code == 0
    wrong = run("inspect", "--gradient", path, "--batch-size", 128, "--head", "1")
    assert wrong.code == 2
    assert "Layer '1' is not the last layer of a softmax classifier" in wrong.said
    assert run("inspect", "--gradient", path, "--batch-size", 128, "--head", "1", "--unchecked").code == 0
    missing = run("inspect", "--gradient", path, "--batch-size", 128, "--head", "fc")
    assert missing.code == 2
    assert "Linear layers: 1, 3." in missing.said


def test_when_two_layers_look_like_the_last_one_neither_is_taken(run: Run, tmp_path: Path, digits: Examples) -> None:
    """As many classes as the width of the transformer: nothing tells its inner layers from the head."""

    class Wide(Transformer):
        def __init__(self) -> None:
            super().__init__(width=16)
            self.classifier = nn.Linear(16, 16)

    torch.manual_seed(8)
    path = gradient_file(tmp_path, Wide(), digits)
    result = run("inspect", "--gradient", path, "--batch-size", 128)
    assert result.code == 2
    assert "look like the last one" in result.said
    assert "classifier" in result.said
    named = run(
        "inspect", "--gradient", path, "--batch-size", 128, "--head", "classifier", "--json", tmp_path / "x.json"
    )
    assert named.code == 0
    assert written(tmp_path / "x.json")["head"]["name"] == "classifier"


def test_a_head_without_a_bias_is_read_by_its_weights_and_that_is_said(
    run: Run, tmp_path: Path, digits: Examples
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, CLASSES, bias=False))
    path = gradient_file(tmp_path, model, digits)
    result = run("inspect", "--gradient", path, "--batch-size", 128, "--json", tmp_path / "x.json")
    assert result.code == 0
    found = written(tmp_path / "x.json")
    assert not found["head"]["bias"]
    assert "llbg" not in [item["name"] for item in found["attacks"]]
    assert "has no bias" in result.said


def test_the_zero_sum_tells_the_head_from_every_other_layer() -> None:
    rng = torch.Generator().manual_seed(0)
    head = torch.randn(5, 8, generator=rng, dtype=torch.float64)
    head -= head.mean(0)
    bias = head.sum(1)
    layers = {"a.weight": torch.randn(8, 5, generator=rng).double(), "a.bias": torch.randn(8, generator=rng).double()}
    found = find_head({**layers, "b.weight": head, "b.bias": bias})
    assert (found.name, found.transposed) == ("b", False)
    found = find_head({**layers, "b.weight": head.T, "b.bias": bias})
    assert (found.name, found.transposed, tuple(found.weight.shape)) == ("b", True, (5, 8))


# What is not sound is refused, each with its reason, with code 4 (the file) or 2 (the request).


def double_of(dtype: torch.dtype) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
def test_a_gradient_of_any_precision_is_answered_or_refused(
    run: Run, tmp_path: Path, digits: Examples, dtype: torch.dtype
) -> None:
    path = gradient_file(tmp_path, network("perceptron"), digits, double_of(dtype))
    result = run("inspect", "--gradient", path, "--batch-size", 128, "--json", tmp_path / "x.json")
    assert result.code == (2 if dtype is torch.float8_e5m2 else 0), result.said
    if dtype is not torch.float64 and result.code == 0:
        assert f"stored as {str(dtype)[6:]}: counts may be off by rounding" in result.said
    if result.code == 0:
        exact = inspect_gradient(gradient_file(tmp_path, network("perceptron"), digits), batch_size=128)
        counts = {item["name"]: item["counts"] for item in written(tmp_path / "x.json")["attacks"]}
        assert sum(min(a, b) for a, b in zip(counts["llbg"], exact.counts["llbg"].tolist(), strict=True)) >= 124


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_checkpoints_of_half_precision_are_answered_with_a_note_or_refused(
    run: Run, tmp_path: Path, digits: Examples, dtype: torch.dtype
) -> None:
    """A small step may vanish in the rounding of the weights; then the layer no longer adds up to zero."""
    trace = recorded(network("perceptron"), digits, LocalTraining(lr=0.5, batch_size=128))
    before, after = files(tmp_path, trace, double_of(dtype))
    result = run("inspect", "--before", before, "--after", after, "--lr", 0.5, "--batch-size", 128)
    if result.code == 0:
        assert "counts may be off by rounding" in result.said
    else:
        assert result.code == 2
        assert "misses by" in result.said


BAD: dict[str, tuple[Callable[[Tensors], Tensors], int, str]] = {
    "nan": (lambda ts: {**ts, "1.bias": ts["1.bias"] * torch.nan}, 4, "'1.bias' holds NaN or infinite values"),
    "infinity": (lambda ts: {**ts, "3.bias": ts["3.bias"] / 0.0}, 4, "'3.bias' holds NaN or infinite values"),
    "nothing": (lambda ts: {}, 4, "no tensor of floating-point numbers"),
    "whole numbers": (double_of(torch.int32), 4, "no tensor of floating-point numbers"),
    "zeros": (lambda ts: {n: t * 0 for n, t in ts.items()}, 2, "No layer looks like the last layer"),
    "biases only": (lambda ts: {"3.bias": ts["3.bias"]}, 2, "No two-dimensional weight"),
    "no head": (lambda ts: {n: t for n, t in ts.items() if n.startswith("1")}, 2, "No layer looks like"),
    "noise": (lambda ts: {n: torch.randn_like(t) for n, t in ts.items()}, 2, "No layer looks like"),
    "three dimensions": (lambda ts: {n: t[None, None] for n, t in ts.items()}, 2, "No two-dimensional weight"),
    "scalars": (lambda ts: {n: t.sum() for n, t in ts.items()}, 2, "No two-dimensional weight"),
    "one row": (lambda ts: {"fc.weight": ts["3.weight"][:1], "fc.bias": ts["3.bias"][:1]}, 2, "No"),
    "no rows": (lambda ts: {"fc.weight": ts["3.weight"][:0], "fc.bias": ts["3.bias"][:0]}, 2, "No"),
    "no features": (lambda ts: {"fc.weight": ts["3.weight"][:, :0], "fc.bias": ts["3.bias"]}, 2, "No layer looks like"),
    "short bias": (lambda ts: {"fc.weight": ts["3.weight"], "fc.bias": ts["3.bias"][:3]}, 2, "No"),
    "weight transposed": (lambda ts: {**ts, "3.weight": ts["3.weight"].T}, 0, ""),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_gradient_is_answered_or_refused_clearly(run: Run, tmp_path: Path, digits: Examples, what: str) -> None:
    change, code, says = BAD[what]
    path = gradient_file(tmp_path, network("perceptron"), digits, change)
    result = run("inspect", "--gradient", path, "--batch-size", 128)
    assert result.code == code, result.said
    assert says in result.said


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        pickle.dumps({"3.weight": [1.0]}),
        b"PK\x03\x04 a zip",
        b"not a checkpoint at all, but long enough",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
    ],
    ids=["empty", "a byte", "pickle", "zip", "text", "header", "list"],
)
def test_what_is_no_tensor_file_is_refused(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    sound = tmp_path / "sound.safetensors"
    safetensors.torch.save_file({"fc.weight": torch.eye(3)}, sound)
    bad = tmp_path / "x.safetensors"
    for arguments in (
        ["--gradient", bad, "--batch-size", 4],
        ["--before", bad, "--after", sound, "--lr", 0.1],
        ["--before", sound, "--after", bad, "--lr", 0.1],
    ):
        result = run("inspect", *arguments)
        assert result.code == 4, result.said
        assert str(bad) in result.said
    for path in (tmp_path / "none", tmp_path):
        assert run("inspect", "--gradient", path, "--batch-size", 4).code == 4


def test_checkpoints_that_do_not_belong_together_are_refused(run: Run, tmp_path: Path, digits: Examples) -> None:
    before, after = files(tmp_path, recorded(network("perceptron"), digits, LocalTraining()))
    state = safetensors.torch.load_file(after)

    def answer(changed: Tensors) -> tuple[int, str]:
        safetensors.torch.save_file(changed, tmp_path / "other.safetensors")
        other = tmp_path / "other.safetensors"
        result = run("inspect", "--before", before, "--after", other, "--lr", 0.05, "--batch-size", 16)
        return result.code, result.said

    code, said = answer({name: tensor for name, tensor in state.items() if name != "3.bias"})
    assert code == 4
    assert "do not hold the same tensors: 3.bias in one only" in said
    code, said = answer({**state, "3.weight": state["3.weight"].T.contiguous()})
    assert code == 4
    assert "'3.weight' has shape (7, 20) in" in said
    code, said = answer({**state, "3.bias": state["3.bias"][:1]})
    assert code == 4
    code, said = answer(safetensors.torch.load_file(before))
    assert code == 2
    assert "No layer looks like the last layer" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Give --before, --after and --lr, or --gradient"),
        (["--before", "B"], "Give --before"),
        (["--before", "B", "--after", "A"], "Give --before"),
        (["--gradient", "G", "--before", "B"], "Give either --gradient"),
        (["--before", "B", "--after", "A", "--lr", "0"], "learning rate must be positive"),
        (["--before", "B", "--after", "A", "--lr", "-1"], "learning rate must be positive"),
        (["--before", "B", "--after", "A", "--lr", "nan"], "learning rate must be positive"),
        (["--before", "B", "--after", "A", "--lr", "fast"], "fast"),
        (["--before", "B", "--after", "A", "--lr", "1", "--batch-size", "0"], "at least 1"),
        (["--before", "B", "--after", "A", "--lr", "1", "--samples", "0"], "at least 1"),
        (["--before", "B", "--after", "A", "--lr", "1", "--local-steps", "0"], "at least 1"),
        (["--before", "B", "--after", "A", "--lr", "1", "--batch-size", "13", "--samples", "128", "--local-steps", "7"],
         "no whole number of passes"),
        (["--gradient", "G", "--batch-size", "0"], "at least 1"),
    ],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_a_usage_error(
    run: Run, tmp_path: Path, arguments: list[str], says: str
) -> None:
    for name in "BAG":
        safetensors.torch.save_file({"fc.weight": torch.eye(3)}, tmp_path / name)
    result = run("inspect", *(str(tmp_path / word) if word in "BAG" else word for word in arguments))
    assert result.code == 2
    assert says in result.said


def test_the_schedule_follows_from_what_is_given() -> None:
    assert (schedule_from(13, 128, 10).steps, schedule_from(13, 128, 10).epochs) == (10, 1)
    assert schedule_from(13, 128, 20).epochs == 2
    assert schedule_from(13, 128, None).sizes() == [13] * 9 + [11]
    assert schedule_from(13, None, 10).samples == 130
    assert schedule_from(13, None, None).samples == 13


def test_hostile_names_of_layers_cannot_command_the_terminal(run: Run, tmp_path: Path, digits: Examples) -> None:
    path = gradient_file(
        tmp_path, network("perceptron"), digits, lambda ts: {f"\x1b[2J[red]{n}": t for n, t in ts.items()}
    )
    result = run("inspect", "--gradient", path, "--batch-size", 128)
    assert result.code == 0
    assert "\x1b" not in result.out + result.err
    refused = run("inspect", "--gradient", path, "--batch-size", 128, "--head", "fc")
    assert "\x1b" not in refused.out + refused.err


def test_the_batch_size_is_never_guessed(run: Run, tmp_path: Path, digits: Examples) -> None:
    path = gradient_file(tmp_path, network("perceptron"), digits, dict)
    result = run("inspect", "--gradient", path)
    assert result.code == 2
    assert "Expected the batch size" in result.said
