"""``check_port``, which checks a port before a server starts on it."""

import socket

import pytest

from fedneighbors.cli._preflight import check_port
from fedneighbors.errors import FederationError, PortInUse


@pytest.fixture
def used_port():
    """Return a port on which a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_port_in_use_is_named_with_its_address(used_port):
    with pytest.raises(PortInUse, match=rf"port {used_port} of 127\.0\.0\.1 is in use") as caught:
        check_port(used_port)

    assert (caught.value.host, caught.value.port) == ("127.0.0.1", used_port)


def test_port_is_free_after_its_server_stops():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    check_port(port)

    with socket.create_server(("127.0.0.1", port)) as server:  # the check released it
        assert server.getsockname()[1] == port


@pytest.mark.parametrize("port", [0, -1, 65536, True, "8000", 80.5])
def test_invalid_port_number_is_refused(port):
    with pytest.raises(ValueError, match=r"expected a port in \[1, 65535\]"):
        check_port(port)


def test_address_of_another_machine_is_refused(used_port):
    with pytest.raises(FederationError, match=r"cannot listen on 192\.0\.2\.1"):
        check_port(used_port, "192.0.2.1")  # reserved for documentation, assigned to no machine


def test_invalid_address_is_refused(used_port):
    with pytest.raises(FederationError, match="cannot listen on not an address"):
        check_port(used_port, "not an address")
