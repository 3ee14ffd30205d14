"""Models: configuration, weights, tokenizer, executors and their key-value cache. Enter at `base.py`."""
