"""Engines: samplers of model replies to chat messages or token prompts."""
