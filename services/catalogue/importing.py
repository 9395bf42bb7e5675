"""Import of a user's catalogue file into a bundle.

One pass, in memory that grows by 16 bytes an ad (its id and row, for the search for repeats) and by its
advertiser's budget: rows are parsed, checked and written in batches to a staging folder, which replaces the
old catalogue only when every row was good.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from services.catalogue.bundle import KIND, AdsWriter
from services.catalogue.columns import KNOWN, Row, Tally, parse_ad
from services.catalogue.faults import MAX_FAULTS, Fault, Faults
from services.catalogue.schema import Ad
from services.catalogue.sources import Source, open_source
from services.runtime.bundles import Meta, check_replaceable, write_bundle
from services.runtime.errors import UserError, shown

PROGRESS_ROWS = 1000
MAX_IGNORED_COLUMNS = 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ImportSummary:
    """What an import did; the bundle's manifest holds the same numbers."""

    ads: int
    advertisers: int
    advertisers_with_budget: int
    categories: int
    modelled_bids: int
    bids_below_reserve: int
    cut_titles: int
    cut_descriptions: int
    ignored_columns: tuple[str, ...]


def import_catalogue(path: Path, out: Path, progress: Progress | None = None) -> ImportSummary:
    """Imports a .jsonl, .csv or .parquet file (the first two also .gz) as the catalogue bundle `out`.

    `progress` is called with (done, total), in bytes of the file or in rows. Raises UserError, with up to
    20 faults by row and field; `out` is then as it was.
    """
    check_replaceable(out, KIND)
    source = open_source(path)
    meta: Meta = {}
    try:
        with write_bundle(out, KIND, meta) as staging:
            intake = _Intake(path)
            with AdsWriter(staging) as writer:
                _read(source, intake, writer, progress)
            summary = intake.finish()
            meta.update(asdict(summary), ignored_columns=list(summary.ignored_columns))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        source.close()
    return summary


def _read(source: Source, intake: _Intake, writer: AdsWriter, progress: Progress | None) -> None:
    for count, (number, row) in enumerate(source.rows()):
        ad = intake.take(number, row)
        if ad is not None:
            writer.add(ad)
        if progress is not None and count % PROGRESS_ROWS == 0:
            progress(*source.progress())
    if progress is not None:
        total = source.progress()[1]
        progress(total, total)


class _Intake:
    """Checks rows one by one and against each other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._faults = Faults(str(path))
        self._tally = Tally()
        self._ids = array("q")
        self._rows = array("q")
        self._budgets: dict[str, tuple[float, int] | None] = {}
        self._categories: set[str] = set()
        self._ignored: dict[str, None] = {}

    def take(self, number: int, row: Row | str) -> Ad | None:
        """The ad of a row, or None where the row has faults."""
        if isinstance(row, str):
            self._faults.add(Fault(number, "", row))
            return None
        if len(self._ignored) < MAX_IGNORED_COLUMNS:
            self._ignored.update(dict.fromkeys(name for name in row if name and name not in KNOWN))
        ad = parse_ad(row, self._tally)
        if not isinstance(ad, Ad):
            for column, problem in ad:
                self._faults.add(Fault(number, column, problem))
            return None
        self._ids.append(ad.ad_id)
        self._rows.append(number)
        if ad.category:
            self._categories.add(ad.category)
        self._check_budget(number, ad)
        return ad

    def _check_budget(self, number: int, ad: Ad) -> None:
        known = self._budgets.setdefault(ad.advertiser, None)
        if ad.daily_budget_usd is None:
            return
        if known is None:
            self._budgets[ad.advertiser] = (ad.daily_budget_usd, number)
        elif known[0] != ad.daily_budget_usd:
            problem = (
                f"{ad.daily_budget_usd:g} differs from {known[0]:g} in row {known[1]}; "
                f"{shown(ad.advertiser)} has one budget"
            )
            self._faults.add(Fault(number, "daily_budget_usd", problem))

    def finish(self) -> ImportSummary:
        """The summary; raises UserError where rows had faults, ids repeat or there are no ads."""
        self._find_repeats()
        self._faults.check()
        if not self._ids:
            raise UserError(f"{self._path}: the file holds no ads")
        return ImportSummary(
            ads=len(self._ids),
            advertisers=len(self._budgets),
            advertisers_with_budget=sum(budget is not None for budget in self._budgets.values()),
            categories=len(self._categories),
            modelled_bids=self._tally.modelled_bids,
            bids_below_reserve=self._tally.bids_below_reserve,
            cut_titles=self._tally.cut_titles,
            cut_descriptions=self._tally.cut_descriptions,
            ignored_columns=tuple(self._ignored),
        )

    def _find_repeats(self) -> None:
        ids, rows = np.array(self._ids, np.int64), np.array(self._rows, np.int64)
        order = np.argsort(ids, kind="stable")
        repeats = np.flatnonzero(ids[order][1:] == ids[order][:-1])
        pairs = sorted(
            (int(rows[order[at + 1]]), int(rows[order[at]]), int(ids[order[at]])) for at in repeats
        )
        for row, before, ad_id in pairs[:MAX_FAULTS]:
            self._faults.add(Fault(row, "ad_id", f"{ad_id} is also the id of row {before}"))
