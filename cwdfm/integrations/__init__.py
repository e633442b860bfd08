"""Adapters for other libraries. Each requires the extra of the same name."""
