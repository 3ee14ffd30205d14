"""Sampling: logits become laws in one documented order, and choices by noise that is a function of position."""
