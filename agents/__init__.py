"""Players: what turns observations into actions."""
