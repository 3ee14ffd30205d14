"""Lossless speculative decoding: faster generation, exactly the tokens the target alone would have produced."""
