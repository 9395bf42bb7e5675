import numpy as np
import pytest

from loadtest.arrivals import poisson_schedule
from services.runtime.errors import UserError


def test_gaps_are_exponential_with_the_asked_mean() -> None:
    gaps = np.diff(poisson_schedule(50.0, 100_001, np.random.default_rng(7)))
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.02, rel=0.02)
    assert gaps.std() == pytest.approx(0.02, rel=0.02)
    # Kolmogorov-Smirnov: the distance exceeds 1.95 / sqrt(n) once in a thousand samples.
    empirical = np.arange(1, len(gaps) + 1) / len(gaps)
    distance = np.abs(empirical - (1 - np.exp(-50.0 * np.sort(gaps)))).max()
    assert distance < 1.95 / np.sqrt(len(gaps))


def test_counts_in_equal_windows_vary_like_poisson() -> None:
    times = poisson_schedule(200.0, 100_000, np.random.default_rng(8))
    counts = np.histogram(times, np.arange(0.0, times[-1] - 1, 0.1))[0]
    assert counts.mean() == pytest.approx(20, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.1)


def test_gaps_are_independent() -> None:
    gaps = np.diff(poisson_schedule(10.0, 50_000, np.random.default_rng(9)))
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / np.sqrt(len(gaps))


def test_a_seed_fixes_the_schedule() -> None:
    one, same, other = (poisson_schedule(5.0, 100, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("rate", "count", "words"),
    [
        (0.0, 10, "--rate: 0 is not in"),
        (-1.0, 10, "--rate: -1 is not in"),
        (float("nan"), 10, "--rate: nan is not in"),
        (float("inf"), 10, "--rate: inf is not in"),
        (10.0, 0, r"--requests: 0 is not in 1\.\.1000000"),
        (10.0, 1_000_001, "--requests: 1000001 is not in"),
        (0.001, 1000, "1000 requests at 0.001 a second last 1000000 s"),
    ],
)
def test_bounds_are_named(rate: float, count: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        poisson_schedule(rate, count, np.random.default_rng(1))
