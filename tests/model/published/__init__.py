"""Small random checkpoints in published layouts, with the logits of their authors' code."""
