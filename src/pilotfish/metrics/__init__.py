"""Metrics: every counter and every derived figure with its formula. No input or output."""
