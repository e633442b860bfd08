"""An evaluator LM for smoke tests: a byte-level GPT-2 with random weights."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cwdfm.errors import load_extra
from cwdfm.metrics.text_model import hub_progress_bars

END = "<|endoftext|>"
SIZES = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}


def toy_evaluator(folder: Path) -> str:
    """Create the model in `folder` unless it exists, and return its path."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as parent:
            made = Path(parent) / "model"
            _create(made)
            try:
                made.rename(folder)
            except OSError:  # another process created it first
                if not folder.is_dir():
                    raise
    return str(folder.absolute())


def _create(folder: Path) -> None:
    transformers = load_extra("transformers", "text")
    tokenizers = load_extra("tokenizers", "text")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([END, *letters])}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=END, eos_token=END
    ).save_pretrained(folder)
    config = transformers.GPT2Config(**SIZES, vocab_size=len(vocab), bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng(devices=()), hub_progress_bars(shown=False):
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
