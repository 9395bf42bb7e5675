import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.auction import Account, LiveAd, Placement, Targeting, Viewer, run_auction

RESERVE = 50_000
ANYONE = Viewer()


def live(ad_id: int, bid_micros: int, account: Account | None = None, **fields: object) -> LiveAd:
    ad = LiveAd(ad_id, f"ad {ad_id}", "", account or Account(f"a{ad_id}"), bid_micros)
    return replace(ad, **fields)  # type: ignore[arg-type]


def auction(
    bids: dict[int, int], probabilities: dict[int, float], slots: int = 4, reserve: int = RESERVE
) -> list[Placement]:
    ads = {ad_id: live(ad_id, bid) for ad_id, bid in bids.items()}
    return run_auction(tuple(probabilities), tuple(probabilities.values()), ads, ANYONE, slots, reserve)


def test_the_textbook_case() -> None:
    placements = auction({1: 1_000_000, 2: 2_000_000, 3: 500_000}, {1: 0.5, 2: 0.125, 3: 0.25}, slots=2)
    # scores: ad 1 500,000; ad 2 250,000; ad 3 125,000
    assert [(p.ad.ad_id, p.price_micros) for p in placements] == [(1, 500_000), (2, 1_000_000)]
    assert placements[0].click_probability == 0.5
    assert placements[1].click_probability == pytest.approx(0.125 * 2**-0.57)


def test_the_last_ad_pays_the_reserve() -> None:
    [placement] = auction({1: 1_000_000}, {1: 0.5})
    assert placement.price_micros == RESERVE


def test_prices_round_up_to_whole_micro_dollars() -> None:
    first, _ = auction({1: 1_000_000, 2: 100_001}, {1: 0.75, 2: 0.25})
    assert first.price_micros == RESERVE
    first, _ = auction({1: 1_000_000, 2: 1_000_000}, {1: 0.75, 2: 0.5})
    assert first.price_micros == 666_667


def test_equal_scores_rank_the_smaller_id_first_and_pay_their_bid() -> None:
    placements = auction({7: 400_000, 3: 400_000, 5: 400_000}, {7: 0.5, 3: 0.5, 5: 0.5}, slots=2)
    assert [(p.ad.ad_id, p.price_micros) for p in placements] == [(3, 400_000), (5, 400_000)]


@pytest.mark.parametrize(
    "barred",
    [
        live(1, 900_000, paused=True),
        live(1, 900_000, Account("a", open=False)),
        live(1, RESERVE - 1),
        live(1, 900_000, targeting=Targeting(devices=frozenset({2}))),
    ],
)
def test_barred_ads_neither_show_nor_set_a_price(barred: LiveAd) -> None:
    ads = {1: barred, 2: live(2, 800_000)}
    placements = run_auction((1, 2), (0.9, 0.1), ads, Viewer(device=1), 4, RESERVE)
    assert [(p.ad.ad_id, p.price_micros) for p in placements] == [(2, RESERVE)]


def test_unknown_ads_and_ads_that_nobody_clicks_take_no_part() -> None:
    ads = {1: live(1, 900_000), 2: live(2, 900_000)}
    assert run_auction((1, 2, 3), (0.0, -0.0, 0.5), ads, ANYONE, 4, RESERVE) == []
    assert run_auction((), (), ads, ANYONE, 4, RESERVE) == []


@pytest.mark.parametrize(
    ("targeting", "viewer", "admitted"),
    [
        (Targeting(), Viewer("US-CA", 1, 2, 3), True),
        (Targeting(frozenset({"US-CA"})), Viewer("US-CA"), True),
        (Targeting(frozenset({"US-CA"})), Viewer("US-NY"), False),
        (Targeting(frozenset({"US-CA"})), ANYONE, True),
        (Targeting(genders=frozenset({1})), Viewer(gender=2), False),
        (Targeting(age_bands=frozenset({3, 4})), Viewer(age_band=4), True),
        (Targeting(age_bands=frozenset({3, 4})), Viewer(age_band=5), False),
        (Targeting(devices=frozenset({2})), Viewer(device=0), True),
    ],
)
def test_targeting(targeting: Targeting, viewer: Viewer, admitted: bool) -> None:
    assert targeting.admits(viewer) is admitted


