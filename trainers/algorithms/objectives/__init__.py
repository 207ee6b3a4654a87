"""Which loss: settings without torch, and the formulas in torch."""
