import socket

import pytest

from services.runtime.errors import UserError
from services.stack.ports import HOST, Ports, free_base, is_free, require_free


def listener(*, reuse_port: bool = False) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server sets it
    if reuse_port:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((HOST, 0))
    server.listen()
    return server


def test_ports_keep_their_distances() -> None:
    ports = Ports(8000)
    assert ports.of("scoring") == 8000
    assert ports.all() == {
        "scoring": 8000,
        "retrieval": 8001,
        "inference": 8002,
        "eviction": 8003,
        "retrieval admin": 8011,
        "inference admin": 8012,
        "scoring metrics": 8020,
        "retrieval metrics": 8021,
        "inference metrics": 8022,
        "eviction metrics": 8023,
        "cache": 8030,
        "state": 8031,
    }
    assert set(ports.all()) - set(ports.all(embedded=())) == {"cache", "state"}


@pytest.mark.parametrize("base", [-1, 80, 65505, 70000])
def test_a_base_port_out_of_range_is_refused(base: int) -> None:
    with pytest.raises(UserError, match=rf"--base-port: {base} is not in 1024\.\.65504"):
        Ports(base)


@pytest.mark.parametrize("reuse_port", [False, True])
def test_an_occupied_port_is_named_with_its_service(reuse_port: bool) -> None:
    with listener(reuse_port=reuse_port) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} \(eviction\) on 127\.0\.0\.1 already in use"):
            require_free({"eviction": port})


def test_every_occupied_port_is_named() -> None:
    with listener() as one, listener() as two:
        ports = {"cache": one.getsockname()[1], "state": two.getsockname()[1]}
        with pytest.raises(UserError, match=rf"ports {ports['cache']} \(cache\), {ports['state']} \(state\)"):
            require_free(ports)


def test_a_port_is_free_again_after_its_listener_and_old_connections() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)):
            accepted, _ = server.accept()
            accepted.close()  # this end closes first: it keeps TIME_WAIT
    assert is_free(port)


def test_free_base_steps_over_a_taken_stack() -> None:
    base = free_base(20_000)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind((HOST, Ports(base).of("state")))
        server.listen()
        assert free_base(base) > base
