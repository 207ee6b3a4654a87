"""Laboratory of credit rules: tabular policies on small tasks, evaluated exactly, without a neural network."""
