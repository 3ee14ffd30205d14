"""Seeds of the audit: one run's seed becomes as many independent ones as there are names. Owns nothing else."""

import hashlib


def derived_seed(*parts: object) -> int:
    """A 64-bit seed from names and numbers."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
