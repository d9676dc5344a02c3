"""What attacks on text find, where they must find nothing, and that no text is vouched for that was not there."""

import time
from dataclasses import replace
from typing import Any

import pytest
import text_kit
import torch
from torch import Tensor, nn

from fedspill.attack_run import Outcome, run_attack
from fedspill.dataset import Examples
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import check_plan
from fedspill.errors import NotApplicable
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.federation.local import train
from fedspill.leaks.words.exact.attacked_text import AttackedText, mean_gradient
from fedspill.leaks.words.exact.cell_tables import settled
from fedspill.leaks.words.exact.certificate import LastBlock, by_head, certain_below, unexplained
from fedspill.leaks.words.exact.encoder_texts import Marks
from fedspill.leaks.words.exact.key_texts import texts_by_keys
from fedspill.leaks.words.exact.recover import RecoveredText, recover_text
from fedspill.leaks.words.exact.row_space import row_spaces
from fedspill.leaks.words.exact.token_test import Cells, TokenTest
from fedspill.leaks.words.guess import ClientText, stacked
from fedspill.leaks.words.language_model import LanguageModel
from fedspill.leaks.words.leak import WORDS
from fedspill.leaks.words.matched.reorderings import reordered
from fedspill.leaks.words.metrics import ExactSequences, WordsFound
from fedspill.leaks.words.moved_rows import moved_rows
from fedspill.messages import Message
from fedspill.models.text_transformer import TextTransformer
from fedspill.registry import make
from fedspill.threat import ADVERSARIES, CURIOUS_SERVER
from fedspill.trace import MemoryTrace, Origin
from fedspill.training import LocalTraining, gradient

FIRST = "h.0.attn.c_attn"


def federation(training: LocalTraining, threat: str, attack: str, rounds: int = 1, **options: Any) -> Outcome:
    """An attack on a federation of clients who write, held against the truth."""
    trace, own = MemoryTrace(), text_kit.clients(marked=options.get("name") == "bert")
    net = text_kit.network(**options)
    Horizontal(net, own, Settings(rounds=rounds, training=training), 3, 2, trace, engine="loop").run()
    trace.protocol |= {
        "classes": 2,
        "batch_size": training.batch_size,
        "local_lr": training.lr,
        "local_epochs": training.epochs,
        "optimizer": {
            "name": training.optimizer,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
        },
    }
    known = {"architecture": lambda: text_kit.network(seed=5, **options)}
    truth = trace.truth().beside(own)
    return run_attack(make("attacks", attack), trace, ADVERSARIES[threat], knowledge=known, seed=1, truth=truth)


def values(outcome: Outcome, *names: str) -> list[float]:
    return [outcome.scores[name].value for name in names]


ONE_STEP = LocalTraining(lr=0.1, batch_size=2)


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(algorithm="fedsgd", batch_size=2),
        LocalTraining(lr=0.1, batch_size=1, epochs=4),
        LocalTraining(lr=0.1, batch_size=1, epochs=4, momentum=0.9),
        LocalTraining(lr=0.1, batch_size=1, epochs=4, weight_decay=0.01),
        LocalTraining(lr=0.001, batch_size=1, epochs=4, optimizer="adam"),
        LocalTraining(lr=0.001, batch_size=1, epochs=4, optimizer="adam", weight_decay=0.01),
    ],
    ids=["fedsgd", "steps", "momentum", "decay", "adam", "adam-decay"],
)
def test_rows_that_moved_are_the_words_whatever_the_optimizer(training: LocalTraining) -> None:
    outcome = federation(training, "curious-server", "embedding-rows")
    assert values(outcome, "token-precision", "token-recall") == [1.0, 1.0]


@pytest.mark.parametrize("threat", ["eavesdropper", "curious-server-secagg"])
def test_the_wire_and_sums_show_rows_too(threat: str) -> None:
    outcome = federation(ONE_STEP, threat, "embedding-rows")
    assert values(outcome, "token-precision", "token-recall") == [1.0, 1.0]
    assert outcome.senders == (["aggregator"] if threat.endswith("secagg") else [f"client:{i}" for i in range(4)])


