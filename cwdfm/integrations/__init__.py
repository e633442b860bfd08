"""Adapters to other libraries, one file each. Each needs the extra of the same name."""
