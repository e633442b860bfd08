"""Named model sizes."""

from cwdfm.errors import check_choice
from cwdfm.model.transformer import DiTConfig

# name -> (width, depth, heads, conditioning)
SIZES = {
    "debug": (64, 2, 2, 32),
    "4m": (256, 4, 4, 64),
    "17m": (384, 8, 6, 128),
    "40m": (512, 12, 8, 128),
    "base": (768, 12, 12, 128),  # the paper's: 92M with 40 tokens, 170M with GPT-2's vocabulary
}


def preset(name: str, num_tokens: int, *, dropout: float = 0.1, positions: int = 0) -> DiTConfig:
    """The config of a named model size, for `num_tokens` token ids."""
    check_choice("model", name, tuple(SIZES))
    return DiTConfig(num_tokens, *SIZES[name], dropout=dropout, positions=positions)
