"""Byte-pair tokens and data sets of text."""

import json
from pathlib import Path

import pytest
import torch

from fedspill.data.byte_pairs import BytePairs, _signs
from fedspill.data.made_up_sentences import MadeUpSentences
from fedspill.data.snippets import RottenTomatoes, Tweets
from fedspill.errors import DataMissing, InputRefused, UsageError

MERGES = ["h e", "l l", "he ll", "Ġ w", "o r", "Ġw or", "hell o"]


def write_vocabulary(
    folder: Path, merges: list[str] = MERGES, names: tuple[str, str] = ("vocab.json", "merges.txt")
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [*_signs().values(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(tokens)}
    (folder / names[0]).write_text(json.dumps(numbers), encoding="utf-8")
    (folder / names[1]).write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")])
def test_pairs_are_merged_in_their_order_and_text_comes_back(tmp_path: Path, names: tuple[str, str]) -> None:
    tokens = BytePairs.read(write_vocabulary(tmp_path, names=names))
    vocabulary = tokens.vocabulary()
    found = tokens.encode("hello world")
    assert [vocabulary.pieces[number] for number in found] == [b"hello", b" wor", b"l", b"d"]
    for text in ("hello", " ½ cup²  of naïve 日本語\n\n  it's _x_ 12½ ", "\t", "don't WE'LL"):
        assert vocabulary.text(tokens.encode(text)) == text


def test_padding_and_marks_are_no_text(tmp_path: Path) -> None:
    vocabulary = BytePairs.read(write_vocabulary(tmp_path)).vocabulary(("<begin>", "<end>"))
    begin, end = sorted(vocabulary.marks)
    assert len(vocabulary) == 256 + len(MERGES) + 3
    assert vocabulary.text([begin, 0, end, vocabulary.padding]) == vocabulary.text([0])


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("vocab.json", "[1, 2]", "JSON object"),
        ("vocab.json", '{"a": 0, "b": 7}', "from 0 up"),
        ("vocab.json", '{"a": 0}', "bytes have no token"),
        ("merges.txt", "a b c\n", "two tokens"),
        ("merges.txt", "q q\n", "not in vocab.json"),
    ],
)
def test_a_damaged_vocabulary_is_refused_by_name(tmp_path: Path, name: str, content: str, problem: str) -> None:
    write_vocabulary(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputRefused, match=problem):
        BytePairs.read(tmp_path)


def test_sentences_are_read_cut_and_marked(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path / "text")
    lines = [f"{i}\t{1.5 if i % 2 else -2}\thello world {i}" for i in range(20)]
    (folder / Tweets.file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = Tweets(length=6, marked=True, test_share=0.25).load(tmp_path)
    vocabulary = data.train.vocabulary
    assert vocabulary is not None
    begin, end = sorted(vocabulary.marks)
    assert data.train.x.dtype == torch.int64
    assert data.train.x.shape == (len(data.train), 6)
    assert (data.train.x[:, 0] == begin).all()
    assert (data.train.x[:, -1] == end).all(), "texts that are cut still end with their mark"
    assert vocabulary.text(data.train.x[0].tolist()) == "hello world"[: len(b"hello worl") + 1][:11]
    assert set(data.train.y.tolist()) == {0, 1}
    assert Tweets(most=5, shortest=1).load(tmp_path).train.vocabulary is not None


def test_files_that_are_not_there_or_broken_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="Tweets"):
        Tweets().load(tmp_path)
    folder = write_vocabulary(tmp_path / "text")
    (folder / Tweets.file).write_text("1\t2.0\tfine\nbroken line\n", encoding="utf-8")
    with pytest.raises(InputRefused, match="line 2: expected 3 fields"):
        Tweets().load(tmp_path)


def test_rotten_tomatoes_as_it_comes(data_dir: Path) -> None:
    data = RottenTomatoes(most=500).load(data_dir)
    vocabulary = data.train.vocabulary
    assert vocabulary is not None
    assert len(vocabulary) == 50257
    assert vocabulary.padding == 50256
    first = "The Rock is destined to be the 21st Century's new ''Conan''"
    texts = [vocabulary.text(row) for row in data.train.x[:20].tolist()]
    assert any(text.startswith(first) for text in texts)


def test_made_up_sentences_are_the_same_every_time_and_can_be_learnt() -> None:
    one, other = MadeUpSentences().load(), MadeUpSentences().load()
    assert torch.equal(one.train.x, other.train.x)
    feeling = ((one.train.x > 0) & (one.train.x <= 20)).sum(1) > ((one.train.x > 20) & (one.train.x <= 40)).sum(1)
    told = (one.train.x <= 40).logical_and(one.train.x > 0).any(1)
    assert (feeling[told] == (one.train.y[told] == 0)).float().mean() > 0.95
    with pytest.raises(UsageError):
        MadeUpSentences(words=10).load()
