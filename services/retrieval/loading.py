"""Brings an index and its stop model into memory: verified, tried in a throw-away process, warmed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from services.retrieval.config import RetrievalConfig
from services.retrieval.contents import KIND, Contents, check_seal, read_contents
from services.retrieval.index import LoadedIndex
from services.retrieval.stop_model import StopModel, load_stop_model
from services.runtime.bundles import open_bundle, parse_in_child
from services.runtime.errors import BundleError, FailedPrecondition


class Loader:
    """Loads on the calling thread; blocks for seconds."""

    def __init__(self, config: RetrievalConfig, log: Any) -> None:
        self._config = config
        self._log = log

    def index(self, folder: Path, stop_model: str, encoder: str | None) -> LoadedIndex:
        """The index in `folder`, with the stop model in the other folder ("": none) where that one fits.

        `encoder` is the one whose vectors the index must hold. Raises BundleError when the index is not
        sound, FailedPrecondition when it is of another encoder; a stop model that is not sound, or of another
        index, is left out and the index says why.
        """
        try:
            return self._index(folder, stop_model, encoder)
        except OSError as error:
            raise BundleError(f"{folder}: cannot be read: {error.strerror or error}") from error

    def _index(self, folder: Path, stop_model: str, encoder: str | None) -> LoadedIndex:
        bundle = open_bundle(folder, KIND, max_bytes=self._config.max_index_bytes)
        if encoder is not None and bundle.meta.get("encoder") != encoder:
            raise FailedPrecondition(
                "ENCODER_MISMATCH",
                f"{folder} holds vectors of encoder {bundle.meta.get('encoder')}, not of {encoder}",
                subject=str(folder),
                remedy="restart retrieval and inference together to change the encoder",
                encoder=encoder,
            )
        started = time.monotonic()
        document = check_seal(bundle)
        parse_in_child("services.retrieval.contents:try_load", folder, self._config.load_timeout_ms / 1000)
        contents = read_contents(bundle, document)
        index = LoadedIndex(contents, *self._stop_model(stop_model, contents))
        index.warm()
        self._log.info(
            "index_loaded",
            path=str(folder),
            fingerprint=index.fingerprint,
            kind=index.kind,
            ads=index.size,
            lists=index.lists,
            calibrated_on=index.calibration.source,
            stop_model=index.model_fingerprint,
            load_ms=round((time.monotonic() - started) * 1000),
        )
        return index

    def _stop_model(self, folder: str, contents: Contents) -> tuple[StopModel | None, str]:
        if not folder:
            return None, ""
        try:
            depth = contents.calibration.depth
            return load_stop_model(Path(folder), contents.fingerprint, contents.ivf.nlist, depth), ""
        except BundleError as error:
            self._log.warning("stop_model_refused", path=folder, index=contents.fingerprint, fault=str(error))
            return None, str(error)
