"""A causal language model that evaluates texts: log-likelihoods, and features for MAUVE.

Windows: a text longer than the evaluator's `context` is read in windows of `context` tokens, each
beginning `context - overlap` tokens after the one before. Every token is scored once, in the first
window that holds it, and so sees at least `overlap` tokens (or all there are) before it.
"""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_integer
from cwdfm.metrics.batching import length_batches, pad_right, token_budget
from cwdfm.metrics.hub import DTYPES, Dtype, TextModel, load_text_model

FirstToken = Literal["skip", "start"]
SCORED_AT_ONCE = {"cpu": 2**22, "cuda": 2**27}  # logits in float32


@dataclass(frozen=True)
class EvaluatorLM:
    """Which model evaluates, and how it is run; `load` makes it ready.

    `model` is a hub name, a folder as `save_pretrained` writes it, or a GGUF file. `context` is cut
    to the positions that the model has; `overlap` None is half of it. `device` None is the GPU
    where there is one. `batch_tokens` None is by memory; it has no influence on the law.
    """

    model: str = "gpt2-large"
    dtype: Dtype = "float32"
    context: int = 1024
    overlap: int | None = None
    device: str | None = None
    batch_tokens: int | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)
        check_integer("context", self.context, 2)
        if self.overlap is not None:
            check_integer("overlap", self.overlap)
        if self.batch_tokens is not None:
            check_integer("batch_tokens", self.batch_tokens)

    def load(self) -> "LoadedEvaluatorLM":
        """Read the weights; InputError where they cannot be had."""
        return LoadedEvaluatorLM(self)


