"""Losses: settings that need no torch, and formulas in torch."""
