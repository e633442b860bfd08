"""Guidance by a predictor on MOSES: the requested property against the strength of guidance.

    python -m experiments.studies.predictor_guidance --out predictor_guidance.json --work DIR

A small network learns to predict logP and QED of a molecule of MOSES from its noisy tokens; the
law of the property is a normal distribution whose mean and deviation depend on the tokens and the
time. It guides `moses-uniform-small`, which was trained without conditions. Results of each setting
are kept in DIR; repeat the command to resume.
"""

import math
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cwdfm
from cwdfm import data
from cwdfm.data.properties import PROPERTIES
from cwdfm.data.smiles import parse
from cwdfm.path import MixturePath
from experiments.studies.guidance import STRENGTHS, Setting, compare, guidance_parser, requests

Form = Literal["taylor", "exact"]

MODEL = "moses-uniform-small"
NAMES = ("logP", "QED")
# The exact form calls the predictor for every token at every position: fewer samples.
EXACT = (("logP", 4.0, 1.0),)
WIDTH, KERNEL, LAYERS = 64, 5, 3
BATCH, RATE = 256, 2e-3
MOLECULES, HELD_OUT = 30_000, 2_000
MIN_DEVIATION = 0.1  # of a standardized property


class Predictor(nn.Module):
    """Mean and deviation of standardized properties, from noisy tokens and the time.

    Convolutions over the tokens, and a mean over the sequence. Shapes: M sequences, N length,
    V tokens, D width, P properties.
    """

    def __init__(self, vocab: int, length: int, properties: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.embed = nn.Linear(vocab, WIDTH, bias=False)
        self.position = nn.Parameter(torch.zeros(length, WIDTH))
        self.time = nn.Linear(2, WIDTH)
        self.layers = nn.ModuleList(
            nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2) for _ in range(LAYERS)
        )
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 2 * properties)

    def forward(self, x_t: Tensor, t_M: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation [M, P] for tokens [M, N] or one-hot vectors [M, N, V]."""
        one_hot = x_t if x_t.dim() == 3 else F.one_hot(x_t, self.vocab)
        time_MD = self.time(torch.stack([t_M, t_M.square()], 1).float())
        h_MND = self.embed(one_hot.float()) + self.position + time_MD[:, None]
        for layer in self.layers:
            h_MND = h_MND + layer(F.gelu(h_MND).transpose(1, 2)).transpose(1, 2)
        pooled_MD = F.gelu(self.hidden(F.gelu(h_MND).mean(1)))
        mean_MP, raw_MP = self.out(pooled_MD).chunk(2, -1)
        return mean_MP, MIN_DEVIATION + F.softplus(raw_MP)


@dataclass(frozen=True)
class Standardized:
    """Properties minus their mean over the data, in units of their deviation."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def log_density(mean: Tensor, deviation: Tensor, value: Tensor | float) -> Tensor:
    """The log density of a normal distribution, without the constant."""
    return -0.5 * ((value - mean) / deviation).square() - deviation.log()


def training_data(trained: Any) -> tuple[Tensor, Tensor]:
    """Tokens [n, N] and properties [n, P] of molecules of MOSES' training set."""
    sizes: dict[str, Any] = {"length": trained.length, "limit": MOLECULES}
    found = data.load("moses", tokenizer=trained.tokenizer, cache=False, **sizes)
    tokens = torch.from_numpy(found.train.astype(np.int64))
    molecules = map(parse, found.texts("train"))
    values = [[PROPERTIES[name](molecule) for name in NAMES] for molecule in molecules]
    return tokens, torch.tensor(values, dtype=torch.float32)


def fit(trained: Any, minutes: float, path: Path) -> tuple[Predictor, Standardized, Any]:
    """Train the predictor for some minutes, or load it; its scores on held-out molecules."""
    torch.manual_seed(0)
    predictor = Predictor(trained.tokenizer.vocab_size, trained.length, len(NAMES))
    if path.exists():
        kept = torch.load(path, weights_only=True)
        predictor.load_state_dict(kept["weights"])
        about = kept["about"]
        return predictor.eval(), Standardized(about["mean"], about["deviation"]), about
    tokens, values = training_data(trained)
    scale = Standardized(tuple(values.mean(0).tolist()), tuple(values.std(0).tolist()))
    standard = (values - torch.tensor(scale.mean)) / torch.tensor(scale.deviation)
    flow = MixturePath(trained.source, trained.schedule)
    held_out, training = slice(0, HELD_OUT), torch.arange(HELD_OUT, len(tokens))
    optimizer = torch.optim.AdamW(predictor.parameters(), RATE, weight_decay=0.01)
    start, step, spent = time.monotonic(), 0, 0.0
    while spent < 60 * minutes:
        for group in optimizer.param_groups:
            group["lr"] = RATE * math.cos(math.pi / 2 * min(1, spent / (60 * minutes)))
        rows = training[torch.randint(len(training), (BATCH,))]
        t_B = torch.rand(BATCH)
        x_t = flow.sample(tokens[rows], t_B, seed=1, step=step, index=rows).x_t
        mean, deviation = predictor(x_t, t_B)
        loss = -log_density(mean, deviation, standard[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, spent = step + 1, time.monotonic() - start
        if step % 200 == 0:
            print(f"predictor: step {step}, loss {float(loss):.3f}, {spent:.0f} s", flush=True)
    predictor.eval()
    errors = {}
    for t in (0.25, 0.5, 0.75, 1.0):
        t_B = torch.full((HELD_OUT,), t)
        x_t = flow.sample(tokens[held_out], t_B, seed=2).x_t
        with torch.inference_mode():
            mean, _ = predictor(x_t, t_B)
        rms = (mean - standard[held_out]).square().mean(0).sqrt() * torch.tensor(scale.deviation)
        errors[str(t)] = dict(zip(NAMES, rms.tolist(), strict=True))
    about = {
        "parameters": sum(p.numel() for p in predictor.parameters()),
        "steps": step,
        "seconds": spent,
        "molecules": len(training),
        "mean": scale.mean,
        "deviation": scale.deviation,
        "rms_error": errors,
    }
    torch.save({"weights": predictor.state_dict(), "about": about}, path)
    return predictor, scale, about


@dataclass(frozen=True)
class Request:
    """log h(x_t, t): the log density of a requested value of a property."""

    predictor: Predictor
    scale: Standardized
    name: str
    value: float

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        k = NAMES.index(self.name)
        mean_MP, deviation_MP = self.predictor(x_t, t)
        wanted = (self.value - self.scale.mean[k]) / self.scale.deviation[k]
        return log_density(mean_MP[:, k], deviation_MP[:, k], wanted)


def main() -> None:
    parser = guidance_parser(__doc__)
    parser.add_argument("--exact-n", type=int, default=32, help="samples with the exact form")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training the predictor")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    trained = cwdfm.load(MODEL)
    predictor, scale, about = fit(trained, options.minutes, options.work / "predictor.pt")
    print(about, flush=True)

    def setting(name: str, value: float, strength: float, form: Form, n: int) -> Setting:
        request = Request(predictor, scale, name, value)
        guidance = cwdfm.PredictorGuidance(request, strength=strength, form=form)
        return Setting(name, value, strength, form, guidance, n)

    settings = [
        setting(*request, strength, "taylor", options.n)
        for request, strength in product(requests(), STRENGTHS)
    ]
    settings += [setting(*request, "exact", options.exact_n) for request in EXACT]
    compare(trained, settings, options, model=MODEL, exact_n=options.exact_n, predictor=about)


if __name__ == "__main__":
    main()
