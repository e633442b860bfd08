"""Adapters to other libraries. Each needs the extra of the same name."""