class OwnModel(nn.Module):
    """As a user would write it: nothing of it is ours."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup = nn.Embedding(120, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lookup(x).mean(1))
        return logits


def own_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(120, (80, 5), generator=rng), torch.randint(2, (80,), generator=rng)
    return x[:60], y[:60], x[60:], y[60:]


def own_federation(factory: str) -> dict[str, Outcome]:
    """What three adversaries read off the rows of a model of a user's own."""
    plan = {
        "data": {"name": "custom", "factory": f"{__name__}:own_data"},
        "model": {"name": "custom", "factory": factory},
        "partition": {"name": "uniform-batch", "batch": 4},
        "federation": {"clients": 6, "rounds": 1},
        "training": {"batch_size": 2, "lr": 0.1},
        "adversary_data": {"per_class": 2},
    }
    deployment = Deployment.of(check_plan(plan, "the test"))
    trace = MemoryTrace(deployment.protocol())
    deployment.federation(trace).run()
    truth, known = trace.truth().beside(deployment.shares.clients), deployment.knowledge()
    attack = make("attacks", "embedding-rows")
    return {
        threat: run_attack(attack, trace, ADVERSARIES[threat], knowledge=known, seed=1, truth=truth)
        for threat in ("curious-server", "eavesdropper", "curious-server-secagg")
    }


class RelativePlaces(nn.Module):
    """An encoder in the manner of T5: places are distances, with an embedding of their own, the words' is `shared`."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.relative = nn.Embedding(120, 8), nn.Embedding(9, 2)
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        many, length = x.shape
        read = self.shared(x)
        query, key, value = self.qkv(read).view(many, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        places = torch.arange(length)
        bias = self.relative(places[:, None] - places + 4).permute(2, 0, 1)
        seen = (query @ key.transpose(-1, -2) + bias).softmax(-1) @ value
        logits: Tensor = self.out((read + seen.transpose(1, 2).reshape(many, length, 8)).mean(1))
        return logits


@pytest.mark.parametrize("model", ["OwnModel", "RelativePlaces"])
def test_a_model_of_ones_own_with_an_embedding_needs_no_configuration(model: str) -> None:
    for outcome in own_federation(f"{__name__}:{model}").values():
        assert values(outcome, "token-precision", "token-recall") == [1.0, 1.0]


def test_where_nobody_holds_other_texts_guessing_draws_from_all_words() -> None:
    """Six clients with four texts of five words hold most of 120 words: a guess at random is often right."""
    score = own_federation(f"{__name__}:OwnModel")["curious-server-secagg"].scores["token-precision"]
    assert 0.4 < score.chance < 0.9


def test_where_the_head_shares_the_embedding_rows_without_a_token_move_alike() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, used = torch.randn(200, 16, generator=rng, dtype=torch.float64), torch.arange(0, 200, 2)[:90]
    change = 0.5 + 0.3 * rows @ torch.randn(16, 16, generator=rng, dtype=torch.float64)
    change = change + 1e-4 * torch.randn(200, 16, generator=rng, dtype=torch.float64)
    change[used] += torch.randn(len(used), 16, generator=rng, dtype=torch.float64)
    change[0] *= 100  # padding is predicted more often than anything else
    assert moved_rows(change, torch.zeros(()), rows).tolist() == used.tolist()
    assert moved_rows(change, torch.zeros(())).tolist() != used.tolist(), "only who knows the rows can tell"


class HashedModel(nn.Module):
    """Words and pairs of words, hashed into one bag."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(100_003, 4, sparse=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        pairs = x[:, :-1] * 7919 + x[:, 1:] * 104_729
        logits: Tensor = self.out(self.bag(torch.cat([x * 65_537, pairs], 1) % 100_003))
        return logits


def test_hashed_words_are_named_by_their_rows() -> None:
    outcomes = own_federation(f"{__name__}:HashedModel")
    assert values(outcomes["curious-server"], "token-precision", "token-recall") == [1.0, 1.0]
    assert values(outcomes["eavesdropper"], "token-recall")[0] < 0.1, "without the code rows are no words"


