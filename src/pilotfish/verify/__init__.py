"""Verification rules: how a draft becomes an accepted path and the target's own next token. Pure functions."""
