"""Budgets for depths that calibration did not measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from retrieval.small_world import Served, World, on_server

from frugalads.retrieval.v1 import retrieval_pb2 as pb
from services.retrieval.calibration import LEVELS, Calibration, Choice


def table(*mean_recall: tuple[float, ...]) -> Calibration:
    """One row for each k of 1, 10, 100, one recall for each budget of 1, 2, 4 lists."""
    mean = np.array(mean_recall)
    return Calibration(
        (1, 10, 100), np.array([1, 2, 4]), mean, np.stack([mean] * len(LEVELS), axis=2), 50, ""
    )


ONE_IS_HARDEST = table((0.5, 0.8, 1.0), (0.9, 0.95, 1.0), (0.7, 0.9, 1.0))


def test_between_two_calibrated_depths_the_harder_one_counts() -> None:
    """A search for 2 took the budget of 10, although 1 needed more and the truth lies between."""
    assert ONE_IS_HARDEST.for_mean_recall(2, 0.9) == Choice(4, 1.0)
    assert ONE_IS_HARDEST.for_mean_recall(50, 0.9) == Choice(2, 0.9)
    assert ONE_IS_HARDEST.for_coverage(2, 0.9, 0.8) == Choice(2, 0.8)
    assert ONE_IS_HARDEST.predicted(2, 1) == 0.5
    assert ONE_IS_HARDEST.predicted(10, 3) == 0.95


@pytest.mark.parametrize("k", [1, 10, 100])
def test_a_depth_just_above_a_calibrated_one_takes_its_figures(k: int) -> None:
    for recall in (0.6, 0.9, 1.0):
        assert ONE_IS_HARDEST.for_mean_recall(1.001 * k, recall) == ONE_IS_HARDEST.for_mean_recall(k, recall)
    assert ONE_IS_HARDEST.predicted(1.001 * k, 2) == ONE_IS_HARDEST.predicted(k, 2)


def test_above_every_calibrated_depth_all_lists_are_visited() -> None:
    assert ONE_IS_HARDEST.for_mean_recall(120, 0.5) == Choice(4, 1.0)
    assert ONE_IS_HARDEST.predicted(120, 2) == 0.9


def test_one_deleted_ad_does_not_deepen_every_search(
    world: World, index_folder: Path, tmp_path: Path
) -> None:
    """It did: k of 1,999 ads counted as k + 1 of 2,000, so k=10 paid for 50 and k=1000 visited every list."""

    async def body(live: Served) -> None:
        async def planned() -> list[int]:
            requests = [pb.SearchRequest(vector=world.queries[0], k=k) for k in (1, 10, 50, 100, 500, 1000)]
            return [(await live.api.Search(request)).work.lists_planned for request in requests]

        before = await planned()
        await live.api.Delete(pb.DeleteRequest(ad_ids=[int(world.ad_ids[7])]))
        assert await planned() == before
        assert before[-1] < len(world.ad_ids)

    on_server(index_folder, tmp_path, body, default_recall=0.8)