def test_noise_on_every_row_hides_those_that_moved_less() -> None:
    rng = torch.Generator().manual_seed(0)
    change = torch.randn(500, 32, generator=rng, dtype=torch.float64)
    assert len(moved_rows(change, torch.zeros(()))) <= 2, "noise alone marks next to nothing"
    change[7] += 5
    assert 7 in moved_rows(change, torch.zeros(())).tolist()


def test_a_frozen_embedding_has_no_rows_to_read_but_the_first_layer_tells_the_texts() -> None:
    with pytest.raises(NotApplicable, match="No rows of an embedding stand out"):
        federation(ONE_STEP, "curious-server", "embedding-rows", freeze_embeddings=True)
    outcome = federation(ONE_STEP, "curious-server", "words", freeze_embeddings=True)
    assert values(outcome, "words-found", "exact-sequences", "certified-sequences") == [1.0, 1.0, 1.0]


def test_a_language_model_tells_what_it_was_to_predict() -> None:
    outcome = federation(ONE_STEP, "curious-server", "next-words", objective="next")
    assert values(outcome, "token-precision") == [1.0]
    outcome = federation(ONE_STEP, "curious-server", "words", objective="next", freeze_embeddings=True)
    assert values(outcome, "exact-sequences") == [1.0]


def test_an_encoder_tells_its_texts() -> None:
    single = LocalTraining(algorithm="fedsgd", batch_size=2)
    outcome = federation(single, "curious-server", "words", name="bert", freeze_embeddings=True)
    assert outcome.scores["token-recall"].value == 1.0
    assert outcome.scores["exact-sequences"].value >= 0.75


def test_keys_and_queries_tell_an_encoders_texts_where_attention_is_sharp() -> None:
    """Four texts at once, with weights that look at single tokens, as trained ones do."""
    data = text_kit.sentences(marked=True).train
    net = text_kit.network(name="bert", freeze_embeddings=True, hidden=128)
    assert isinstance(net, TextTransformer)
    with torch.no_grad():
        for block in net.h:
            block.attn.c_attn.weight *= 8
    batch = data.take(torch.arange(4))
    sent = gradient(net, batch)
    marks = Marks.seen_in(data.x, net.wte.padding_idx)
    message = AttackedText(Origin(0, "client:0"), net, sent, 4, 1, None, True, True, 0.0)
    (first, *_), (fed, *_) = (row_spaces(message.rows_of(name)).likely for name in (FIRST, "h.0.mlp.c_fc"))
    cells = TokenTest.of(net, first, torch.Generator().manual_seed(0)).within(1e-3, 10_000)
    real = [[token for token in row if token != net.wte.padding_idx] for row in batch.x.tolist()]
    found = texts_by_keys(message, message.samples, cells, fed, marks)
    assert all(one in real for one in found)
    assert len(found) >= 3, "only a text that shares its words with others may be missing"


@pytest.mark.parametrize("steps", [3, 10])
def test_several_steps_on_all_samples_are_done_again_to_certify(steps: int) -> None:
    training = LocalTraining(lr=0.01, batch_size=2, epochs=steps)
    outcome = federation(training, "curious-server", "words", freeze_embeddings=True)
    assert values(outcome, "token-recall", "certified-sequences", "exact-sequences") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("training", "rounds"),
    [
        (LocalTraining(lr=0.5, batch_size=2, epochs=3), 3),
        (LocalTraining(algorithm="fedsgd", lr=0.5, batch_size=2), 10),
    ],
    ids=["updates", "gradients"],
)
def test_adapters_show_more_words_the_more_rounds_are_read(training: LocalTraining, rounds: int) -> None:
    """Also where more messages were sent than are looked at: all of a client's are read together."""
    few, many = (
        federation(training, "curious-server", "words", so_many, lora_rank=8, std=0.1).scores["token-recall"].value
        for so_many in (1, rounds)
    )
    assert many > few + 0.3


