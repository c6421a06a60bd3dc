"""Ports that nobody listens on."""

import contextlib
import socket


def free_ports(number: int) -> list[int]:
    """Return different ports, none of those (10000 to 19999) that the workers of Ray take for themselves."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < number:
            handle = stack.enter_context(socket.socket())
            handle.bind(("127.0.0.1", 0))
            port = handle.getsockname()[1]
            if not 10000 <= port < 20000:
                ports.append(port)
        return ports


def free_port() -> int:
    return free_ports(1)[0]
