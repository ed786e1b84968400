"""A random order of any number of samples, of which any part can be computed by itself."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
WEYL = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: the step of SplitMix64
Numbers = NDArray[np.uint64]


class Permutation:
    """A permutation of range(size) that seed and key decide: the same in every process, with any version of torch.

    Nothing is shuffled and nothing is kept, so a permutation of 10^9 samples costs no memory, and its last entry as
    much as its first. A Feistel network permutes the numbers below a power of four; those that it sends out of range
    go through it again until they fall into it ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite
    Domains, 2002).
    """

    def __init__(self, size: int, seed: int, *key: int) -> None:
        """Choose the permutation; no number may be negative. The key is the epoch, or several numbers."""
        self.size = size
        self.half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))  # bits of each half of a number
        self.mask = (np.uint64(1) << self.half) - np.uint64(1)
        self.round_keys = np.random.SeedSequence(seed, spawn_key=key).generate_state(ROUNDS, np.uint64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, positions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the entries at these positions, all within range(size); of the same shape."""
        entries = self.scramble(positions.astype(np.uint64))
        while (outside := entries >= self.size).any():
            entries[outside] = self.scramble(entries[outside])
        return entries.astype(np.int64)

    def scramble(self, numbers: Numbers) -> Numbers:
        """Permute the numbers of twice as many bits as a half has."""
        left, right = numbers >> self.half, numbers & self.mask
        for key in self.round_keys:
            left, right = right, left ^ (mixed(right ^ key) & self.mask)
        return left << self.half | right


def mixed(numbers: Numbers) -> Numbers:
    """Mix the bits: each bit of a number changes half of the bits of the result (SplitMix64, Vigna, 2015)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def uniform(positions: NDArray[Any], seed: int, *key: int) -> NDArray[np.float64]:
    """Return a random number in [0, 1) for each position, that seed, key and position decide (SplitMix64)."""
    [start] = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)
    return (mixed(start + positions.astype(np.uint64) * WEYL) >> np.uint64(11)) * np.float64(2.0**-53)