@pytest.mark.parametrize(
    ("budget", "paused", "spent", "is_open"),
    [
        (None, False, 10**12, True),
        (100, False, 99, True),
        (100, False, 100, False),
        (0, False, 0, False),
        (None, True, 0, False),
    ],
)
def test_accounts_close_when_paused_or_spent(
    budget: int | None, paused: bool, spent: int, is_open: bool
) -> None:
    account = Account("a", budget, paused, spent)
    account.settle()
    assert account.open is is_open


markets = st.lists(
    st.tuples(st.integers(1, 1_000_000_000), st.floats(0, 1, width=32)), min_size=1, max_size=20
).map(
    lambda rows: ({i: bid for i, (bid, _) in enumerate(rows, 1)}, {i: p for i, (_, p) in enumerate(rows, 1)})
)


@given(markets, st.integers(1, 8), st.integers(1, 1_000_000))
def test_prices_lie_between_reserve_and_bid(
    market: tuple[dict[int, int], dict[int, float]], slots: int, reserve: int
) -> None:
    bids, probabilities = market
    placements = auction(bids, probabilities, slots, reserve)
    assert len(placements) <= slots
    for placement in placements:
        assert placement.bid_micros == bids[placement.ad.ad_id]
        assert reserve <= placement.price_micros <= placement.bid_micros


@given(markets, st.integers(1, 8), st.integers(1, 1_000_000))
def test_nobody_with_a_higher_score_is_left_out_and_order_is_by_score(
    market: tuple[dict[int, int], dict[int, float]], slots: int, reserve: int
) -> None:
    bids, probabilities = market
    shown = [p.ad.ad_id for p in auction(bids, probabilities, slots, reserve)]
    score = {i: bids[i] * p for i, p in probabilities.items()}
    order = sorted((i for i in bids if bids[i] >= reserve and probabilities[i]), key=lambda i: (-score[i], i))
    assert shown == order[:slots]


@given(markets, st.integers(1, 8))
def test_a_price_is_the_least_bid_that_keeps_the_position(
    market: tuple[dict[int, int], dict[int, float]], slots: int
) -> None:
    bids, probabilities = market
    for position, placement in enumerate(auction(bids, probabilities, slots)):
        own = placement.ad.ad_id
        kept = auction(bids | {own: placement.price_micros + 1}, probabilities, slots)
        assert own in [p.ad.ad_id for p in kept[: position + 1]]
        if placement.price_micros > RESERVE:
            lower = auction(bids | {own: placement.price_micros - 1}, probabilities, slots)
            assert own not in [p.ad.ad_id for p in lower[: position + 1]]


@given(markets, st.integers(1, 8), st.data())
def test_a_higher_bid_never_worsens_the_own_position(
    market: tuple[dict[int, int], dict[int, float]], slots: int, data: st.DataObject
) -> None:
    bids, probabilities = market
    own = data.draw(st.sampled_from(sorted(bids)))
    raised = data.draw(st.integers(bids[own], 1_000_000_000))

    def position(own_bid: int) -> int:
        shown = [p.ad.ad_id for p in auction(bids | {own: own_bid}, probabilities, slots)]
        return shown.index(own) if own in shown else slots

    assert position(raised) <= position(bids[own])


@given(markets, st.integers(2, 8))
def test_the_auction_is_locally_envy_free_for_the_scores_it_ranks_by(
    market: tuple[dict[int, int], dict[int, float]], slots: int
) -> None:
    """Nobody below would pay what the position above costs them."""
    bids, probabilities = market
    placements = auction(bids, probabilities, slots)
    for upper, lower in itertools.pairwise(placements):
        cost_of_moving_up = upper.bid_micros * probabilities[upper.ad.ad_id]
        assert cost_of_moving_up >= lower.bid_micros * probabilities[lower.ad.ad_id]


@given(markets, st.integers(1, 8), st.randoms())
def test_the_order_of_candidates_does_not_matter(
    market: tuple[dict[int, int], dict[int, float]], slots: int, random: object
) -> None:
    bids, probabilities = market
    shuffled = list(probabilities.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [p[1:] for p in auction(bids, probabilities, slots)] == [
        p[1:] for p in auction(bids, dict(shuffled), slots)
    ]
