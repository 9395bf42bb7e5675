"""What a stack serves from, below its work folder, and the command that makes each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.runtime.bundles import MANIFEST
from services.runtime.errors import UserError

# The commands lack `--out FOLDER`.
BUNDLES = {
    "models/scorer": "frugalads model build",
    "catalogue": "frugalads catalogue import FILE",
    "index": "frugalads index build --catalogue {data}/catalogue --model {data}/models/scorer",
}


def require_bundle(folder: Path, command: str) -> None:
    """Raises UserError, naming the command that makes it, when `folder` holds no bundle."""
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is missing; make it with: {command} --out {folder}")


def require_bundles(data: Path) -> None:
    """Raises UserError when a bundle is missing, or the index was built from another catalogue.

    Only the manifests are read: the services verify what they load.
    """
    commands = {name: command.format(data=data) for name, command in BUNDLES.items()}
    for name, command in commands.items():
        require_bundle(data / name, command)
    index, catalogue = data / "index", data / "catalogue"
    if _manifest(index).get("meta", {}).get("catalogue") != _manifest(catalogue).get("fingerprint"):
        raise UserError(f"{index} was built from another catalogue; run: {commands['index']} --out {index}")


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise UserError(f"{folder / MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{folder / MANIFEST}: unreadable: {error}") from error
    return manifest if isinstance(manifest, dict) else {}
