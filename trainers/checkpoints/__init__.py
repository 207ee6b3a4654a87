"""All state of a training run on disk: checkpoints, the run folder, and exported models."""
