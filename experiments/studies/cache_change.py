"""How much the approximate caches of bidirectional language models change samples.

    python -m experiments.studies.cache_change --out cache_change.json

A small transformer with LLaDA's attention learns QM9 molecules with a mask source. It continues the
first tokens of held-out molecules in blocks: without a cache and with each approximate cache, using
the same random draws, and, for comparison, without a cache using other draws. The script counts
equal tokens, equal molecules, and valid molecules. The network has 0.6 million parameters and
sequences of 32 tokens, so the numbers do not carry over to large models.
"""

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import cwdfm
from cwdfm.data import load
from cwdfm.data.smiles import canonical
from cwdfm.language.model import LanguageModel
from cwdfm.language.results import agreement
from cwdfm.model.decoder import Decoder, DecoderConfig
from cwdfm.pretrained.decoder import DecoderNetwork
from experiments.studies.command import save, study_parser
from experiments.studies.language_speed import Numbers

SIZES: dict[str, Any] = {
    "width": 128,
    "depth": 3,
    "heads": 4,
    "kv_heads": 4,
    "head_width": 32,
    "mlp_width": 352,
}
BATCH, RATE, PROMPT, BLOCK = 128, 2e-3, 4, 7
SOLVERS: dict[str, dict[str, Any]] = {
    "confidence, temperature 0": {},
    "threshold 0.9": {"threshold": 0.9},
    "Euler": {"solver": cwdfm.Euler()},
    "Neighbor": {"solver": cwdfm.Euler(weight=cwdfm.Neighbor(radius=1, scale=4.0))},
    "Entropy": {"solver": cwdfm.Euler(weight=cwdfm.Entropy(6.0))},
}


def train(tokens_MN: Tensor, vocab: int, steps: int) -> tuple[Decoder, float]:
    """Train a network that predicts masked tokens; also returns its loss over the last steps."""
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(vocab + 1, **SIZES))
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=RATE, weight_decay=0.03)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    position_N, losses = torch.arange(tokens_MN.shape[1]), []
    for _ in range(steps):
        x_BN = tokens_MN[torch.randint(len(tokens_MN), (BATCH,))]
        t_B1 = (torch.arange(BATCH) + torch.rand(1))[:, None] / BATCH
        masked_BN = torch.rand(x_BN.shape) > t_B1
        masked_BN[:, 0] = False  # the start token is always given
        hidden = decoder(x_BN.masked_fill(masked_BN, vocab), position_N.expand_as(x_BN), None, None)
        loss = F.cross_entropy(decoder.readout(hidden[masked_BN])[:, :vocab], x_BN[masked_BN])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return decoder.eval().requires_grad_(False), sum(losses[-100:]) / len(losses[-100:])


def measure(
    model: LanguageModel, prompts: list[str], decode: Any, seed: int
) -> list[dict[str, Any]]:
    """Every solver with every cache, compared with the same solver without one."""
    rows = []
    for name, options in SOLVERS.items():
        exact: Any = None
        for cache, other in (("none", 0), ("prefix", 0), ("dual", 0), ("prompt", 0), ("none", 1)):
            out = cwdfm.generate(
                model, prompts=prompts, max_new_tokens=model.length - PROMPT, block_length=BLOCK,
                cache=cache, stop=[], seed=seed + other, batch_size=250, **options,
            )  # fmt: skip
            exact = exact or out
            molecules = [
                canonical(decode(torch.tensor([int(i) for i in prompt.split()] + ids)))
                for prompt, ids in zip(prompts, out.tokens, strict=True)
            ]
            same = [a == b for a, b in zip(out.tokens, exact.tokens, strict=True)]
            rows.append(
                {
                    "solver": name,
                    "cache": cache,
                    "seed": seed + other,
                    "equal_tokens": agreement(out, exact),
                    "equal_sequences": sum(same) / len(same),
                    "valid": sum(m is not None for m in molecules) / len(molecules),
                    "tokens_per_forward": float(out.tokens_per_forward.mean()),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="training steps")
    parser.add_argument("--n", type=int, default=1000, help="molecules")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    data = load("qm9")
    vocab = data.tokenizer.vocab_size
    tokens_MN = torch.from_numpy(data.train.astype("int64"))
    held_out = data.valid[: options.n]
    decoder, loss = train(tokens_MN, vocab, options.steps)
    model = LanguageModel(
        DecoderNetwork(decoder), Numbers(vocab + 1), "QM9", mask_id=vocab, length=data.length
    )
    prompts = [" ".join(map(str, row)) for row in held_out[:, :PROMPT].tolist()]
    rows = measure(model, prompts, data.tokenizer.decode, options.seed)
    config = {
        "sizes": SIZES, "steps": options.steps, "batch_size": BATCH, "learning_rate": RATE,
        "loss": loss, "n": options.n, "seed": options.seed, "prompt": PROMPT, "block": BLOCK,
    }  # fmt: skip
    seconds = time.perf_counter() - start
    save(options.out, config=config, rows=rows, seconds=seconds)


if __name__ == "__main__":
    main()