class LoadedEvaluatorLM:
    """An evaluator in memory."""

    def __init__(self, config: EvaluatorLM) -> None:
        self.config = config
        self.loaded: TextModel = load_text_model(
            "AutoModelForCausalLM",
            config.model,
            dtype=config.dtype,
            device=config.device,
            revision=config.revision,
        )
        self.context = min(config.context, self.loaded.positions or config.context)
        self.overlap = self.context // 2 if config.overlap is None else config.overlap
        if self.overlap >= self.context:
            raise InputError(
                f"overlap must be below the evaluator LM's context of {self.context} tokens, "
                f"got {self.overlap}; half of it is usual"
            )
        _check_causal(self.loaded)

    def conventions(self) -> dict[str, Any]:
        """What a result must say about its evaluator."""
        return {
            "model": self.config.model,
            "revision": getattr(self.loaded.model.config, "_commit_hash", None),
            "dtype": self.config.dtype,
            "device": str(self.loaded.device),
            "context": self.context,
            "overlap": self.overlap,
        }

    def vocabulary(self) -> dict[str, int]:
        """The evaluator's tokens and their ids."""
        return dict(self.loaded.tokenizer.get_vocab())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of the evaluator, without special tokens."""
        encoded = self.loaded.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return [list(map(int, ids)) for ids in encoded["input_ids"]]

    def start_id(self) -> int:
        """The token that stands before a text: the start token, or the end token without one."""
        tokenizer = self.loaded.tokenizer
        ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        found = next((i for i in ids if i is not None), None)
        if found is None:
            raise InputError(
                f"the evaluator {self.config.model} has neither a start nor an end token to put "
                f"before "
                f"a text; use first_token='skip'"
            )
        return int(found)

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[Sequence[int]], first_token: FirstToken = "skip"
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Negative log-likelihood in nats, and how many tokens it covers, for each sequence of ids.

        first_token "skip" leaves the first token of a sequence unscored, since nothing is before
        it; "start" puts the evaluator LM's start token before it and scores it too.
        """
        check_choice("first_token", first_token, ("skip", "start"))
        start = [self.start_id()] if first_token == "start" else []
        inputs = [[*start, *ids] for ids in sequences]
        windows = [
            (i, *window) for i, ids in enumerate(inputs) for window in self._windows(len(ids))
        ]
        nats_S = torch.zeros(len(inputs), dtype=torch.float64)
        for batch in length_batches([end - a for _, a, end, _ in windows], self._budget()):
            chosen = [windows[k] for k in batch]
            nats = self._score_batch(
                [inputs[i][a:end] for i, a, end, _ in chosen],
                torch.tensor([new - a for _, a, _, new in chosen]),
            )
            nats_S.index_add_(0, torch.tensor([i for i, *_ in chosen]), nats)
        counts_S = np.array([max(0, len(ids) - 1) for ids in inputs], dtype=np.int64)
        return nats_S.numpy(), counts_S

    def _windows(self, length: int) -> Iterator[tuple[int, int, int]]:
        """(begin, end, first scored place) of each window of a sequence."""
        begin, scored = 0, 1
        while scored < length:
            end = min(begin + self.context, length)
            yield begin, end, scored
            begin, scored = begin + self.context - self.overlap, end

    def _score_batch(self, sequences: list[list[int]], first_B: Tensor) -> Tensor:
        """Nats [B], float64, of the tokens from place first_B on."""
        device = self.loaded.device
        ids_BT, mask_BT = pad_right(sequences, device)
        logits_BTV = self.loaded.model(
            input_ids=ids_BT, attention_mask=mask_BT, use_cache=False
        ).logits
        place_T = torch.arange(ids_BT.shape[1], device=device)
        length_B = torch.tensor([len(s) for s in sequences], device=device)
        scored_BT = (place_T >= first_B.to(device)[:, None]) & (place_T < length_B[:, None])
        nats_B = torch.zeros(len(sequences), dtype=torch.float64, device=device)
        elements = SCORED_AT_ONCE.get(device.type, SCORED_AT_ONCE["cpu"])
        for place_k2 in scored_BT.nonzero().split(max(1, elements // logits_BTV.shape[-1])):
            row, column = place_k2.unbind(1)
            logits_kV = logits_BTV[row, column - 1].float()
            nats_k = F.cross_entropy(logits_kV, ids_BT[row, column], reduction="none")
            nats_B.index_add_(0, row, nats_k.double())
        if not bool(nats_B.isfinite().all()):
            raise InputError(
                f"the evaluator {self.config.model} in {self.config.dtype} gave logits that are no "
                f"numbers for {int((~nats_B.isfinite()).sum())} of {len(sequences)} texts; use "
                f"dtype='float32', and check its weights for NaN"
            )
        return nats_B.cpu()

    @torch.inference_mode()
    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The last layer's hidden state at each text's last token [B, D], as MAUVE takes it.

        A text is cut at `context` tokens, as the package does at its own maximum.
        """
        sequences = [ids[: self.context] for ids in self.encode(texts)]
        check_filled(sequences)
        parts: dict[int, Tensor] = {}
        for batch in length_batches([len(s) for s in sequences], self._budget()):
            chosen = [sequences[k] for k in batch]
            ids_BT, mask_BT = pad_right(chosen, self.loaded.device)
            trunk = self.loaded.model.base_model
            hidden_BTD = trunk(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False)[0]
            last_B = torch.tensor([len(s) - 1 for s in chosen], device=hidden_BTD.device)
            row_B = torch.arange(len(chosen), device=hidden_BTD.device)
            parts |= dict(zip(batch, hidden_BTD[row_B, last_B].float().cpu(), strict=True))
        features: NDArray[np.float32] = torch.stack([parts[k] for k in range(len(texts))]).numpy()
        return features

    def _budget(self) -> int:
        if self.config.batch_tokens is not None:
            return self.config.batch_tokens
        model = self.loaded.model
        width = model.get_input_embeddings().num_embeddings * model.dtype.itemsize
        return token_budget(self.loaded.device, width)


def check_filled(sequences: Sequence[Sized]) -> None:
    """Refuse texts without a token: they have no features."""
    empty = [k for k, ids in enumerate(sequences) if not len(ids)]
    if empty:
        raise InputError(
            f"{len(empty)} of {len(sequences)} texts are empty, the first is number {empty[0]}: "
            f"they have no features; leave them out and say so beside the result"
        )


@torch.inference_mode()
def _check_causal(loaded: TextModel) -> None:
    """Refuse a model that looks ahead: it would read the tokens that it is asked to predict."""
    ids_2T = torch.ones(2, 4, dtype=torch.int64, device=loaded.device)
    ids_2T[1, -1] = 2
    name = loaded.model.config.name_or_path or "the evaluator"
    try:
        logits_2TV = loaded.model(input_ids=ids_2T, use_cache=False).logits
    except RuntimeError as error:
        raise InputError(
            f"{name} cannot be run ({(str(error).splitlines() or [''])[0]}); its configuration and "
            f"weights do not belong together: copy it again, or give another evaluator"
        ) from error
    one_TV, two_TV = logits_2TV[:, :-1].float()
    scale = max(1.0, float(one_TV.abs().nan_to_num().max()))
    tolerance = scale * 32 * torch.finfo(loaded.model.dtype).eps
    if not torch.allclose(one_TV, two_TV, rtol=0, atol=tolerance, equal_nan=True):
        raise InputError(
            f"{name} looks ahead: its predictions change with later tokens, and a perplexity would "
            f"mean nothing; give a causal model such as gpt2-large"
        )
