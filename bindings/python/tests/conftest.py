"""Servers for the tests: FABCACHED names the program; MEMCACHED optionally names a memcached that the tests also run against."""

import os
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

import fabcache


class Server:
    """A server that stops with the tests: on TCP, or on a Unix socket, with shared memory if it is a fabcached."""

    def __init__(self, *flags, path=None, port=None, program="FABCACHED"):
        self.path, self.port = path, port
        place = ["-s", path] if path else ["-l", "127.0.0.1", "-p", str(port)]
        if path and program == "FABCACHED":
            flags = ("--shm", *flags)
        if os.geteuid() == 0:
            flags = ("-u", "root", *flags)
        self.process = subprocess.Popen([os.environ[program], *place, "-t", "2", "-m", "64", *flags])
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except OSError:
                assert self.process.poll() is None, "the server exited"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.01)

    @property
    def place(self):
        return self.path or ("127.0.0.1", self.port)

    def connect(self):
        if self.path:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.path)
            return connection
        return socket.create_connection(self.place)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0, "the server did not exit cleanly"

    def kill(self):
        self.process.kill()
        self.process.wait(60)


class Answering:
    """A server that gives every request this answer, and closes the connection behind it or not. That nothing is asked it knows to
    answer."""

    def __init__(self, answer, closes, listener=None):
        self.answer, self.closes = answer, closes
        self.listener = listener or socket.create_server(("127.0.0.1", 0), backlog=64)
        self.place = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            try:
                while request := connection.recv(1 << 16):
                    if request == b"mn\r\n":
                        connection.sendall(b"MN\r\n")
                        continue
                    connection.sendall(self.answer)
                    if self.closes:
                        return
            except OSError:
                pass


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="session")
def folder():
    # Short: a Unix socket's path holds no more than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fabcache-py-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def local(folder):
    server = Server(path=str(folder / "local.sock"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def network():
    server = Server(port=free_port())
    yield server
    server.stop()


@pytest.fixture(scope="session")
def memcached(folder):
    server = Server(path=str(folder / "memcached.sock"), program="MEMCACHED")
    yield server
    server.kill()


WAYS = {"shared memory": True, "unix": False, "tcp": None}
if "MEMCACHED" in os.environ:
    WAYS["memcached"] = None


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def server(way, request):
    return request.getfixturevalue({"tcp": "network", "memcached": "memcached"}.get(way, "local"))


@pytest.fixture
def options(way):
    """Return the options that select a transport."""
    return {"shared_memory": WAYS[way], "timeout": 30, "connect_timeout": 10}


@pytest.fixture
def cache(way, server, options):
    client = fabcache.Client(server.place, default_noreply=False, **options)
    client.flush_all()
    assert client.set("first", b"")
    assert client.transport() == ("unix" if way == "memcached" else way)
    client.delete("first")
    yield client
    client.close()


@pytest.fixture
def new_server(folder, request):
    """Return a factory of servers that the test may kill."""
    made = []

    def make(kind="local", *flags, name="new"):
        place = {"port": free_port()} if kind == "tcp" else {"path": str(folder / f"{name}.sock")}
        made.append(Server(*flags, **place))
        return made[-1]

    yield make
    for server in made:
        if server.process.poll() is None:
            server.kill()
