"""Text corpora, tokenizers, and packing of text into memory-mapped token windows."""
