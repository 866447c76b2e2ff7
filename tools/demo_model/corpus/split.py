"""Which problems are held out: a problem's key is hashed, and a fixed share of the hashes belongs to evaluation alone.

The key names the problem (operands, names, values), never its wording, so no wording of a held-out problem is trained.
"""
import hashlib

TRAIN, EVAL = "train", "eval"

kShownInReadme = {"add:17:25"}  # always held out: the example a newcomer types first


def hash_of(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def is_held_out(key: str, percent: int = 5) -> bool:
    return key in kShownInReadme or hash_of("held-out:" + key) % 100 < percent


def draw(rng, split: str, sample, percent: int = 5):
    """Samples problems until one lies on the wanted side. sample(rng) returns (key, problem)."""
    for _ in range(10_000):
        key, problem = sample(rng)
        if is_held_out(key, percent) == (split == EVAL):
            return key, problem
    raise RuntimeError(f"no {split} problem found: the sampler's range is too small")
