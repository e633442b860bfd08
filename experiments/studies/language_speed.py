"""Speed of text generation with random weights of LLaDA-8B's and DiffusionGemma's shapes.

    python -m experiments.studies.language_speed --out language_speed.json

Needs a GPU with 80 GB and takes a few minutes. `--tiny` checks it on a CPU in seconds. `--cases`
selects what is measured:

- llada: 256 new tokens in blocks of 32, one token per step, against the published algorithm: a full
  forward pass with the logits of all positions in every step. Without a cache all steps cost the
  same, so some are timed; with one, all of them. The bound of a case is the time that its
  operations and bytes take at the speeds of a large matrix product and of a copy.
- weights: a step in the middle of a block behind a cache, with and without a context weight.
- gemma: with 6 of its 30 layers, a step here against one of transformers' `generate`.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import cwdfm
from cwdfm.errors import NotInstalled
from cwdfm.language.block import BlockModel, Limits
from cwdfm.language.generate import generate_text
from cwdfm.language.model import LanguageModel
from cwdfm.language.prompts import Prompt, make_canvas
from cwdfm.language.session import CacheKind, Canvas, ColumnSession
from cwdfm.model.decoder import Decoder, DecoderConfig
from cwdfm.model.predict import evaluating
from cwdfm.pretrained.decoder import DecoderNetwork
from experiments.bench.bounds import Ceilings, Work
from experiments.bench.measure import measure_ceilings, timed
from experiments.bench.settings import Settings
from experiments.studies.command import save, study_parser
from experiments.studies.language_tables import language_speed
from experiments.studies.published_llada import published_step

LLADA = DecoderConfig(126_464, 4096, 32, 32, 32, 128, 12_288, 500_000.0, 1e-5)
MASK = 126_336
CASES = ("llada", "weights", "gemma")
CACHES: tuple[CacheKind, ...] = ("none", "prefix", "dual", "prompt")
STEPS = 10  # steps in a row that are timed together, so that the host may run ahead
TINY = DecoderConfig(200, 32, 2, 4, 4, 8, 48)
GEMMA = {
    "vocab_size": 262_144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 6,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "num_experts": 128,
    "top_k_experts": 8, "moe_intermediate_size": 704, "sliding_window": 1024,
}  # fmt: skip
TINY_GEMMA = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8,
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, "sliding_window": 16,
}  # fmt: skip
VISION = {
    "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What is measured on which device."""

    device: torch.device
    dtype: torch.dtype = torch.bfloat16
    tiny: bool = False
    new: int = 256  # tokens to generate
    block: int = 32
    # Tokens of the prompts: few-shot, as Fast-dLLM measures, long, and short.
    prompts: tuple[int, ...] = (1024, 2048, 128)
    batches: tuple[int, ...] = (1, 16)


class Numbers:
    """A tokenizer that writes ids as numbers, for a network without a vocabulary."""

    eos_token_id = sep_token_id = chat_template = None
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def make_llada(setting: Setting) -> LanguageModel:
    config = TINY if setting.tiny else LLADA
    with torch.device("meta"):
        decoder = Decoder(config).to(setting.dtype)
    decoder.to_empty(device=setting.device).eval().requires_grad_(False)
    torch.manual_seed(0)
    for name, weight in decoder.named_parameters():
        if "norm" in name:
            weight.fill_(1.0)
        else:
            weight.normal_(std=0.02)
    count = config.num_tokens
    mask = count - 1 if setting.tiny else MASK
    network = DecoderNetwork(decoder)
    return LanguageModel(network, Numbers(count), "LLaDA", mask_id=mask, length=4096)


