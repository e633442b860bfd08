"""A scheduler for diffusers that samples with the solvers of this library.

    pipe.scheduler = ContextWeightedScheduler(solver="neighbor", options={"scale": 4.0})

replaces the scheduler of a `LLaDA2Pipeline` (mask source) or a `DiffusionGemmaPipeline` (uniform
source). Step k of n is one step of the solver from t = k / n to (k + 1) / n, using the logits of
the pipeline. Both pipelines use temperature 0 by default; set it to 1 to sample from the model.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_tokens, describe, load_extra
from cwdfm.model.wrappers import Adapted
from cwdfm.schedule import Polynomial, time_grid
from cwdfm.solver import KLASS, Edit, Gibbs, Solver, ThetaRK2, ThetaTrapezoidal
from cwdfm.solver_config import make_solver, solvers_with
from cwdfm.source import Source, UniformSource

_load = partial(load_extra, extra="diffusers")
_blocks = _load("diffusers.schedulers.scheduling_block_refinement")
_config = _load("diffusers.configuration_utils")
ConfigMixin: Any = _config.ConfigMixin
# diffusers finds the class of a saved scheduler by the base classes in this module.
SchedulerMixin: Any = _load("diffusers.schedulers").SchedulerMixin

# Solvers that evaluate the model again within a step, or compare predictions of several steps.
NEEDS_MODEL = (Edit, Gibbs, KLASS, ThetaRK2, ThetaTrapezoidal)


class ContextWeightedScheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """Applies steps of a solver, by default `Neighbor`-weighted Euler, to blocks of tokens.

    Args:
        solver: The name of a solver (see `make_solver`): "neighbor", "entropy", "euler", ...
        options: Options of the solver, such as {"radius": 1, "scale": 4.0}. By default, windows of
            neighbors are cut at the ends of a block (`boundary`).
        power: The power of the schedule, kappa_t = t^power.
        block_length: Tokens per block, unless the pipeline is called with another length.
        num_inference_steps: Steps per block until `set_timesteps` is called.
    """

    order = 1

    @_config.register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        solver: str = "neighbor",
        options: dict[str, Any] | None = None,
        power: float = 1.0,
        block_length: int = 32,
        num_inference_steps: int = 32,
    ) -> None:
        self._solver = _flow_solver(solver, options or {})
        self._schedule = Polynomial(power)
        self.set_timesteps(num_inference_steps)

    def set_timesteps(
        self,
        num_inference_steps: int,
        device: torch.device | str | None = None,
        block_length: int | None = None,
    ) -> None:
        """Set the number of steps per block. `block_length` is ignored."""
        self._times = time_grid(self._schedule, num_inference_steps).tolist()
        self.num_inference_steps = num_inference_steps
        self.timesteps = torch.arange(num_inference_steps, device=device)

    @torch.no_grad()
    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        mask_token_id: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        sampling_method: str = "auto",
        threshold: float | None = None,
        editing_threshold: float | None = None,
        minimal_topk: int | None = None,
        prompt_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Advance the tokens of a block by one solver step.

        Args:
            model_output: The network's logits [B, N, V].
            timestep: The index of the step, 0..n-1. The last step reveals all remaining tokens.
            sample: The tokens x_t [B, N].
            mask_token_id: The mask id of the network; None for a uniform source.
            temperature: The sampling temperature; 0 selects the most likely token.
            top_p: The probability mass of nucleus sampling.
            top_k: Not supported.
            sampling_method: "greedy" sets the temperature to 0.
            threshold: Ignored, like `editing_threshold` and `minimal_topk`: the solver decides
                which tokens change.
            editing_threshold: Ignored.
            minimal_topk: Ignored.
            prompt_mask: The mask [N] or [B, N] of prompt tokens, which never change.
            generator: The random number generator that draws the seed of the step.
            return_dict: Return an object with `prev_sample` instead of a tuple that starts with it.
        """
        model, source, tokens_BN = _as_model(model_output, sample, mask_token_id)
        if top_k:
            raise InputError(f"top_k={top_k} is not supported by this scheduler; use top_p")
        step = int(timestep)
        if not 0 <= step < self.num_inference_steps:
            raise InputError(
                f"timestep must be the index of a step, 0..{self.num_inference_steps - 1}, got "
                f"{step}; use set_timesteps to set the number of steps"
            )
        if sampling_method == "greedy":
            temperature = 0.0
        overrides = {"temperature": temperature, "top_p": top_p}
        solver = replace(self._solver, **{k: x for k, x in overrides.items() if x is not None})
        fixed_BN = torch.zeros_like(sample, dtype=torch.bool)
        if prompt_mask is not None:
            fixed_BN = prompt_mask.expand_as(sample)
        device = "cpu" if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        index_B = torch.arange(len(sample), device=sample.device)
        options: dict[str, Any] = {"seed": seed, "prompt": tokens_BN, "fixed": fixed_BN}
        state = solver.init(source, index_B, sample.shape[1], **options)
        state = replace(state, tokens=tokens_BN, step=step)
        times = self._times[step : step + 2]
        state, _ = solver.step(model, source, self._schedule, state, *times)
        tokens_BN = state.tokens if mask_token_id is None else model.swap(state.tokens)
        output = _blocks.BlockRefinementSchedulerOutput(
            prev_sample=tokens_BN,
            transfer_index=tokens_BN != sample,
            editing_transfer_index=torch.zeros_like(fixed_BN),
            sampled_tokens=tokens_BN,
            sampled_probs=_probability(model_output, tokens_BN),
            pred_logits=model_output,
        )
        return output if return_dict else output.to_tuple()

    # LLaDA2Pipeline also calls these methods, which do not depend on how tokens are chosen.
    check_eos_finished = staticmethod(_blocks.BlockRefinementScheduler.check_eos_finished)
    check_block_should_continue = _blocks.BlockRefinementScheduler.check_block_should_continue


