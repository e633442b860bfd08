"""Fault injection: random commands, forged files, kills and races."""