def prompt_ids(batch: int, length: int, vocab: int) -> Tensor:
    """Random prompts [B, P]; ids below the special ones."""
    return torch.randint(0, vocab // 2, (batch, length), generator=torch.Generator().manual_seed(1))


def published_seconds(model: LanguageModel, setting: Setting, batch: int, prompt: int) -> float:
    """The time per step."""
    assert model.mask_id is not None
    decoder, mask_id = model.network.decoder, model.mask_id
    ids = prompt_ids(batch, prompt, model.network.num_tokens).to(setting.device)
    x_BN = torch.cat([ids, ids.new_full((batch, setting.new), mask_id)], dim=1)
    steps = min(STEPS, setting.block // 4)  # more would reveal the whole block

    def work() -> None:
        canvas = x_BN.clone()
        for _ in range(steps):
            published_step(decoder, canvas, mask_id, prompt + setting.block, 1)

    return timed(work, setting.device, repeats=2, warmup=1).seconds / steps


def our_seconds(
    model: LanguageModel, setting: Setting, batch: int, prompt: int, cache: CacheKind
) -> float:
    """The time per step, which reveals one token of every sequence."""
    ids = prompt_ids(batch, prompt, model.network.num_tokens).tolist()
    texts = [" ".join(map(str, row)) for row in ids]

    def run(steps: int) -> None:
        generate_text(
            model, prompts=texts, max_new_tokens=setting.new, block_length=setting.block, stop=[],
            cache=cache, batch_size=batch, steps=steps,
        )  # fmt: skip

    blocks = setting.new // setting.block
    run(blocks)
    if cache != "none" or batch == 1:
        return timed(partial(run, setting.new), setting.device, repeats=1, warmup=0).seconds / (
            setting.new
        )
    few, more = 2 * blocks, 4 * blocks
    short, long = (timed(partial(run, n), setting.device, repeats=1, warmup=0) for n in (few, more))
    return (long.seconds - short.seconds) / (more - few)


def step_bound(
    ceilings: Ceilings, config: DecoderConfig, batch: int, tokens: int, keys: int, rows: float
) -> float:
    """The bound of a step of `tokens` per sequence that attend to `keys`, with `rows` logits."""
    attention = config.heads * config.head_width
    layer = config.width * (2 * attention + 2 * config.kv_heads * config.head_width)
    weights = config.depth * (layer + 3 * config.width * config.mlp_width)
    head = config.width * config.num_tokens
    products = 2 * batch * (tokens * weights + rows * head)
    products += 4 * batch * tokens * keys * attention * config.depth
    cache = 2 * batch * keys * config.kv_heads * config.head_width * config.depth
    return Work(products, 2 * (weights + head + cache)).seconds(ceilings)


def bounds(ceilings: Ceilings, setting: Setting, batch: int, prompt: int) -> dict[str, float]:
    """The bounds of the steps of every way, in seconds."""
    config = TINY if setting.tiny else LLADA
    total, block, blocks = prompt + setting.new, setting.block, setting.new // setting.block
    rows = block / 2  # masked tokens, on average
    bound = partial(step_bound, ceilings, config, batch)
    full, share = bound(total, total, rows), 1 / block  # the first step of a block is complete
    rest = [bound(total - prompt - k * block, total, rows) for k in range(blocks)]
    found = {"published": bound(total, total, total), "none": full}
    found["prefix"] = share * full + (1 - share) * sum(rest) / blocks
    step = (1 - share) * bound(block, total, rows)
    found["dual"] = share * full + step
    first = (full + (blocks - 1) * bound(setting.new, total, rows)) / blocks
    found["prompt"] = share * first + step
    return found


def compare_llada(model: LanguageModel, setting: Setting) -> list[dict[str, Any]]:
    """Tokens per second by batch and prompt; every way reveals one token per step."""
    rows = []
    ceilings = measure_ceilings(Settings("tiny" if setting.tiny else "full", setting.device))
    _free()
    for prompt in setting.prompts:
        # Long prompts only for one sequence: without a cache, 16 of them take minutes.
        for batch in setting.batches[: 1 if prompt > 1024 else None]:
            seconds = {"published": published_seconds(model, setting, batch, prompt)}
            _free()
            for cache in CACHES:
                seconds[cache] = our_seconds(model, setting, batch, prompt, cache)
                _free()
            rate = {way: batch / each for way, each in seconds.items()}
            limit = bounds(ceilings, setting, batch, prompt)
            bound = {way: batch / each for way, each in limit.items()}
            row = {"prompt": prompt, "batch": batch, "tokens_per_second": rate, "bound": bound}
            rows.append(row)
            print(row, flush=True)
    return rows


def weight_overhead(model: LanguageModel, setting: Setting) -> list[dict[str, Any]]:
    """Milliseconds of a step in a block of a cached canvas, with and without a weight."""
    solvers: dict[str, cwdfm.Solver] = {
        "none": cwdfm.Euler(),
        "Neighbor": cwdfm.Euler(weight=cwdfm.Neighbor(radius=1, scale=4.0, boundary="cut")),
        "Entropy": cwdfm.Euler(weight=cwdfm.Entropy(6.0)),
        "TopK": cwdfm.TopK(temperature=0.0),
    }
    prompt, rows = setting.prompts[0], []
    for batch in setting.batches:
        ids = prompt_ids(batch, prompt, model.network.num_tokens).tolist()
        prompts = [(i, Prompt(list(row), setting.new, [])) for i, row in enumerate(ids)]
        canvas = make_canvas(model, prompts, torch.arange(batch), setting.block)
        found: dict[str, float] = {}
        with evaluating(model.network):
            step = block_step(model, canvas, setting.block)
            for _ in range(5):  # alternate, and keep the best: the clock of the device varies
                for name, solver in solvers.items():
                    work = partial(step, solver)
                    seconds = timed(work, setting.device, repeats=3, warmup=1).seconds / STEPS
                    found[name] = min(seconds, found.get(name, seconds))
        rows.append({"batch": batch, "ms": {name: 1e3 * x for name, x in found.items()}})
        print(rows[-1], flush=True)
        del step, work, canvas
        _free()
    return rows


def block_step(model: LanguageModel, canvas: Canvas, length: int) -> Callable[[cwdfm.Solver], None]:
    """Repeated steps from t = 0 to 1/2 of the first block, of which every second token is given."""
    columns = slice(canvas.begin, canvas.begin + length)
    session = ColumnSession(model, canvas, "dual")
    session.start(columns)
    network = BlockModel(model, session, columns, 0, Limits())
    known_L = torch.arange(length, device=model.device) % 2 == 0
    prompt_L = torch.full((length,), 5, device=model.device)
    state = cwdfm.Euler().init(model.source, canvas.index, length, prompt=prompt_L, fixed=known_L)

    def step(solver: cwdfm.Solver) -> None:
        for _ in range(STEPS):
            solver.step(network, model.source, model.schedule, state, 0.0, 0.5)

    return step


def compare_gemma(setting: Setting) -> list[dict[str, Any]] | str:
    """Milliseconds and peak memory of a step; a reason if transformers is too old."""
    try:
        import transformers
        from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
    except (ImportError, AttributeError) as error:
        return f"transformers has no DiffusionGemma ({error})"
    from cwdfm.pretrained.diffusion_gemma import DiffusionGemmaNetwork

    sizes, canvas = (TINY_GEMMA, 8) if setting.tiny else (GEMMA, 256)
    config = DiffusionGemmaConfig(text_config=sizes, vision_config=VISION, canvas_length=canvas)
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with torch.device(setting.device):
            network: Any = DiffusionGemmaForBlockDiffusion(config)
    finally:
        torch.set_default_dtype(default)
    network.eval().requires_grad_(False)
    model = LanguageModel(
        DiffusionGemmaNetwork(network), Numbers(sizes["vocab_size"]), "DiffusionGemma",
        block_length=canvas, whole_blocks=True, length=4096,
    )  # fmt: skip
    print(f"transformers {transformers.__version__}", flush=True)
    rows = []
    for batch in (1, 2) if setting.tiny else (1, 4):
        ids = prompt_ids(batch, setting.prompts[-1], sizes["vocab_size"])
        texts = [" ".join(map(str, row)) for row in ids.tolist()]
        solver = cwdfm.EntropyBound(0.1, temperature=0.8)

        def theirs(steps: int, ids: Tensor = ids) -> None:
            network.generate(
                ids.to(setting.device), max_new_tokens=canvas, max_denoising_steps=steps,
                confidence_threshold=1e-30, eos_token_id=None,
            )  # fmt: skip

        def ours(steps: int, texts: list[str] = texts, solver: Any = solver) -> None:
            generate_text(
                model, prompts=texts, max_new_tokens=canvas, steps=steps, solver=solver, stop=[]
            )

        row: dict[str, Any] = {"batch": batch}
        for name, run in (("transformers", theirs), ("cwdfm", ours)):
            row[name] = _per_step(run, setting)
            _free()
        rows.append(row)
        print(row, flush=True)
    return rows


def _per_step(run: Callable[[int], None], setting: Setting) -> dict[str, float]:
    """The difference between many steps and few, divided by their number."""
    few, many = 2, 10 if setting.tiny else 18
    short, long = (timed(partial(run, n), setting.device, repeats=3) for n in (few, many))
    each = (long.seconds - short.seconds) / (many - few)
    return {"ms": 1e3 * each, "memory_gb": long.memory_gb or 0.0}


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small networks, for a check on a CPU")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="the default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    setting = Setting(torch.device(options.device))
    if options.tiny:
        setting = Setting(setting.device, torch.float32, True, 16, 8, (12,), (1, 2))
    start = time.perf_counter()
    record: dict[str, Any] = {"config": {"tiny": options.tiny, "dtype": str(setting.dtype)}}

    def measure(name: str, work: Callable[[], Any]) -> None:
        """Record a case, or why it failed: the other cases are not lost."""
        try:
            record[name] = work()
        except (NotInstalled, RuntimeError, ValueError, TypeError, AttributeError) as error:
            record[name] = f"{type(error).__name__}: {error}"[:500]
        _free()
        record["seconds"] = time.perf_counter() - start
        save(options.out, **record)

    with torch.no_grad():
        if {"llada", "weights"} & set(options.cases):
            model = make_llada(setting)
            if "llada" in options.cases:
                measure("llada", lambda: compare_llada(model, setting))
            if "weights" in options.cases:
                measure("weights", lambda: weight_overhead(model, setting))
            del model
            _free()
        if "gemma" in options.cases:
            measure("gemma", lambda: compare_gemma(setting))
    print(f"{record['seconds']:.0f} s; wrote {options.out}")
    for name in CASES:
        if isinstance(record.get(name), str):
            print(f"{name}: not measured: {record[name]}")
    for table in language_speed(record):
        print(table.markdown())


if __name__ == "__main__":
    main()
