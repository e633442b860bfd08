"""The tasks that experiments are made of: train, sample, score."""
