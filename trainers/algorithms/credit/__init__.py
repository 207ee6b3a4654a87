"""What each sampled token's advantage is: pure functions on NumPy arrays, one module a rule."""
