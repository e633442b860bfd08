"""Compare the Triton kernels with what torch.compile generates for the same functions.

    python -m experiments.studies.kernels --out kernels.json

The reference is the library's own PyTorch code, which runs where Triton does not, compiled as one
graph with fixed shapes; for a head it is the usual product, softmax and loss or draw on all logits.
Both get the same inputs and the results are compared. Calls without gradients are replayed from a
CUDA graph, as in sampling. Algorithm 1 is left out: torch.compile has no loop that it could use.
`--tiny` is a quick check of this script, also on a CPU in Triton's interpreter
(TRITON_INTERPRET=1 CWDFM_FUSED=on).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.device import find_device
from cwdfm.model.attention import FullAttention, attend
from cwdfm.ops.adaptive_norm import Residual, add_norm
from cwdfm.ops.attention import rotary, rotate_qkv
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.decoder import add_rms_norm, rotate_heads, row_summary, silu_product, softcap
from cwdfm.ops.dispatch import plain
from cwdfm.ops.head_draw import head_draw
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from cwdfm.ops.random import Purpose, uniform
from cwdfm.weight.entropy import prediction_entropy
from experiments.bench.measure import timed
from experiments.studies.command import save, study_parser

CALLS, ROUNDS = 20, 5  # calls per measurement, and measurements of which the median counts
Function = Callable[..., Any]


@dataclass(frozen=True)
class Sizes:
    """The shapes of the benchmark's models: the paper's text model, molecules, and LLaDA-8B."""

    batch: int = 64
    length: int = 1024
    width: int = 768
    heads: int = 12
    vocab: int = 50_257
    head_rows: int = 8192  # of logits, about 0.8 GB in bfloat16
    molecules: int = 2048
    molecule_length: int = 32
    decoder_tokens: tuple[int, ...] = (16 * 1280, 32)  # a full evaluation, and a block
    decoder_width: int = 4096
    decoder_mlp: int = 12_288
    decoder_heads: int = 32


TINY = Sizes(2, 16, 64, 2, 100, 8, 2, 16, (8,), 64, 64, 2)


@dataclass(frozen=True)
class Case:
    """A function of the library at one shape, and what it is compared with."""

    name: str
    inputs: Sequence[Tensor]
    ours: Function
    reference: Function
    backward: bool = False  # time the backward pass too
    checks: bool = False  # its input is checked on the host, so it is not captured in a graph

    @property
    def shape(self) -> str:
        return " x ".join(map(str, self.inputs[0].shape))


def text_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """The parts of the DiT, with and without gradients."""
    make = partial(torch.randn, device=device)
    norm = nn.LayerNorm(sizes.width, bias=False, device=device)
    states = (sizes.batch, sizes.length, sizes.width)
    vectors = [make(sizes.batch, 1, sizes.width) for _ in range(3)]

    def norms(h: Tensor, y: Tensor, gate: Tensor, shift: Tensor, scale: Tensor) -> Any:
        return add_norm(h, Residual(y, gate), norm, shift, scale, 0.0)

    for backward in (False, True):
        dtypes = torch.float32 if backward else torch.bfloat16
        h, y = make(states, dtype=dtypes), make(states, dtype=torch.bfloat16)
        inputs = (h, y, *(v.to(dtypes) for v in vectors))
        yield Case("residual and adaptive norm", inputs, norms, norms, backward)
    head_width = sizes.width // sizes.heads
    qkv = make(sizes.batch, sizes.length, 3, sizes.heads, head_width, dtype=torch.bfloat16)
    angles = rotary(torch.arange(sizes.length, device=device), head_width)
    rotate = partial(rotate_qkv, rotation=angles)
    for backward in (False, True):
        yield Case("rotary embedding of packed qkv", (qkv,), rotate, rotate, backward)
    short = (sizes.molecules, sizes.molecule_length, 3, sizes.heads, head_width)
    angles = rotary(torch.arange(sizes.molecule_length, device=device), head_width)
    attention = FullAttention().attention_fn(0, sizes.molecule_length, device)
    half = torch.float16 if device.type == "cpu" else torch.bfloat16
    call = partial(attend, rotation=angles, attention=attention)
    for backward in (False, True):
        inputs = (make(short, dtype=half),)
        yield Case("attention over short sequences", inputs, call, call, backward)


def head_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """The head: losses, draws, and statistics of its distributions."""
    rows, vocab = sizes.head_rows, sizes.vocab
    torch.manual_seed(0)
    readout = nn.Linear(sizes.width, vocab, device=device, dtype=torch.bfloat16)
    hidden = torch.randn(rows, sizes.width, device=device, dtype=torch.bfloat16)
    tokens = torch.randint(vocab, (rows,), device=device)
    weights = torch.rand(rows, device=device)
    u = torch.rand(rows, dtype=torch.float64, device=device)

    def log_prob(hidden: Tensor) -> Tensor:
        return F.cross_entropy(readout(hidden).float(), tokens, reduction="none").neg()

    yield Case(
        "cross-entropy of the head",
        (hidden,),
        lambda hidden: head_cross_entropy(hidden, readout, tokens, weights, vocab),
        lambda hidden: -(weights * log_prob(hidden)).sum(),
        backward=True,
    )
    yield Case(
        "log-probabilities of the head",
        (hidden,),
        lambda hidden: head_log_prob(hidden, readout, tokens[:, None], vocab)[:, 0],
        log_prob,
        backward=True,
    )
    yield Case(
        "draw from the head",
        (hidden, u),
        lambda hidden, u: head_draw(hidden, readout, u, vocab).tokens,
        lambda hidden, u: sample_categorical(readout(hidden), u),
        checks=True,
    )
    logits = readout(hidden).detach()
    yield Case("draw from logits", (logits, u), sample_categorical, sample_categorical, checks=True)
    yield Case("entropy and confidence of logits", (logits,), row_summary, _summary)
    index = torch.arange(sizes.batch, device=device)[:, None]
    position = torch.arange(sizes.length, device=device)[None]

    def draw(index: Tensor) -> Tensor:
        return uniform(0, Purpose.PROPOSAL, index, 3, position)

    yield Case("counter-based uniforms", (index,), draw, draw)


def _summary(logits: Tensor) -> tuple[Tensor, Tensor]:
    return prediction_entropy(logits), logits.float().softmax(-1).amax(-1)


def decoder_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """The parts of a language model between its products, for many tokens and for a block."""
    make = partial(torch.randn, device=device, dtype=torch.bfloat16)
    norm = nn.RMSNorm(sizes.decoder_width, 1e-6, device=device, dtype=torch.bfloat16)
    width = sizes.decoder_width // sizes.decoder_heads

    def norms(h: Tensor, y: Tensor) -> Any:
        return add_rms_norm(h, y, norm)

    for tokens in sizes.decoder_tokens:
        states = make(1, tokens, sizes.decoder_width), make(1, tokens, sizes.decoder_width)
        yield Case("residual and RMS norm", states, norms, norms)
        packed = (make(1, tokens, 2 * sizes.decoder_mlp),)
        yield Case("SwiGLU product", packed, silu_product, silu_product)
        cos, sin = rotary(torch.arange(tokens, device=device), width)
        heads = make(1, tokens, 2 * sizes.decoder_heads, width)
        inputs = (heads, cos[None], sin[None])
        yield Case("rotary embedding of heads", inputs, rotate_heads, rotate_heads)

    def capped(raw: Tensor) -> tuple[Tensor, Tensor]:
        return softcap(raw.clone(), 30.0, 0.8)  # overwrites its input

    logits = make(min(sizes.decoder_tokens), sizes.vocab)
    yield Case("softcap of logits", (logits,), capped, capped)


def milliseconds(call: Callable[[], Any], *, graph: bool, device: torch.device) -> float:
    """The median time of a call."""
    for _ in range(3):
        call()
    cuda = device.type == "cuda"
    calls, rounds = (CALLS, ROUNDS) if cuda else (1, 1)

    def repeat() -> None:
        for _ in range(calls):
            call()

    work: Callable[[], object] = repeat
    if graph and cuda:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            repeat()
        work = captured.replay
    return 1e3 * timed(work, device, repeats=rounds, warmup=0).seconds / calls


def measure(case: Case, device: torch.device) -> dict[str, Any]:
    """Times of the kernel and of the compiled and the plain reference, and their difference."""
    compiled = torch.compile(case.reference, dynamic=False)
    row: dict[str, Any] = {"name": case.name, "shape": case.shape, "backward": case.backward}
    row["dtype"] = str(case.inputs[0].dtype).removeprefix("torch.")
    ours = step_of(case, case.ours)
    expected = step_of(case, case.reference)
    with plain():
        reference, fast = expected(), step_of(case, compiled)
        fast()
    row["difference"] = difference(ours(), reference)
    graph = not case.backward and not case.checks
    row["ms"] = {"kernel": milliseconds(ours, graph=graph, device=device)}
    with plain():
        row["ms"]["compiled"] = milliseconds(fast, graph=graph, device=device)
        row["ms"]["plain"] = milliseconds(expected, graph=graph, device=device)
    row["ratio"] = row["ms"]["compiled"] / row["ms"]["kernel"]
    torch.compiler.reset()
    return row


def step_of(case: Case, function: Function) -> Callable[[], list[Tensor]]:
    """The results of a call, or the gradients of its floating inputs."""
    if not case.backward:
        inputs = case.inputs

        def forward() -> list[Tensor]:
            with torch.no_grad():
                return _flat(function(*inputs))

        return forward
    inputs = [x.clone().requires_grad_() for x in case.inputs]
    generator = torch.Generator(device=inputs[0].device).manual_seed(1)
    with plain():
        shapes = [(x.shape, x.dtype) for x in _flat(case.reference(*inputs))]
    device = inputs[0].device
    cotangents = [
        torch.randn(shape, generator=generator, device=device).to(dtype) for shape, dtype in shapes
    ]

    def both() -> list[Tensor]:
        found = _flat(function(*inputs))
        given = [g.to(x.dtype) for x, g in zip(found, cotangents, strict=True)]
        return list(torch.autograd.grad(found, inputs, given))

    return both


def _flat(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest of the relative differences, in root mean square; for tokens, the share."""
    differences = []
    for x, y in zip(found, expected, strict=True):
        if x.is_floating_point():
            scale = y.double().square().mean().sqrt().clamp(min=1e-12)
            differences.append(float((x.double() - y.double()).square().mean().sqrt() / scale))
        else:
            differences.append(float((x != y).double().mean()))
    return max(differences)


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device = find_device(options.device)
    sizes, rows = TINY if options.tiny else Sizes(), []
    for make_cases in (text_cases, head_cases, decoder_cases):
        for case in make_cases(sizes, device):
            row = measure(case, device)
            rows.append(row)
            times = ", ".join(f"{name} {1e3 * ms:.1f} us" for name, ms in row["ms"].items())
            print(
                f"{case.name}{' and backward' * case.backward}, {case.shape}: {times}, "
                f"ratio {row['ratio']:.2f}, difference {row['difference']:.1e}",
                flush=True,
            )
    save(options.out, sizes=asdict(sizes), rows=rows)


if __name__ == "__main__":
    main()
