"""`generate`: sample from a trained model of any method, with prompts, guidance and fragments."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.data.fragments import Fragment, expand_holes, has_ranges
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.errors import InputError, check_instance, check_integer, check_option_names
from cwdfm.guidance import Guidance
from cwdfm.guidance.base import check_guidance, guide
from cwdfm.language.generate import generate_text
from cwdfm.language.model import LanguageModel
from cwdfm.language.results import Generated
from cwdfm.method.base import Method, SampleRequest
from cwdfm.method.flow import Flow
from cwdfm.model.predict import model_device
from cwdfm.ops.random import derive_seed
from cwdfm.postprocess import Refine, Reject, Resample
from cwdfm.recommendation import recommend_for
from cwdfm.schedule import Spacing
from cwdfm.solver import Samples, Solver
from cwdfm.solver.base import with_draws
from cwdfm.solver.sample import Progress
from cwdfm.solver_config import SPECIFIC_OPTIONS, make_solver, solvers_with
from cwdfm.trained import Trained, auto_batch_size, prompt_tokens

FRAGMENT_TRIES = 20  # per sample, until it is valid and contains the fragment
_LENGTH_LAW_SAMPLES = 64  # noise sequences over which `length_law` averages


@overload
def generate(
    trained: LanguageModel, solver: Solver | str | None = None, **options: Any
) -> Generated: ...


@overload
def generate(trained: Trained, solver: object = None, **options: Any) -> Samples: ...


def generate(trained: Any, solver: Any = None, **options: Any) -> Any:
    """Sample sequences from a trained model, or generate text with a language model.

    See `generate_samples` (returns `Samples`) or, for a language model, `generate_text` (returns
    `Generated`) for the options, and `generate_with_fragment` for `fragment=`.
    """
    if isinstance(trained, LanguageModel):
        check_option_names(generate_text, options)
        return generate_text(trained, solver=solver, **options)
    _check_trained(trained)
    if settings := sorted(options.keys() & SPECIFIC_OPTIONS):
        given = ", ".join(f"{name}={options[name]!r}" for name in settings)
        name = solver if isinstance(solver, str) else solvers_with(settings[0])[0]
        raise InputError(
            f"generate has no option {' or '.join(settings)}, which is an option of a solver; pass "
            f"the solver make_solver({name!r}, {given})"
        )
    fragment = options.pop("fragment", None)
    check_option_names(generate_samples, options)
    if fragment is not None:
        return generate_with_fragment(trained, fragment, solver, **options)
    return generate_samples(trained, solver, **options)


def generate_samples(
    trained: Trained,
    solver: object = None,
    *,
    n: int | None = None,
    steps: int | None = None,
    evaluations: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int = 0,
    grid: Spacing | Tensor | None = None,
    length: int | None = None,
    prompt: str | Sequence[str] | None = None,
    template: str | Sequence[str] | None = None,
    guidance: Guidance | Sequence[Guidance] = (),
    refine: Refine | None = None,
    resample: Resample | None = None,
    reject: Reject | None = None,
    index: Tensor | None = None,
    batch_size: int | None = None,
    record: int = 0,
    progress: Progress | None = None,
) -> Samples:
    """Sample `n` sequences from a trained model, on the model's device.

    Args:
        trained: A model returned by `cwdfm.load`.
        solver: The solver, or its name on the command line, such as "neighbor" (see `make_solver`).
            The default is the method's own; for a flow, `Euler()`.
        n: The number of samples. The default is 16, or one for each text of a list of prompts or
            templates.
        steps: The number of steps. The default is 64.
        evaluations: A budget of model evaluations per sample. It selects the recommended solver,
            with its own steps, grid and resampling (see `cwdfm.recommend`).
        temperature: The sampling temperature; overrides the solver's. 0 selects the most
            likely token.
        top_p: Draw from the most likely tokens with this total probability; overrides the solver's.
        seed: The random seed.
        grid: The time grid (see `cwdfm.sample`). The default is "t".
        length: The sequence length. The default is the model's. Other lengths are possible, up to
            the number of learned positions, but the model was not trained on them.
        prompt: Text that every sample begins with, or a list with one for each sample.
        template: A complete sample with holes to fill (see `prompt_tokens`), or a list with one
            for each sample. For text it sets the sequence length. In molecules, `*{2,8}` is a hole
            of two to eight tokens, whose size differs between samples.
        guidance: Steer the samples (flows only): by conditions that the network was trained on,
            such as ClassifierFreeGuidance({"logp": 2.5}, 2.0), by your own predictor, or by a list
            of both, conditions first. Every call of the network counts as an evaluation.
        refine: Re-noise a fraction of the tokens and sample them again (flows only). Uses the
            spacing `grid`, or "t" if `grid` is a tensor.
        resample: Then redraw low-confidence tokens (flows only).
        reject: Then reject implausible samples and draw new ones (flows only). `progress` counts
            the maximum number of tries, even if fewer are needed.
        index: Global sample numbers [n].
        batch_size: The number of sequences per batch. The default depends on the available memory.
        record: Record every step of the first `record` sequences (flows only; see `cwdfm.sample`).
            Postprocessing is not recorded.
        progress: Called as `progress(k)` when k sequences have taken a step.
    """
    _check_trained(trained)
    texts = template if prompt is None else prompt
    rows = 0 if isinstance(texts, str) or not isinstance(texts, Sequence) else len(texts)
    n = (rows or 16) if n is None else n
    check_integer("n", n)
    if rows and rows != n:
        raise InputError(
            f"n must be the number of prompts or templates in a list, {rows}, got {n}; omit it",
            fields=("n",),
        )
    solver = None if isinstance(solver, str) and solver == "auto" else solver
    if evaluations is not None:
        options = {"solver": solver, "steps": steps, "grid": grid, "resample": resample}
        if given := [f"{name}={value!r}" for name, value in options.items() if value is not None]:
            raise InputError(
                f"evaluations chooses the solver, steps, grid and resampling; omit "
                f"{' and '.join(given)}, or omit evaluations"
            )
        if refine is not None or reject is not None:
            raise InputError(
                "refine and reject would exceed the budget of evaluations; omit them, or omit "
                "evaluations"
            )
        chosen = recommend_for(trained.method, evaluations, length or trained.length)
        solver, steps, grid, resample = chosen.options.values()
    steps, grid = 64 if steps is None else steps, "t" if grid is None else grid
    check_integer("steps", steps)
    solver = _find_solver(trained.method, solver, temperature=temperature, top_p=top_p)
    if isinstance(trained.tokenizer, SmilesTokenizer) and has_ranges(template):
        sample_numbers = range(n) if index is None else index.tolist()
        template = [expand_holes(str(template), seed, number) for number in sample_numbers]
    tokens, fixed = prompt_tokens(trained, length=length, prompt=prompt, template=template)
    if batch_size is not None:
        check_integer("batch_size", batch_size)
    guidance = check_guidance(guidance)
    check_model(trained, guidance)
    _check_flow_options(trained.method, refine, resample, reject, record)
    length = (length or trained.length) if tokens is None else tokens.shape[-1]
    tokenizer = trained.tokenizer
    special = {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}  # never fill a hole
    request = SampleRequest(
        shape=(n, length),
        steps=steps,
        seed=seed,
        grid=grid,
        prompt=tokens,
        fixed=fixed,
        index=index,
        batch_size=auto_batch_size(trained, length) if batch_size is None else batch_size,
        banned_tokens=() if template is None else tuple(sorted(special)),
        guidance=guidance,
        postprocess=tuple(stage for stage in (refine, resample) if stage is not None),
        reject=reject,
        record=record,
        progress=progress,
    )
    samples = trained.method.sample(trained.model, solver, request)
    if fixed is not None:
        samples = replace(samples, fixed=fixed.to(samples.tokens.device).expand_as(samples.tokens))
    recording = samples.recording
    if recording is not None:
        labels = {"tokenizer": tokenizer.to_json(), "name": repr(solver), "seed": seed}
        recording = replace(recording, labels=labels)
    return replace(samples, decode=tokenizer.decode, recording=recording)


def _check_trained(trained: object) -> None:
    if not isinstance(trained, Trained):
        raise InputError(
            f"generate requires a model returned by cwdfm.load, got a {type(trained).__name__}; "
            f"for a plain network use cwdfm.sample"
        )


def check_model(trained: Trained, guidance: Sequence[Guidance]) -> None:
    """Raise an InputError if the model does not support this guidance."""
    method = trained.method
    if not guidance:
        return
    if not isinstance(method, Flow):
        raise InputError(
            f"guidance changes the rates of a flow, and this model was trained with "
            f"{type(method).__name__}; omit it, or train with method flow or mdlm",
            fields=("guidance",),
        )
    guide(trained.model, guidance, method.source, method.schedule)


def generate_with_fragment(
    trained: Trained,
    fragment: Fragment,
    solver: object = None,
    *,
    n: int = 16,
    seed: int = 0,
    index: Tensor | None = None,
    length: int | None = None,
    record: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Samples:
    """Sample molecules that contain a fragment: a `Scaffold` or a `Linker`.

    Every sample has its own template (see `cwdfm.data.fragments`), whose number of tokens is drawn
    from `length_law`. Samples that are invalid or do not contain the fragment are drawn again with
    another template, at most `FRAGMENT_TRIES` times; the statistics include all tries. See
    `generate_samples` for the options; `progress` covers the first try only.
    """
    check_instance("fragment", fragment, Fragment, "Scaffold('c1ccncc1')")
    if passed := [name for name in ("prompt", "template") if options.pop(name, None)]:
        raise InputError(
            f"{' and '.join(passed)} cannot be combined with a fragment, which has its own "
            f"templates; omit one of them",
            fields=(*passed, "scaffold", "linker", "grow"),
        )
    check_integer("n", n)
    tokenizer = fragment.check(trained.tokenizer, length or trained.length)
    law = length_law(trained, length or trained.length)
    sample_numbers = torch.arange(n) if index is None else index.cpu()

    def attempt(pending: Tensor, tries: int, record: int) -> Samples:
        template = partial(fragment.template, tokenizer, length or trained.length, seed, law=law)
        return generate_samples(
            trained,
            solver,
            n=len(pending),
            seed=derive_seed(seed, -tries) if tries else seed,
            index=sample_numbers[pending],
            length=length,
            template=[template(number, tries) for number in sample_numbers[pending].tolist()],
            record=record,
            progress=None if tries else progress,
            **options,
        )

    pending = torch.arange(n)
    samples = attempt(pending, 0, record)
    recorded = 0 if samples.recording is None else len(samples.recording.start)
    for tries in range(1, FRAGMENT_TRIES):
        texts = samples.texts
        pending = torch.tensor([i for i in range(n) if not fragment.accepts(texts[i])])
        if len(pending) == 0:
            break
        redrawn = attempt(pending, tries, int((pending < recorded).sum()))
        samples = samples.replaced(pending, redrawn)
    return samples


@torch.no_grad()
def length_law(trained: Trained, length: int) -> NDArray[np.float64] | None:
    """A flow's probabilities [length - 1] that a text has 0, 1, ... tokens; None for other methods.

    x_0 and x_1 are independent, so at t = 0 the model predicts the marginal of each token. The
    probability of the end token at position i + 1 is that of a text of i tokens. The cost is one
    model evaluation of a small batch.
    """
    if not isinstance(trained.method, Flow):
        return None
    source, device = trained.method.source, model_device(trained.model) or torch.device("cpu")
    x_BN = source.noise(torch.arange(_LENGTH_LAW_SAMPLES, device=device), length, seed=0)
    x_BN[:, 0] = trained.tokenizer.bos_id
    logits_BNV = source.data_logits(
        trained.model(x_BN, torch.zeros(_LENGTH_LAW_SAMPLES, device=device))
    )
    end_BN = logits_BNV.double().softmax(-1)[..., trained.tokenizer.eos_id]
    return end_BN.mean(0)[1:].cpu().numpy()


def _check_flow_options(
    method: Method,
    refine: Refine | None,
    resample: Resample | None,
    reject: Reject | None,
    record: int,
) -> None:
    """Check the types of the options that only flows support, and that the method is a flow."""
    if not isinstance(record, bool):
        check_integer("record", record, 0)
    examples = (Refine(2, 0.1), Resample(40, threshold=0.8), Reject(0.97))
    stages = (refine, resample, reject)
    for stage, example in zip(stages, examples, strict=True):
        if stage is not None:
            check_instance(type(example).__name__.lower(), stage, type(example), str(example))
    if any(stage is not None for stage in stages) and not isinstance(method, Flow):
        raise InputError(
            f"refine, resample and reject require a flow, and this model was trained with "
            f"{type(method).__name__}; omit them, or use a flow model"
        )
    if record and (reject is not None or not isinstance(method, Flow)):
        raise InputError(
            f"record requires a flow without reject, got {type(method).__name__} with "
            f"reject={reject}; omit record"
        )


def _find_solver(method: Method, solver: object, **draws: float | None) -> object:
    """Return a solver, by object or name, with these draws; None for the method's default."""
    given = {name: value for name, value in draws.items() if value is not None}
    if isinstance(solver, str) or (solver is None and given):
        return method.adapt(
            make_solver(method.default_solver if solver is None else solver, **given)
        )
    return with_draws(solver, **given)
