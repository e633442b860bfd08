"""Training: configuration, recipes, the training loop, checkpoints and logging."""