@pytest.mark.parametrize(("rank", "found"), [(24, True), (4, False)])
def test_the_first_gradient_of_an_adapter_tells_a_text_that_is_shorter_than_its_rank(rank: int, found: bool) -> None:
    single = LocalTraining(algorithm="fedsgd", batch_size=1)
    outcome = federation(single, "curious-server", "words", lora_rank=rank)
    if found:
        wanted = values(outcome, "token-precision", "token-recall", "exact-sequences", "certified-sequences")
        assert wanted == [1.0, 1.0, 1.0, 1.0]
    else:
        assert outcome.scores["token-recall"].value < 0.2


def attacked(batch: int, seed: int, **options: Any) -> tuple[AttackedText, list[list[int]]]:
    data = text_kit.sentences().train
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:batch]
    net = text_kit.network(freeze_embeddings=True, **options)
    assert isinstance(net, TextTransformer)
    sent = gradient(net, data.take(chosen))
    real = [[token for token in row if token] for row in data.x[chosen].tolist()]
    return AttackedText(Origin(0, "client:0"), net.eval(), sent, batch, 1, None, True, True, 0.0), real


def stepped(batch: int, seed: int, training: LocalTraining) -> tuple[AttackedText, list[list[int]], list[int]]:
    """An update of local steps on all texts of a batch, these texts, and their labels."""
    message, real = attacked(batch, seed)
    data = text_kit.sentences().train
    chosen = data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:batch])
    start = {name: tensor.detach().clone() for name, tensor in message.net.state_dict().items()}
    sent = train(message.net, start, chosen, training, torch.Generator().manual_seed(0))
    message.net.load_state_dict(start)
    message.net.eval()
    steps, names = training.epochs, message.gradients
    lengths = [sum(float(t[name].double().square().sum()) for name in names) ** 0.5 for t in (start, sent)]
    moved = {name: sent[name] / -(training.lr * steps) for name in names}
    rounding = 2.0**-24 * lengths[0] / lengths[1]
    told = replace(message, gradients=moved, steps=steps, lr=training.lr, rounding=rounding)
    return told, real, chosen.y.tolist()


def test_the_first_block_tells_labels_that_the_head_has_learnt_by_then() -> None:
    message, real, labels = stepped(6, 4, LocalTraining(lr=0.05, batch_size=6, epochs=20))
    batch = by_head(message, real)
    assert batch is not None
    assert (batch.sequences, batch.labels) == (real, labels)
    of_head = by_head(replace(message, steps=1), real)  # as if the mean of the steps were a single one
    assert of_head is not None
    assert (of_head.sequences, of_head.labels) != (real, labels)


def test_words_that_swap_places_are_told_also_where_float32_has_rounded_the_update() -> None:
    message, real, labels = stepped(6, 4, LocalTraining(lr=2e-5, batch_size=6))
    assert 1e-3 < message.rounding < 1e-2
    swapped = [[real[0][1], real[0][0], *real[0][2:]], *real[1:]]
    assert unexplained(message, real, labels) < certain_below(message) < unexplained(message, swapped, labels)
    assert unexplained(message, swapped, labels) < 10 * message.rounding, "rounding hides it unless it is done again"


def test_tokens_are_taken_where_a_looser_test_adds_none() -> None:
    """A strict test may have found some, and the loosest finds many that were not there."""
    tables = [Cells({0: torch.arange(many)}) for many in (2, 2, 90, 90, 4000)]
    assert settled(tables) is tables[2]
    assert settled(tables[:1]) is tables[0]


def recovered(message: AttackedText, seed: int = 0) -> RecoveredText:
    first = message.rows_of(FIRST)
    assert first is not None
    return recover_text(message, [first], Marks(), torch.Generator().manual_seed(seed))


def altered(message: AttackedText, scale: float) -> AttackedText:
    rng = torch.Generator().manual_seed(1)
    size = {name: scale * float(t.square().mean().sqrt()) for name, t in message.gradients.items()}
    noisy = {n: t + size[n] * torch.randn(t.shape, generator=rng) for n, t in message.gradients.items()}
    return replace(message, gradients=noisy)


