"""The breaker that stops evictions which free nothing."""

from services.eviction.breaker import FreedBreaker

MB = 1 << 20


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_opens_below_a_quarter_of_the_estimate_and_pauses_longer_each_time() -> None:
    clock = Clock()
    breaker = FreedBreaker(clock)
    assert not breaker.record(MB, MB // 4)
    for pause_s in (1.0, 2.0, 4.0):
        assert breaker.allows()
        assert breaker.record(MB, MB // 4 - 1)
        assert breaker.is_open
        clock.now_s += pause_s - 0.01
        assert not breaker.allows()
        clock.now_s += 0.01
    assert breaker.allows()
    assert not breaker.record(MB, MB)
    assert not breaker.is_open


def test_the_pause_has_a_limit() -> None:
    clock = Clock()
    breaker = FreedBreaker(clock)
    for _ in range(20):
        breaker.record(MB, 0)
    clock.now_s += 60
    assert breaker.allows()


def test_small_batches_are_judged_together() -> None:
    """A script's first run leaves some memory in Redis: one small batch proves nothing."""
    breaker = FreedBreaker(Clock())
    for _ in range(3):
        assert not breaker.record(64 << 10, 0)
    assert breaker.record(64 << 10, 0)
