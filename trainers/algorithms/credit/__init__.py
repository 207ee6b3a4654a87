"""Credit assignment: pure functions on NumPy arrays that give each sampled token an advantage."""
