"""The shipped model: a small transformer, pretrained on expert episodes of two environments."""
