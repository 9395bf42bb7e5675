"""The catalogue on disk: a bundle of kind "catalogue" with one Parquet file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from services.catalogue.schema import Ad
from services.runtime.bundles import Bundle, open_bundle
from services.runtime.errors import BundleError

KIND = "catalogue"
FILE = "ads.parquet"
MAX_BYTES = 8 << 30
BATCH_ADS = 8192

_STRINGS = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        pa.field("ad_id", pa.int64(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("advertiser", pa.string(), nullable=False),
        pa.field("bid_usd", pa.float64(), nullable=False),
        pa.field("description", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("product_price_usd", pa.float64()),
        pa.field("locations", _STRINGS, nullable=False),
        pa.field("genders", _STRINGS, nullable=False),
        pa.field("age_bands", _STRINGS, nullable=False),
        pa.field("devices", _STRINGS, nullable=False),
        pa.field("daily_budget_usd", pa.float64()),
    ]
)


class AdsWriter:
    """Writes ads to `ads.parquet` in a folder, a batch at a time."""

    def __init__(self, folder: Path) -> None:
        self._writer = pq.ParquetWriter(folder / FILE, SCHEMA, compression="zstd")
        self._pending: list[Ad] = []

    def __enter__(self) -> AdsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, ad: Ad) -> None:
        """Adds one ad."""
        self._pending.append(ad)
        if len(self._pending) >= BATCH_ADS:
            self._flush()

    def _flush(self) -> None:
        columns = {name: [getattr(ad, name) for ad in self._pending] for name in SCHEMA.names}
        self._writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
        self._pending.clear()


def read_catalogue(folder: Path) -> list[Ad]:
    """The ads of a catalogue bundle, in the order of the imported file; raises BundleError.

    Equal advertisers, categories and targeting lists are shared between ads: a million short ads take about
    0.7 GB.
    """
    bundle = open_bundle(folder, KIND, max_bytes=MAX_BYTES)
    try:
        ads = list(_ads(bundle))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BundleError(f"{bundle.path(FILE)}: unreadable: {error}") from error
    if len(ads) != bundle.meta.get("ads"):
        raise BundleError(f"{bundle.path(FILE)}: {len(ads)} ads, the manifest says {bundle.meta.get('ads')}")
    return ads


def _ads(bundle: Bundle) -> Iterator[Ad]:
    lists: dict[tuple[str, ...], tuple[str, ...]] = {}

    def shared(values: list[str]) -> tuple[str, ...]:
        key = tuple(values)
        return lists.setdefault(key, key)

    with pq.ParquetFile(bundle.path(FILE)) as file:
        if file.schema_arrow != SCHEMA:
            raise BundleError(f"{bundle.path(FILE)}: its columns are not those of a catalogue")
        for batch in file.iter_batches(batch_size=BATCH_ADS):
            columns = batch.to_pydict()
            for name in ("locations", "genders", "age_bands", "devices"):
                columns[name] = [shared(values) for values in columns[name]]
            for name in ("advertiser", "category"):
                columns[name] = [sys.intern(text) for text in columns[name]]
            yield from map(Ad, *(columns[name] for name in SCHEMA.names))
