"""The evaluator LM: a causal language model that scores texts and computes features for MAUVE.

A text longer than `context` tokens is split into windows of `context` tokens that overlap by
`overlap` tokens. Each token is scored once, in the first window that contains it, and is
therefore conditioned on at least `overlap` tokens, or on all preceding tokens if there are fewer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_integer
from cwdfm.hub import check_remote_code
from cwdfm.metrics.text_model import (
    DTYPES,
    Dtype,
    TextModel,
    length_batches,
    load_text_model,
    pad_right,
    token_budget,
)

FirstToken = Literal["skip", "start"]
LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**27}  # logits converted to float32 at a time


@dataclass(frozen=True)
class EvaluatorLM:
    """Configuration of an evaluator LM; `load` reads its weights.

    - `model`: a hub name, a folder written by `save_pretrained`, or a GGUF file.
    - `revision`: the commit of a hub model, as its full hash; None is the latest.
    - `trust_remote_code`: execute Python code from the model's repository. A hub model then
      requires a `revision`; read the code of that commit first.
    - `context`: tokens per window, at most the number of positions of the model.
    - `overlap`: tokens shared by consecutive windows; None is half of `context`.
    - `device`: "auto" selects a GPU if there is one.
    - `batch_tokens`: tokens per forward pass; the default None depends on the available memory. It
      does not affect the scores.
    """

    model: str = "gpt2-large"
    dtype: Dtype = "float32"
    context: int = 1024
    overlap: int | None = None
    device: str = "auto"
    batch_tokens: int | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)
        check_integer("context", self.context, 2)
        check_remote_code(str(self.model), self.revision, self.trust_remote_code)
        if self.overlap is not None:
            check_integer("overlap", self.overlap)
        if self.batch_tokens is not None:
            check_integer("batch_tokens", self.batch_tokens)

    def load(self) -> "LoadedEvaluatorLM":
        """Load the model; raises InputError if that fails."""
        return LoadedEvaluatorLM(self)


class LoadedEvaluatorLM:
    """An evaluator LM in memory."""

    def __init__(self, config: EvaluatorLM) -> None:
        self.config = config
        self.loaded = load_text_model(
            "AutoModelForCausalLM",
            config.model,
            dtype=config.dtype,
            device=config.device,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
        self.context = min(config.context, self.loaded.max_positions or config.context)
        self.overlap = self.context // 2 if config.overlap is None else config.overlap
        if self.overlap >= self.context:
            raise InputError(
                f"overlap must be smaller than the context of {self.context} tokens, "
                f"got {self.overlap}; half of the context is a common choice"
            )
        _check_causal(self.loaded)

    def conventions(self) -> dict[str, Any]:
        """The settings to report with a result."""
        return self.loaded.conventions() | {"context": self.context, "overlap": self.overlap}

    def vocabulary(self) -> dict[str, int]:
        """The vocabulary of the tokenizer, {token: id}."""
        return dict(self.loaded.tokenizer.get_vocab())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without added special tokens."""
        encoded = self.loaded.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return [list(map(int, ids)) for ids in encoded["input_ids"]]

    def start_id(self) -> int:
        """The id of the start token, or of the end token if there is no start token."""
        tokenizer = self.loaded.tokenizer
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        if start is None and end is None:
            raise InputError(
                f"the evaluator LM {self.config.model} has neither a start token nor an end token "
                f"to prepend; use first_token='skip'",
                fields=("first_token",),
            )
        return int(end if start is None else start)

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[Sequence[int]], first_token: FirstToken = "skip"
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Compute the negative log-likelihood in nats [S] and the number of scored tokens [S].

        With first_token="skip", the first token of a sequence is not scored, since it has no
        context. With "start", the start token is prepended and the first token is scored too.
        """
        check_choice("first_token", first_token, ("skip", "start"))
        start = [self.start_id()] if first_token == "start" else []
        inputs = [[*start, *ids] for ids in sequences]
        windows = [
            (i, *window) for i, ids in enumerate(inputs) for window in self._windows(len(ids))
        ]
        nats_S = torch.zeros(len(inputs), dtype=torch.float64)
        for batch in length_batches([end - begin for _, begin, end, _ in windows], self._budget()):
            group = [windows[k] for k in batch]
            first_B = torch.tensor([scored - begin for _, begin, _, scored in group])
            nats = self._score_batch([inputs[i][a:b] for i, a, b, _ in group], first_B)
            nats_S.index_add_(0, torch.tensor([i for i, *_ in group]), nats)
        counts_S = np.array([max(0, len(ids) - 1) for ids in inputs], dtype=np.int64)
        return nats_S.numpy(), counts_S

    def _windows(self, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield (begin, end, first scored position) of each window of a sequence."""
        begin, scored = 0, 1
        while scored < length:
            end = min(begin + self.context, length)
            yield begin, end, scored
            begin, scored = begin + self.context - self.overlap, end

    def _score_batch(self, sequences: list[list[int]], first_B: Tensor) -> Tensor:
        """The negative log-likelihood [B], float64, of the tokens at positions >= first_B."""
        device = self.loaded.device
        ids_BT, mask_BT = pad_right(sequences, device)
        logits_BTV = self.loaded.model(input_ids=ids_BT, attention_mask=mask_BT).logits
        position_T = torch.arange(ids_BT.shape[1], device=device)
        length_B = torch.tensor([len(s) for s in sequences], device=device)
        scored_BT = (position_T >= first_B.to(device)[:, None]) & (position_T < length_B[:, None])
        nats_B = torch.zeros(len(sequences), dtype=torch.float64, device=device)
        elements = LOGITS_AT_ONCE.get(device.type, LOGITS_AT_ONCE["cpu"])
        for index_k2 in scored_BT.nonzero().split(max(1, elements // logits_BTV.shape[-1])):
            row, column = index_k2.unbind(1)
            logits_kV = logits_BTV[row, column - 1].float()
            nats_k = F.cross_entropy(logits_kV, ids_BT[row, column], reduction="none")
            nats_B.index_add_(0, row, nats_k.double())
        if not bool(nats_B.isfinite().all()):
            raise InputError(
                f"the evaluator LM {self.config.model} in {self.config.dtype} gave NaN or infinite "
                f"scores for {int((~nats_B.isfinite()).sum())} of {len(sequences)} texts; use "
                f"dtype='float32', and check its weights for NaN",
                fields=("dtype",),
            )
        return nats_B.cpu()

    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The last hidden state at the last token of each text [B, D], as MAUVE uses it.

        Texts are truncated to `context` tokens.
        """
        sequences = [ids[: self.context] for ids in self.encode(texts)]
        return self.loaded.features(sequences, self._budget(), _last_state)

    def _budget(self) -> int:
        if self.config.batch_tokens is not None:
            return self.config.batch_tokens
        model = self.loaded.model
        vocab_size = model.get_input_embeddings().num_embeddings
        return token_budget(self.loaded.device, vocab_size * model.dtype.itemsize)


def _last_state(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    return hidden_BTD[torch.arange(len(mask_BT)), mask_BT.sum(1) - 1]


@torch.inference_mode()
def _check_causal(loaded: TextModel) -> None:
    """Raise an error unless predictions are independent of later tokens, as in a causal LM."""
    ids_2T = torch.ones(2, 4, dtype=torch.int64, device=loaded.device)
    ids_2T[1, -1] = 2
    try:
        logits_2TV = loaded.model(input_ids=ids_2T).logits
    except RuntimeError as error:
        reason = str(error).split("\n")[0]
        raise InputError(
            f"{loaded.name} cannot be run ({reason}); its configuration and weights do not match: "
            f"copy the model again, or choose a different one"
        ) from error
    one_TV, two_TV = logits_2TV[:, :-1].float()
    scale = max(1.0, float(one_TV.abs().nan_to_num().max()))
    tolerance = scale * 32 * torch.finfo(loaded.model.dtype).eps
    if not torch.allclose(one_TV, two_TV, rtol=0, atol=tolerance, equal_nan=True):
        raise InputError(
            f"{loaded.name} is not causal: its predictions depend on later tokens, so a perplexity "
            f"would be meaningless; choose a causal model such as gpt2-large"
        )
