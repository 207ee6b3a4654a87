"""Pictures of environments as arrays: shapes, a small typeface, and PNG files. NumPy only."""
