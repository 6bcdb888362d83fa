"""Commands for the server rather than keys, in memcached's text protocol over their own socket."""

import socket
from types import TracebackType
from typing import Dict, List, Optional, Tuple, Type, Union

from fabcache.exceptions import (
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)

ServerSpec = Union[Tuple[str, int], str]

# The prefix of the address of a server on the fabric.
FABRIC = "fab://"

_RECEIVE_BYTES = 1 << 16


def behind(scheme: str, server: str) -> Optional[str]:
    """Return the rest of the text after a scheme in either case, or None if the scheme is missing."""
    return server[len(scheme) :] if server[: len(scheme)].lower() == scheme else None


def raise_errors(line: bytes, name: bytes) -> None:
    """Raise the error that a line reports, if any."""
    if line.startswith(b"ERROR"):
        raise MemcacheUnknownCommandError(name)
    said = line.partition(b" ")[2]
    if line.startswith(b"CLIENT_ERROR"):
        raise MemcacheClientError(said)
    if line.startswith(b"SERVER_ERROR"):
        raise MemcacheServerError(said)


class TextConnection:
    """A connection for one command, closed after it, so threads and forked processes share none."""

    def __init__(
        self,
        server: ServerSpec,
        connect_timeout: Optional[float],
        timeout: Optional[float],
        login: Optional[Tuple[str, str]] = None,
    ) -> None:
        self._rest = b""
        if isinstance(server, tuple):
            self._socket = socket.create_connection(server, connect_timeout)
        else:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.settimeout(connect_timeout)
                self._socket.connect(server)
            except BaseException:
                self._socket.close()
                raise
        self._socket.settimeout(timeout)
        if login is not None:
            self._authenticate(" ".join(login).encode())

    def _authenticate(self, login: bytes) -> None:
        try:
            self.ask(b"set auth 0 0 %d\r\n%b" % (len(login), login), b"set")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "TextConnection":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._socket.close()

    def send(self, command: bytes) -> None:
        """Send all bytes."""
        self._socket.sendall(command)

    def until(self, end: bytes = b"\r\n") -> bytes:
        """Return the bytes up to the next of these ends, without it."""
        received = bytearray(self._rest)
        looked = 0
        while (at := received.find(end, looked)) < 0:
            looked = max(0, len(received) - len(end) + 1)
            part = self._socket.recv(_RECEIVE_BYTES)
            if not part:
                raise MemcacheUnexpectedCloseError("the server closed the connection before its answer was complete")
            received += part
        self._rest = bytes(received[at + len(end) :])
        return bytes(received[:at])

    def ask(self, command: bytes, name: bytes) -> bytes:
        """Send one command and return its one-line reply."""
        self.send(command + b"\r\n")
        line = self.until()
        raise_errors(line, name)
        return line

    def stats(self, topics: List[bytes]) -> Dict[bytes, bytes]:
        """Return the server's statistics, or a topic's."""
        self.send(b" ".join([b"stats", *topics]) + b"\r\n")
        found: Dict[bytes, bytes] = {}
        while True:
            line = self.until()
            raise_errors(line, b"stats")
            if line in (b"END", b"OK", b"RESET"):
                return found
            words = line.split()
            if line.startswith(b"STAT") and len(words) > 1:
                found[words[1]] = words[2] if len(words) > 2 else b""
            elif line.startswith(b"ITEM") and len(words) > 1:
                found[words[1]] = b" ".join(words[2:])
            else:
                raise MemcacheUnknownError(line[:32])
