"""How samples are evaluated: what the command line offers, and what every result depends on."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from cwdfm.errors import check_choice, check_integer
from cwdfm.metrics.evaluator import EvaluatorLM, FirstToken
from cwdfm.metrics.perplexity import AfterEnd, Average
from cwdfm.metrics.text_model import Dtype

_MACHINE = ("batch_tokens", "device")  # change how long it takes, not what comes out
NONE = "none"  # of evaluator and MAUVE: leave it out
AUTO = "auto"  # data to compare with: QM9 for molecules, none for text


@dataclass(frozen=True)
class TextSettings:
    """Settings for text, with the conventions of `metrics.perplexity` and `metrics.mauve`."""

    eval_model: str = (
        "gpt2-large"  # of perplexity: a causal LM by hub name, a folder, a .gguf; or none
    )
    eval_dtype: Dtype = "float32"  # of the evaluator LM's weights and arithmetic
    eval_context: int = 1024  # tokens that the evaluator LM sees at most; longer texts take windows
    retokenize: bool = (
        True  # or score the sampler's own tokens, if the evaluator LM has the same ones
    )
    average: Average = "corpus"  # perplexity over all tokens, or the mean of the samples' own
    first_token: FirstToken = (
        "skip"  # leave it unscored, or put the evaluator LM's start token before it
    )
    after_end: AfterEnd = "keep"  # or cut each sample at its first end token
    folds: int = 5  # of the samples of a set, for the spread
    mauve: str = (
        "evaluator"  # whose features: evaluator, none, or a folder with a sentence-embedding model
    )
    reference_size: int = 0  # held-out texts for MAUVE; 0 for as many as the largest set has
    data_row: bool = True  # score as many other held-out texts, to have something to compare with
    batch_tokens: int = 0  # that the evaluator reads at once; 0 for what memory holds
    device: str = "auto"  # of the evaluator LM: auto, cpu, cuda, cuda:1, ...

    def __post_init__(self) -> None:
        check_integer("folds", self.folds)
        check_integer("reference_size", self.reference_size, 0)
        check_integer("batch_tokens", self.batch_tokens, 0)
        check_choice("average", self.average, ("corpus", "sample"))
        check_choice("first_token", self.first_token, ("skip", "start"))
        check_choice("after_end", self.after_end, ("keep", "cut"))
        self.eval_lm()

    def flags(self) -> list[str]:
        """The options that are not at their defaults, but for those that change no score."""
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        told = [name for name in changed if name not in _MACHINE]
        no = {name: "no-" if getattr(self, name) is False else "" for name in told}
        return [f"--{no[name]}{name.replace('_', '-')}" for name in told]

    @property
    def evaluates(self) -> bool:
        """Whether there is an evaluator LM."""
        return self.eval_model != NONE

    @property
    def compares(self) -> bool:
        """Whether there are features for MAUVE: the evaluator LM's, or those of another model."""
        return self.evaluates if self.mauve == "evaluator" else self.mauve != NONE

    def eval_lm(self) -> EvaluatorLM:
        """The evaluator, not yet loaded."""
        return EvaluatorLM(
            self.eval_model,
            dtype=self.eval_dtype,
            context=self.eval_context,
            device=self.model_device(),
            batch_tokens=self.batch_tokens or None,
        )

    def model_device(self) -> str | None:
        """The device as the metrics take it: None is a GPU where there is one."""
        return None if self.device == "auto" else self.device


def _silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Settings:
    """Of any samples; a kind of samples reads what concerns it."""

    data: str = AUTO  # to compare with, or "none"
    fold_size: int = 1024  # molecules that are counted together
    text: TextSettings = TextSettings()
    say: Callable[[str], object] = _silent  # hears of work that takes a while
