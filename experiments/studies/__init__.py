"""Studies: single measurements with their own commands, recorded in results/studies."""
