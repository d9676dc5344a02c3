"""Which words a client wrote: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.words.dager import Dager
from fedspill.leaks.words.embedding_rows import EmbeddingRows
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.lamp import Lamp
from fedspill.leaks.words.leak import WORDS
from fedspill.leaks.words.metrics import (
    CertifiedSequences,
    ExactSequences,
    Rouge1,
    Rouge2,
    TokenPrecision,
    TokenRecall,
    WordsFound,
)
from fedspill.leaks.words.next_words import NextWords
from fedspill.leaks.words.tag import Tag
from fedspill.leaks.words.words import WordsAttack

__all__ = [
    "WORDS",
    "CertifiedSequences",
    "ClientText",
    "Dager",
    "EmbeddingRows",
    "ExactSequences",
    "Lamp",
    "NextWords",
    "Rouge1",
    "Rouge2",
    "Tag",
    "TokenPrecision",
    "TokenRecall",
    "WordsAttack",
    "WordsFound",
]
