"""Command line: parses, calls, prints."""
