"""Datasets and tokenizers. `load` reads every dataset and file format.

data = load("qm9")                                  # a dataset by name
data = load("mine.smi", tokenizer=data.tokenizer)   # a file of molecules, with QM9's vocabulary
data.save("qm9.npz"); load("qm9.npz")               # prepared data, readable without RDKit
data = randomize(data, 8)                           # eight randomized SMILES per molecule

data = load("wikitext-103", length=1024)            # a corpus by name, with its default tokenizer
data = load("novels.tar.xz", tokenizer="gpt2")      # a file of text
prepare(TextFiles.of("novels.tar.xz"), "gpt2", 1024, "novels"); load("novels")
"""

from cwdfm.data.dataset import Split, TokenData
from cwdfm.data.loader import DATASETS, load, reads_text, unknown_dataset
from cwdfm.data.molecules import SmilesFile
from cwdfm.data.randomized import randomize
from cwdfm.data.reference import load_reference
from cwdfm.data.smiles import (
    MoleculeTokenizer,
    SelfiesTokenizer,
    SmilesTokenizer,
    canonical,
    split_smiles,
)
from cwdfm.data.standardize import Standardize
from cwdfm.data.text.corpora import CORPORA, find_corpus
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.data.text.fast_tokenizer import FastTokenizer, find_tokenizer
from cwdfm.data.text.files import TextFiles
from cwdfm.data.text.hub import HubCorpus
from cwdfm.data.text.prepared import is_prepared, prepare
from cwdfm.data.text.row_tokenizer import RowTokenizer
from cwdfm.data.text.tokenizer import END, ByteTokenizer, CharacterTokenizer, TextTokenizer
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json

__all__ = [
    "CORPORA",
    "DATASETS",
    "END",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Corpus",
    "Document",
    "FastTokenizer",
    "HubCorpus",
    "MoleculeTokenizer",
    "RowTokenizer",
    "SelfiesTokenizer",
    "SmilesFile",
    "SmilesTokenizer",
    "Split",
    "Standardize",
    "TextFiles",
    "TextTokenizer",
    "TokenData",
    "Tokenizer",
    "canonical",
    "find_corpus",
    "find_tokenizer",
    "is_prepared",
    "load",
    "load_reference",
    "prepare",
    "randomize",
    "reads_text",
    "split_smiles",
    "tokenizer_from_json",
    "unknown_dataset",
]
