"""Faults on purpose: random commands, forged files, kills and races, and what they must not break."""
