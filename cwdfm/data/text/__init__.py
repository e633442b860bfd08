"""Text corpora, their tokenizers, and their preparation as memory-mapped windows of tokens."""
