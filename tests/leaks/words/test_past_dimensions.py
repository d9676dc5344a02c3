"""More inputs than a layer has dimensions: what a wider layer still tells."""

import pytest
import torch

from fedspill.data.made_up_sentences import MadeUpSentences
from fedspill.leaks.words.exact import recover
from fedspill.leaks.words.exact.attacked_text import AttackedText
from fedspill.leaks.words.exact.cell_tables import CellTables
from fedspill.leaks.words.exact.certificate import LastBlock
from fedspill.leaks.words.exact.encoder_texts import Marks
from fedspill.leaks.words.exact.inner_space import InnerSpace
from fedspill.leaks.words.exact.peeling import Peeled
from fedspill.leaks.words.exact.recover import recover_text
from fedspill.leaks.words.exact.row_space import SPARE, RowSpace, RowSpaces, row_spaces, whitened
from fedspill.leaks.words.exact.token_test import Cells
from fedspill.leaks.words.exact.wide_prefixes import QUICK, THOROUGH, Care
from fedspill.registry import make
from fedspill.trace import Origin
from fedspill.training import gradient

INPUTS, ROWS, INNER = 90, 48, 192


def mixed() -> tuple[torch.Tensor, torch.Tensor, InnerSpace]:
    """Inputs that were there, as many that were not, and the space of fewer rows than inputs."""
    rng = torch.Generator().manual_seed(0)
    there, others = (torch.randn(INPUTS, INNER, generator=rng) for _ in range(2))
    signals = torch.randn(ROWS, INPUTS, generator=rng)
    return there, others, InnerSpace.of(signals @ there, torch.eye(INNER))


def test_inputs_that_were_there_lie_in_the_space_by_rows_of_inputs_and_others_by_a_quarter() -> None:
    there, others, space = mixed()
    inside = space.shares(there)
    outside = space.shares(others)
    assert float(inside.mean()) > ROWS / INPUTS - 0.05
    assert float(outside.mean()) == pytest.approx(ROWS / INNER, abs=0.03)


def test_when_enough_inputs_are_known_the_others_lie_in_the_space_wholly() -> None:
    there, others, space = mixed()
    known = space.knowing(there[: INPUTS - ROWS])
    assert known.known.shape[1] + known.rows.shape[1] == INPUTS
    assert bool((known.shares(there) > 0.999).all())
    assert bool((known.shares(others) < 0.8).all())


def test_a_screen_tells_shares_at_a_part_of_their_price() -> None:
    there, others, space = mixed()
    known = space.knowing(there[:20])
    for inputs in (there, others):
        for many in (INNER, 24):
            directions, counts = known.screen(many, torch.Generator().manual_seed(1))
            inside, every = (inputs @ directions).square().matmul(counts).unbind(1)
            off = (inside / every - known.shares(inputs)).abs()
            assert float(off.max()) < 0.15 if many == INNER else float(off.mean()) < 0.08


def test_an_input_that_was_not_there_explains_no_more_than_chance_beside_those_that_were() -> None:
    there, others, space = mixed()
    support = space.support(torch.cat([there[:80], others[:20]]))  # ten are missing, twenty too many
    assert bool((support[:80] > 2).all())
    assert bool((support[80:] < 1.5).all())


def test_an_input_lies_in_the_space_by_more_than_any_other_also_where_inputs_fill_all_dimensions() -> None:
    rng = torch.Generator().manual_seed(0)
    many, inner, rows = 1200, 512, 128
    there, others = (torch.randn(many, inner, generator=rng) for _ in range(2))
    space = InnerSpace.of(torch.randn(rows, many, generator=rng) @ there, torch.eye(inner))
    told, usual = space.shares(there).mean(), space.shares(others).mean()
    assert float(usual) == pytest.approx(rows / inner, abs=0.01)
    assert float(told) == pytest.approx(rows / inner + (1 - rows / inner) * rows / many, abs=0.02)


def test_a_rank_that_lets_too_many_texts_fit_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    message, texts = past_the_dimensions()
    wrong, right = (RowSpace(torch.eye(64).double()[:, :rank], 64) for rank in (40, 50))
    every = Cells({0: torch.arange(5)})

    def grown(net: object, cells: object, space: RowSpace, *_: object) -> list[list[int]]:
        return texts if space is right else [[number] for number in range(message.width)]

    monkeypatch.setattr(recover, "grow_prefixes", grown)
    rng = torch.Generator().manual_seed(0)
    tables, spaces = CellTables(iter([every])), RowSpaces([wrong, right], False)
    assert texts in list(recover._prefixes(Peeled.of(message), spaces, tables, every, rng, QUICK))


def test_a_pass_that_found_nothing_is_made_again_with_more_care(monkeypatch: pytest.MonkeyPatch) -> None:
    message, _ = past_the_dimensions()
    cares: list[Care] = []

    def nothing(peeled: object, cells: object, rng: object, care: Care) -> list[list[list[int]]]:
        cares.append(care)
        return []

    monkeypatch.setattr(recover, "grow_wide", nothing)
    rows = message.rows_of(recover.FIRST)
    assert rows is not None
    recover_text(message, [rows], Marks(), torch.Generator())
    assert cares == [QUICK, *[THOROUGH] * (len(cares) - 1)]
    assert len(cares) == recover.MOST_TRIES


@pytest.mark.parametrize("many", [40, 60, 66, 90])
def test_a_few_more_inputs_than_dimensions_are_too_many_as_well(many: int) -> None:
    rng = torch.Generator().manual_seed(many)
    gradient = torch.randn(256, many, generator=rng) @ torch.randn(many, 64, generator=rng)
    spaces = row_spaces(whitened(gradient, torch.zeros(256, 64), 0.0))
    assert spaces.crowded == (many > 64 - SPARE)


def past_the_dimensions() -> tuple[AttackedText, list[list[int]]]:
    """A gradient of 14 texts with more prefixes than the model is wide, and the texts."""
    data = MadeUpSentences(sentences=300, words=100, shortest=5, longest=10).load()
    spec = make("models", "gpt", {"hidden": 64, "heads": 2, "layers": 4}).fitted_to(data)
    net = spec.build(data.shape, 2, seed=0).eval()
    batch = data.train.take(torch.arange(14))
    message = AttackedText(Origin(0, "client:0"), net, gradient(net, batch), 14, 1, None, True, True, 0.0)
    return message, [[token for token in row if token] for row in batch.x.tolist()]


def test_texts_past_the_dimensions_are_read_and_certified() -> None:
    message, texts = past_the_dimensions()
    rows, first = message.rows_of("h.0.mlp.c_fc"), message.rows_of("h.0.attn.c_attn")
    assert rows is not None
    assert first is not None
    assert row_spaces(rows).full, "there must be more prefixes than dimensions"
    found = recover_text(message, [first], Marks(), torch.Generator().manual_seed(0))
    assert all(found.certified)
    assert sorted(found.sequences) == sorted(texts)


def test_whole_texts_are_proven_with_their_label_one_by_one_and_no_other_is() -> None:
    message, texts = past_the_dimensions()
    last = LastBlock.of(message)
    assert last is not None
    cut, swapped = texts[0][:-1], [texts[1][1], texts[1][0], *texts[1][2:]]
    found = last.labelled(message, [*texts[:5], cut, swapped])
    assert found.sequences == texts[:5]
    assert all(last.proven(message, found.sequences, found.labels))
    assert not any(last.proven(message, found.sequences, [1 - label for label in found.labels]))
