"""`Generated`, the result of text generation, and `Results`, which collects it step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.language.model import LanguageModel
from cwdfm.language.options import Options
from cwdfm.language.prompts import Prompt
from cwdfm.language.session import Canvas
from cwdfm.source import MaskSource

OPEN = "\u2591"  # stands for a token that has not been drawn yet in the texts of a callback


@dataclass(frozen=True)
class Generated:
    """Generated texts, in the order of the prompts."""

    texts: list[str]  # without prompts and special tokens; the complete text for a template
    tokens: list[list[int]]  # the new tokens before the end; all tokens for a template
    evaluations: Tensor  # [B] int64: number of network evaluations
    new_tokens: Tensor  # [B] int64: number of tokens that were generated and kept

    @property
    def tokens_per_forward(self) -> Tensor:
        """New tokens per network evaluation, float64 [B]."""
        return self.new_tokens.double() / self.evaluations.clamp(min=1)


class Results:
    """The current tokens of all texts during generation."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Prompt], options: Options) -> None:
        self.model, self.prompts, self.options = model, prompts, options
        self.tokens: list[list[int]] = [[] for _ in prompts]  # -1: not drawn yet
        self.evaluations = torch.zeros(len(prompts), dtype=torch.int64, device=model.device)

    def store(self, canvas: Canvas, done: int) -> None:
        """Copy the tokens of a canvas in which the columns before `done` are final."""
        tokens_BN = self.model.swap(canvas.tokens)
        if isinstance(self.model.source, MaskSource):
            open_BN = canvas.tokens == self.model.source.mask_id
        else:
            column = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
            open_BN = ~canvas.fixed & (column >= done)
        rows = tokens_BN.masked_fill(open_BN, -1).tolist()
        padding = (~canvas.valid).sum(1).tolist()
        for number, row, pad in zip(canvas.number.tolist(), rows, padding, strict=True):
            prompt = self.prompts[number]
            start = 0 if prompt.is_template else len(prompt.before)
            size = prompt.length if prompt.is_template else prompt.new
            self.tokens[number] = row[pad + start : pad + start + size]

    def text(self, number: int) -> str:
        """The current text of a prompt."""
        parts: list[list[int]] = [[]]
        for token in self._kept(number):
            if token < 0:
                parts.append([])
            else:
                parts[-1].append(token)
        text = OPEN.join(map(self.model.decode, parts))
        ends = [text.find(stop) for stop in self.options.stop_texts if stop in text]
        return text[: min(ends)] if ends else text

    def has_stop_text(self, number: int) -> bool:
        """Whether the current text contains a stop string."""
        known = [token for token in self._kept(number) if token >= 0]
        text = self.model.decode(known)
        return any(stop in text for stop in self.options.stop_texts)

    def finish(self) -> Generated:
        """The result, once all texts are complete."""
        texts = [self.text(number) for number in range(len(self.prompts))]
        tokens = [self._of_text(number, text) for number, text in enumerate(texts)]
        new = [
            prompt.free if prompt.is_template else len(row)
            for prompt, row in zip(self.prompts, tokens, strict=True)
        ]
        return Generated(texts, tokens, self.evaluations.cpu(), torch.tensor(new))

    def _of_text(self, number: int, text: str) -> list[int]:
        """The tokens of a text, which may end before a stop string."""
        row = [token for token in self._kept(number) if token >= 0]
        if self.options.stop_texts:
            while row and len(self.model.decode(row)) > len(text):
                row = row[:-1]
        return row

    def _kept(self, number: int) -> list[int]:
        """The tokens before the first end token."""
        row = self.tokens[number]
        if self.prompts[number].is_template:
            return row
        stop = set(self.options.stop_ids)
        return row[: next((i for i, token in enumerate(row) if token in stop), len(row))]


def agreement(first: Generated, second: Generated) -> float:
    """The fraction of positions at which two generations have the same token.

    Positions after the end of the shorter text count as different.
    """
    pairs = list(zip(first.tokens, second.tokens, strict=True))
    equal = sum(a == b for rows in pairs for a, b in zip(*rows, strict=False))
    return equal / max(1, sum(max(map(len, rows)) for rows in pairs))
