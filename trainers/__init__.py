"""Trainers: from played episodes to better policies.

Pure parts first: `rollouts` (episodes as arrays), `selectors` (which groups to learn from), `credit` (what each
token's advantage is), `objectives` (which loss), `batch` (how sequences are laid out), and `recipes`, the one
table that names every algorithm.
"""