def _flow_solver(name: str, options: dict[str, Any]) -> Any:
    """Make the solver; raises InputError unless the scheduler can step it."""
    defaults = {"boundary": "cut"} if name in solvers_with("boundary") else {}
    solver = make_solver(name, **defaults | options)
    if isinstance(solver, NEEDS_MODEL):
        raise InputError(
            f"solver {name!r} is not supported: it needs several predictions per step, but a "
            f"pipeline passes only one to its scheduler; use 'neighbor', 'entropy', 'threshold' or "
            f"another solver with one evaluation per step",
            fields=("solver",),
        )
    if not isinstance(solver, Solver):
        raise InputError(
            f"solver {name!r} does not apply to flows; use 'neighbor', 'entropy' or 'euler'"
        )
    return solver


def _as_model(logits: Tensor, sample: Tensor, mask_id: int | None) -> tuple[Any, Source, Tensor]:
    """A model that returns the logits, its source, and the tokens as ids of the source."""
    floating = isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() == 3
    if not floating or logits.shape[:2] != sample.shape:
        raise InputError(
            f"model_output must be logits [batch, block, vocabulary] of the sample, "
            f"{describe(sample)}, got {describe(logits)}"
        )
    check_tokens("sample", sample, logits.shape[-1])
    if mask_id is None:
        return lambda x_t, t: logits, UniformSource(logits.shape[-1]), sample
    model = Adapted(lambda _: logits, num_tokens=logits.shape[-1], mask_id=mask_id)
    return model, model.source, model.swap(sample)


def _probability(logits: Tensor, tokens_BN: Tensor) -> Tensor:
    """The probability [B, N] of each token under logits [B, N, V]."""
    logits = logits.float()
    chosen_BN = logits.gather(-1, tokens_BN[..., None])[..., 0]
    return (chosen_BN - logits.logsumexp(-1)).exp()
