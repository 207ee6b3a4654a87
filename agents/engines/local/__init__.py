"""The parts of the engine that runs a model in this process. Importing its modules imports torch."""
