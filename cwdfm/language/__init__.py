"""Text generation with language models: prompts, blocks, caches, stopping."""

from cwdfm.language.model import LanguageModel, Network

__all__ = ["LanguageModel", "Network"]
