from __future__ import annotations

from pathlib import Path

import pytest
from retrieval.small_world import World, load_folder, make_world

from services.retrieval.index import LoadedIndex
from services.retrieval.kernels import use_one_thread


@pytest.fixture(scope="session")
def world() -> World:
    use_one_thread()
    return make_world()


@pytest.fixture(scope="session")
def index_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world.build(tmp_path_factory.mktemp("retrieval") / "index")


@pytest.fixture(scope="session")
def index(index_folder: Path) -> LoadedIndex:
    return load_folder(index_folder)
