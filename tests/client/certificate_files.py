"""Certificates of a throw-away authority."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """PEM files of one authority: a server named ads.test, a client, and the authority's root."""

    root: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def issued_files(folder: Path) -> Certificates:
    """Writes the files of a new authority into `folder`."""
    authority = trustme.CA()
    files = Certificates(
        *(folder / name for name in ("root", "server.crt", "server.key", "cli.crt", "cli.key"))
    )
    authority.cert_pem.write_to_path(files.root)
    server, client = authority.issue_cert("ads.test"), authority.issue_cert("client@ads.test")
    for issued, cert, key in (
        (server, files.server_cert, files.server_key),
        (client, files.client_cert, files.client_key),
    ):
        issued.private_key_pem.write_to_path(key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(cert, append=True)
    return files