def noisy(message: AttackedText, sigma: float) -> AttackedText:
    """With noise of one size on every number, as clients add it."""
    rng = torch.Generator().manual_seed(1)
    return replace(
        message, gradients={n: t + sigma * torch.randn(t.shape, generator=rng) for n, t in message.gradients.items()}
    )


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_noise_is_measured_by_what_a_layer_norm_forbids(name: str) -> None:
    message, _ = attacked(3, 4, name=name)
    first = message.first
    norms = (first.ln_1, first.ln_2) if message.net.causal else (message.net.ln_e, first.ln_1)
    assert all(message.noise_of(layer) == 0 for layer in (FIRST, "h.0.mlp.c_fc"))
    for sigma in (1e-6, 1e-3, 1.0):
        found = [noisy(message, sigma).noise_of(layer) for layer in (FIRST, "h.0.mlp.c_fc")]
        assert found == pytest.approx([sigma, sigma], rel=0.15)
    with torch.no_grad():  # learnt scales and shifts change nothing
        for norm in norms:
            norm.weight += 0.3 * torch.rand(norm.weight.shape)
            norm.bias += 0.3 * torch.randn(norm.bias.shape)
    data = text_kit.sentences(marked=name == "bert").train.take(torch.arange(3))
    message = replace(message, gradients=gradient(message.net, data))
    assert message.noise_of(FIRST) == 0
    assert noisy(message, 1e-4).noise_of(FIRST) == pytest.approx(1e-4, rel=0.15)


def test_light_noise_does_not_hide_texts_and_strong_noise_is_said() -> None:
    message, real = attacked(3, 4)
    found = recovered(noisy(message, 1e-7))
    assert sorted(found.sequences) == sorted(real)
    assert all(found.certified)
    hidden = recovered(noisy(message, 1e-1))
    assert not any(hidden.certified)
    assert hidden.why.startswith("noise hides")


def test_a_search_ends_with_its_effort_and_says_so() -> None:
    """More inputs than the model is wide, and nothing tells the tokens: all of them would be tried everywhere."""
    message, _ = attacked(16, 1, hidden=32)
    first = message.rows_of(FIRST)
    assert first is not None
    assert row_spaces(first).crowded
    begin = time.process_time()
    found = recovered(replace(message, patience=1e-7))
    assert time.process_time() - begin < 5
    assert found.why == "the search was ended before it was through: it would take too long"
    assert not any(found.certified)


def test_texts_are_shown_where_data_may_be_shown_and_nowhere_else() -> None:
    trace, own = MemoryTrace(), text_kit.clients()
    single = LocalTraining(algorithm="fedsgd", batch_size=2)
    Horizontal(text_kit.network(), own, Settings(rounds=1, training=single), 3, 2, trace, engine="loop").run()
    trace.protocol |= {"classes": 2, "batch_size": 2}
    known, truth = {"architecture": lambda: text_kit.network(seed=5)}, trace.truth().beside(own)
    vocabulary = own[0].vocabulary
    assert vocabulary is not None
    written = sorted(vocabulary.text(row).strip() for row in own[0].x.tolist())
    for attack, certified in (("words", True), ("embedding-rows", False)):
        for show in (True, False):
            outcome = run_attack(
                make("attacks", attack), trace, CURIOUS_SERVER, knowledge=known, seed=1, truth=truth, show_data=show
            )
            if show:
                (shown,) = outcome.evidence
                assert (shown["kind"], shown["private"], sorted(shown["written"])) == ("texts", True, written)
                assert [text.split() for text in shown["read"]] == [text.split() for text in shown["written"]]
                assert shown["certified"] == [certified, certified]
            assert any(text in repr(outcome) for text in written) == show


