"""Settings of a training run, checked without loading torch."""
