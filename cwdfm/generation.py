"""Samples of a trained model, by whatever method it was trained."""

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.method.base import DrawRequest
from cwdfm.method.flow import Flow
from cwdfm.postprocess.refine import Refine
from cwdfm.postprocess.reject import Accept
from cwdfm.postprocess.resample import Mend
from cwdfm.pretrained import Pretrained
from cwdfm.schedule import Spacing
from cwdfm.solver import Samples
from cwdfm.solver.sample import Tick

# Bytes of a trunk's activations for one coordinate, in units of 4 * width: about what an MLP of
# four times the width, q, k, v and the stream take at once.
_ACTIVATIONS = 24
_CPU_BUDGET = 2**30
_LARGEST = {"cpu": 256, "cuda": 4096}  # more brings no speed, and fewer signs of life


def generate(
    trained: Pretrained,
    solver: object = None,
    *,
    n: int,
    steps: int,
    seed: int = 0,
    grid: Spacing | Tensor = "t",
    length: int | None = None,
    prompt: str | None = None,
    template: str | None = None,
    refine: Refine | None = None,
    mend: Mend | None = None,
    accept: Accept | None = None,
    index: Tensor | None = None,
    batch_size: int | None = None,
    progress: Tick | None = None,
) -> Samples:
    """Draw `n` sequences from a trained model, on the device it is on.

    `solver` None is the method's own: of a flow, Euler(). `progress(k)` hears that k sequences have
    taken a step.
    `length` None is the model's own; others work, though a model has seen no others, unless it has
    learned positions and is asked for more than those. `prompt` is how every sample begins;
    `template` is all of it but for holes (see `given`), and its length, of text, the samples'.
    `refine`: noise a share of what was drawn and sample it again, of flows (see `refine.py`); its
    grid is even in what `grid` is, and in time if that is a tensor. `mend`: after that, draw again
    what the network doubts (see `mend.py`). `accept`: after that, draw again as a whole what it
    finds implausible (see `accept.py`); `progress` then hears of all tries, of those spared too.
    `batch_size` None is as many at once as memory holds. For the rest see `cwdfm.sample`.
    """
    if not isinstance(trained, Pretrained):
        raise InputError(
            f"generate draws from what cwdfm.load gives, got a {type(trained).__name__}; for a "
            f"network alone use cwdfm.sample"
        )
    tokens, fixed = given(trained, length=length, prompt=prompt, template=template)
    if batch_size is not None:
        check_integer("batch_size", batch_size)
    if refine is not None:
        check_instance("refine", refine, Refine, "Refine(rounds=2, share=0.1)")
    if mend is not None:
        check_instance("mend", mend, Mend, "Mend(rounds=40, trust=0.8)")
    if accept is not None:
        check_instance("accept", accept, Accept, "Accept(least=0.97)")
    after = tuple(rework for rework in (refine, mend) if rework is not None)
    if (after or accept is not None) and not isinstance(trained.method, Flow):
        raise InputError(
            f"refining, mending and accepting ask as a flow does, and this model is trained by "
            f"{type(trained.method).__name__}; leave it out, or take a flow"
        )
    length = trained.length if length is None else length
    length = length if tokens is None else len(tokens)
    asked = DrawRequest(
        shape=(n, length),
        steps=steps,
        seed=seed,
        grid=grid,
        prompt=tokens,
        fixed=fixed,
        index=index,
        batch_size=fitting_batch(trained, length) if batch_size is None else batch_size,
        without=() if template is None else special(trained),
        after=after,
        accept=accept,
        tick=progress,
    )
    return trained.method.draw(trained.model, solver, asked)


def special(trained: Pretrained) -> tuple[int, ...]:
    """The ids that stand for no part of a text, begin, end and padding: a hole is filled."""
    tokenizer = trained.tokenizer
    return tuple(sorted({tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}))


def given(
    trained: Pretrained,
    *,
    length: int | None = None,
    prompt: str | None = None,
    template: str | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Tokens [N] that are given and where [N]; None and None if there are none.

    A prompt leaves everything behind it free. A template is the whole sequence, its end included,
    but for its holes (`Tokenizer.holes`), each of which becomes a token of the text itself. Of text
    it may be shorter than the model's sequences; a `length` beside it must be its own, which is how
    to ask for a longer one than the model's.
    """
    if prompt is not None and template is not None:
        raise InputError("a prompt and a template at once; a template can begin with the prompt")
    for name, text in (("prompt", prompt), ("template", template)):
        if text is not None:
            check_instance(name, text, str, "'CC'")
    asked, tokenizer = length, trained.tokenizer
    length = trained.length if asked is None else asked
    check_integer("length", length)
    if template is not None:
        row = tokenizer.frame(tokenizer.holes(template), length, whole=True)
        if asked is not None and asked != len(row):
            raise InputError(
                f"the template has {len(row)} tokens, its holes included, and length (--length) is "
                f"{asked}; a template is the whole sample: leave the length out, or give {len(row)}"
            )
    elif prompt is not None:
        row = tokenizer.frame(tokenizer.encode(prompt), length, whole=False)
    elif trained.fix_first:
        row = [tokenizer.bos_id] + [None] * (length - 1)
    else:
        return None, None
    free = torch.tensor([token is None for token in row])
    return torch.tensor([token or 0 for token in row]), ~free


def fitting_batch(trained: Pretrained, length: int | None = None) -> int:
    """How many sequences at once: by the memory that is free, at most what is worth it.

    `length` None is the model's own.
    """
    length = trained.length if length is None else length
    model = trained.model
    device = next(model.parameters()).device
    bytes_each = length * model.config.width * 4 * _ACTIVATIONS
    budget = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else _CPU_BUDGET
    return max(1, min(budget // bytes_each, _LARGEST.get(device.type, 256)))
