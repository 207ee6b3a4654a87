"""Workers that play episodes: processes of this machine, and nodes of a Ray cluster."""