def test_a_recording_without_truth_tells_how_much_was_read_and_no_word() -> None:
    guess = ClientText(
        [Origin(0, "client:3"), Origin(1, "client:3")],
        [torch.tensor([5, 17]), torch.tensor([17])],
        [stacked([[5, 17], [17]]), stacked([[17]])],
        [torch.tensor([True, False]), torch.tensor([True])],
    )
    reading = WORDS.read(guess)
    assert reading.tables[0].rows == [["client:3", 2, 3, 3, 2]]
    assert (reading.expects, reading.withheld != "") == (pytest.approx(2 / 3), True)
    assert "3 words and 3 texts, 2 of these with a certificate" in reading.summary


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("batch", [1, 3, 6, 12])
def test_no_text_is_certified_that_was_not_there(batch: int, scale: float) -> None:
    """With too many texts, and with noise of every size, certificates may be missing but are never false."""
    for seed in range(3):
        message, real = attacked(batch, seed)
        found = recovered(altered(message, scale) if scale else message)
        sure = [one for one, good in zip(found.sequences, found.certified, strict=True) if good]
        assert all(one in real for one in sure)
        if not scale and batch <= 3:
            assert sorted(sure) == sorted(real)


def test_the_certificate_tells_a_wrong_order_and_a_wrong_label() -> None:
    message, real = attacked(2, 4)
    data = text_kit.sentences().train
    labels = [int(data.y[(data.x[:, : len(one)] == torch.tensor(one)).all(1).nonzero()[0]]) for one in real]
    swapped = [[real[0][1], real[0][0], *real[0][2:]], real[1]]
    assert unexplained(message, real, labels) < 1e-5
    assert unexplained(message, swapped, labels) > 1e-2
    assert unexplained(message, real, [1 - labels[0], labels[1]]) > 1e-2
    last = LastBlock.of(message)
    assert last is not None
    assert last.texts == 2
    assert last.proven(message, real, labels) == [True, True]
    assert last.proven(message, [real[0], *real], [labels[0], *labels]) == [True, False, True]
    assert last.proven(message, swapped, labels) == [False, True]
    assert last.proven(message, real, [1 - labels[0], labels[1]]) == [False, True]


def test_a_language_model_goes_on_as_texts_do_and_never_round_in_a_circle() -> None:
    texts = [[1, 2, 3, 4, 5]] * 3 + [[6, 2, 7, 8, 9]] + [[1, 2, 1, 2, 1]]
    model = LanguageModel.of(texts)
    assert model.length == 5
    assert model.texts(2) == [[1, 2, 3, 4, 5], [6, 2, 7, 8, 9]]
    (circle,) = LanguageModel.of([[1, 2, 1, 2, 1, 2, 1, 2]]).texts(1)
    threes = list(zip(circle, circle[1:], circle[2:], strict=False))
    assert len(set(threes)) == len(threes)
    assert model.surprise([1, 2, 3, 4, 5]) < model.surprise([1, 2, 7, 8, 9]) < model.surprise([5, 4, 3, 2, 1])
    assert LanguageModel.of([]).texts(3) == []


def test_guessing_is_the_better_of_what_is_common_and_what_is_likely_to_be_written() -> None:
    """Texts that all begin and go on alike are guessed by the model; one that is drawn at random may be another."""
    alike, other = [[1, 2, 3, 4]] * 30, [[5, 6, 7, 8]] * 10
    clients = [Examples(torch.tensor([one]), torch.zeros(1, dtype=torch.int64)) for one in alike + other]
    trace = MemoryTrace()
    for number in range(8):
        trace.note_truth(Origin(0, f"client:{number}"), "used_samples", torch.tensor([[number, 0]]))
    trace.end_round(0)
    of = [Origin(0, f"client:{number}") for number in range(8)]
    nothing = [torch.zeros(0, dtype=torch.int64)] * 8
    guess = ClientText(of, nothing, [stacked([])] * 8, [torch.zeros(0, dtype=torch.bool)] * 8)
    truth = trace.truth().beside(clients)
    assert ExactSequences().measure(guess, truth).chance.mean() == 1.0
    assert WordsFound().measure(guess, truth).chance.mean() == 1.0


