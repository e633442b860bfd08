"""The samplers of molecules among which `qm9_search.py` looks, by what is asked of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from cwdfm.postprocess.refine import Refine
from cwdfm.postprocess.reject import Accept
from cwdfm.postprocess.resample import Mend
from cwdfm.solver_config import Name, SolverChoice


@dataclass(frozen=True)
class Setting:
    """A sampler."""

    solver: Name = "neighbor"
    radius: int = 1
    scale: float = 4.0
    beta: float = 6.0
    corrector: float = 0.0
    temperature: float = 1.0
    steps: int = 256
    rounds: int = 0  # of refining, 6 steps each
    share: float = 0.1
    cold: float = 1.0  # temperature there
    mend: int = 0  # rounds of mending, at most
    noise: float = 0.5  # share of the tokens that is taken for noise there
    trust: float = 0.8
    again: float = 1.0  # temperature there
    accept: float = 0.0  # least plausibility
    tries: int = 8
    glance: float | None = None  # share of the tokens that is taken for noise at that

    def choice(self) -> SolverChoice:
        return SolverChoice(
            solver=self.solver,
            radius=self.radius,
            scale=self.scale,
            beta=self.beta,
            corrector=self.corrector,
            temperature=self.temperature,
        )

    def refine(self) -> Refine | None:
        if self.rounds == 0:
            return None
        return Refine(self.rounds, self.share, temperature=self.cold)

    def mending(self) -> Mend | None:
        if self.mend == 0:
            return None
        return Mend(self.mend, self.noise, self.trust, self.again)

    def acceptance(self) -> Accept | None:
        return Accept(self.accept, self.tries, self.glance) if self.accept else None


def settings() -> Iterator[Setting]:
    """Each once."""
    single = [
        Setting(),
        Setting(solver="euler"),
        *(Setting(steps=steps) for steps in (64, 512, 1024)),
        *(Setting(solver="euler", steps=steps) for steps in (512, 1024)),
        *(Setting(scale=scale) for scale in (1.0, 2.0, 6.0, 8.0)),
        *(Setting(radius=radius, scale=2.0) for radius in (2, 3)),
        *(Setting(corrector=scale) for scale in (0.5, 1.0, 2.0, 5.0)),
        *(Setting(temperature=t) for t in (0.8, 0.9, 1.1, 1.2, 1.3)),
    ]
    # The paper's rule against counted jumps, from few steps to many.
    weighted: tuple[Name, ...] = (
        "neighbor",
        "neighbor-counted",
        "entropy",
        "entropy-counted",
        "euler",
    )
    single += [
        Setting(solver=solver, beta=beta, steps=steps)
        for solver, steps in product(weighted, (16, 32, 64, 128, 256))
        for beta in ((1.5, 6.0) if solver.startswith("entropy") else (6.0,))
    ]
    both: tuple[Name, ...] = ("neighbor", "euler")
    pairs = product(both, (1.1, 1.2, 1.3, 1.5), (1.0, 3.0, 10.0), (256, 1024))
    mixed = [
        Setting(solver=solver, temperature=t, corrector=scale, steps=steps)
        for solver, t, scale, steps in pairs
    ]
    yield from dict.fromkeys([*single, *mixed])


def refinements() -> Iterator[Setting]:
    """Rounds of refining against steps, plain, hot before and cold in them."""
    for steps in (32, 64, 128):
        yield Setting(solver="euler", steps=steps)
        for rounds in (2, 6):
            for cold in (1.0, 0.5):
                yield Setting(solver="euler", steps=steps, rounds=rounds, cold=cold)
    for hot, cold, share in product((1.2, 1.5), (0.5, 0.8), (0.1, 0.3)):
        for rounds in (2, 6):
            yield Setting(
                solver="euler", steps=64, temperature=hot, rounds=rounds, share=share, cold=cold
            )


def mends() -> Iterator[Setting]:
    """From few steps to many, then from hot ones, with more trust and with less."""
    for steps in (8, 16, 32, 64):
        yield Setting(solver="euler", steps=steps)
        for trust in (0.5, 0.8):
            yield Setting(solver="euler", steps=steps, mend=80, trust=trust)
    for hot in (1.5, 2.0):
        yield Setting(solver="euler", steps=64, temperature=hot)
        for again, noise in product((0.3, 0.5), (0.3, 0.5)):
            yield Setting(
                solver="euler", steps=64, temperature=hot, mend=80, noise=noise, again=again
            )


def mends_of_masks() -> Iterator[Setting]:
    """The same with a mask source, where a round costs 1 / noise evaluations."""
    for steps in (16, 64):
        yield Setting(solver="euler", steps=steps)
        for noise, trust in ((0.125, 0.02), (0.125, 0.05), (0.0625, 0.05)):
            yield Setting(solver="euler", steps=steps, mend=10, noise=noise, trust=trust)


def best() -> Iterator[Setting]:
    """What the searches chose, with a uniform source: few steps, then mended."""
    for steps in (8, 16, 64):
        yield Setting(solver="euler", steps=steps)
        yield Setting(solver="euler", steps=steps, mend=80)


def best_of_masks() -> Iterator[Setting]:
    """The same with a mask source."""
    for steps in (16, 64):
        yield Setting(solver="euler", steps=steps)
        yield Setting(solver="euler", steps=steps, mend=10, noise=0.125, trust=0.02)


def spelled() -> Iterator[Setting]:
    """Mending for models that doubt less: with less noise, and less trust."""
    for steps in (64, 128):
        yield Setting(solver="euler", steps=steps)
    yield Setting(steps=128)
    yield Setting(steps=512)
    for steps, noise, trust in (
        *((64, 0.5, trust) for trust in (0.8, 0.5, 0.3)),
        *((64, 0.25, trust) for trust in (0.8, 0.5)),
        *((64, 0.1, trust) for trust in (0.8, 0.5)),
        (16, 0.5, 0.8),
        (16, 0.25, 0.8),
    ):
        yield Setting(solver="euler", steps=steps, mend=80, noise=noise, trust=trust)
    for noise, trust in ((0.5, 0.8), (0.25, 0.8), (0.25, 0.5)):
        yield Setting(steps=128, mend=80, noise=noise, trust=trust)
    for noise in (0.5, 0.25):
        yield Setting(
            solver="euler", steps=64, temperature=1.2, mend=80, noise=noise, trust=0.8, again=0.5
        )


def hot() -> Iterator[Setting]:
    """Hot steps for novel molecules, then a bar or careful mending for valid ones."""
    for steps, heat in product((64, 256), (1.0, 1.2, 1.4, 1.7)):
        yield Setting(solver="euler", steps=steps, temperature=heat)
        for noise, trust, again in ((0.1, 0.95, 0.5), (0.25, 0.9, 0.5), (0.25, 0.8, 0.5)):
            yield Setting(
                solver="euler",
                steps=steps,
                temperature=heat,
                mend=80,
                noise=noise,
                trust=trust,
                again=again,
            )


def best_spelled() -> Iterator[Setting]:
    """What was chosen for a model in several spellings: careful mending, a bar instead, both."""
    careful = Setting(solver="euler", mend=80, noise=0.1, trust=0.95, again=0.5)
    yield replace(careful, steps=512)
    yield Setting(solver="euler", steps=256, temperature=1.5, accept=0.9992)
    yield replace(careful, steps=64, temperature=1.3, accept=0.9985)
    yield replace(careful, steps=256, temperature=1.3, accept=0.999, glance=0.005)


WHAT = {
    "search": settings,
    "refine": refinements,
    "mend": mends,
    "mend-mask": mends_of_masks,
    "spelled": spelled,
    "hot": hot,
    "best": best,
    "best-mask": best_of_masks,
    "best-spelled": best_spelled,
}
