"""Python client of Frugal Ads: `Client` and `AsyncClient` for ads, `connect` for the other services.

Messages are those of the protos: import them from `frugalads.scoring.v1.scoring_pb2` and its siblings.
"""

from frugalads.client.asynchronous import AsyncClient
from frugalads.client.blocking import Client
from frugalads.client.channels import connect, connect_async
from frugalads.client.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    FrugalAdsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from frugalads.client.options import Options, Tls

__all__ = [
    "AsyncClient",
    "Client",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "FrugalAdsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "Options",
    "ResourceExhaustedError",
    "Tls",
    "UnavailableError",
    "UnimplementedError",
    "connect",
    "connect_async",
]