@pytest.mark.parametrize("objective", ["class", "next"])
def test_what_texts_would_have_sent_is_reckoned_a_few_at_a_time(objective: str) -> None:
    net, most = text_kit.network(objective), []
    assert isinstance(net, TextTransformer)
    batch = text_kit.sentences().train.take(torch.arange(21))
    whole = gradient(net, batch)
    net.register_forward_pre_hook(lambda module, given: most.append(len(given[0])))
    found = mean_gradient(net, batch)
    assert max(most) <= 8
    assert sum(most) == 21
    for name, tensor in whole.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-7), name


def test_dager_reads_what_fits_into_the_dimensions_and_vouches_for_nothing() -> None:
    single = LocalTraining(algorithm="fedsgd", batch_size=2)
    outcome = federation(single, "curious-server", "dager", freeze_embeddings=True)
    assert outcome.scores["exact-sequences"].value >= 0.75
    message, _ = attacked(40, 0)
    assert not any(make("attacks", "dager").recover(message).certified)


@pytest.mark.parametrize(("attack", "options"), [("tag", {"steps": 150}), ("lamp", {"turns": 2, "starts": 5})])
def test_embeddings_are_sought_until_their_gradients_match(attack: str, options: dict[str, Any]) -> None:
    own = text_kit.clients(number=1, size=1)
    single, trace = LocalTraining(algorithm="fedsgd", batch_size=1), MemoryTrace()
    Horizontal(text_kit.network(), own, Settings(rounds=1, training=single), 3, 2, trace, engine="loop").run()
    trace.protocol |= {"classes": 2, "batch_size": 1, "local_lr": 0.1, "local_epochs": 1, "optimizer": "sgd",
                       "head_weight": "head.weight", "head_bias": "head.bias", "algorithm": "fedsgd"}  # fmt: skip
    known = {"architecture": lambda: text_kit.network(seed=5), "batch_size": 1, "local_lr": 0.1, "samples": 1}
    truth = trace.truth().beside(own)
    outcome = run_attack(make("attacks", attack, options), trace, CURIOUS_SERVER, knowledge=known, seed=1, truth=truth)
    assert outcome.scores["token-recall"].value >= 0.75
    proof = outcome.scores["words-found"].proof
    assert proof is not None
    assert proof.proven + proof.refuted == 0, "nothing vouches for a match"


def test_what_matching_cannot_do_is_said_at_once() -> None:
    with pytest.raises(NotApplicable, match="every next token"):
        federation(ONE_STEP, "curious-server", "tag", objective="next")
    with pytest.raises(NotApplicable, match="one step on at most 2 texts"):
        federation(LocalTraining(lr=0.1, batch_size=1, epochs=4), "curious-server", "lamp")


def test_reorderings_lose_no_place() -> None:
    rng = torch.Generator().manual_seed(0)
    orders = [reordered(6, rng).tolist() for _ in range(200)]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len(set(map(tuple, orders))) > 20
    assert reordered(1, rng).tolist() == [0]


def test_reports_hold_no_word_of_a_text() -> None:
    outcome = federation(ONE_STEP, "curious-server", "words")
    vocabulary = text_kit.sentences().train.vocabulary
    assert vocabulary is not None
    written = outcome.model_dump_json()
    assert not any(piece.decode().strip() in written for piece in vocabulary.pieces[1:50])


def message_of(tensors: dict[str, Tensor]) -> Message:
    return Message(0, "client:0", "server", "gradient", tensors, {"examples": 2})


def test_an_image_network_is_skipped_at_once() -> None:
    net = make("models", "mlp", {"widths": [4]}).build((6,), 2, seed=0)
    trace = MemoryTrace.of([message_of({name: torch.ones_like(p) for name, p in net.named_parameters()})])
    for name in ("embedding-rows", "words", "dager", "next-words"):
        with pytest.raises(NotApplicable, match=r"no embedding|predicts no tokens"):
            make("attacks", name)(trace.view(CURIOUS_SERVER, knowledge={"architecture": lambda: net}), seed=1)
