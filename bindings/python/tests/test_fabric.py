"""Servers reached over the fabric; FABCACHE_PROVIDER names libfabric's provider: `fab://host:port`."""

import multiprocessing
import os
import signal
import time

import pytest
from conftest import Server, free_port
from test_faults import in_child, raised

import fabcache

PROVIDER = os.environ.get("FABCACHE_PROVIDER", "tcp;ofi_rxm")


class FabricServer(Server):
    def __init__(self, *flags, port=None):
        super().__init__("--fabric", PROVIDER, "-I", "16m", *flags, port=port or free_port())

    @property
    def address(self):
        return f"fab://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def fabric():
    server = FabricServer()
    yield server
    server.stop()


@pytest.fixture(params=["auto", "one-sided", "request"])
def cache(fabric, request):
    client = fabcache.Client(fabric.address, fabric=request.param, timeout=10, connect_timeout=10)
    yield client
    client.close()


def pattern(number, length):
    return (number.to_bytes(4, "little") * (length // 4 + 1))[:length]


def test_values_of_all_lengths_are_read_whole(cache):
    for number, length in enumerate([0, 1, 100, 8_000, 20_000, 300_000, 5_000_000]):
        assert cache.set(f"k{number}", pattern(number, length))
        for _ in range(3):
            assert cache.get(f"k{number}") == pattern(number, length)
    assert cache.get("none") is None
    transport = cache.transport()
    assert transport == "fabric"


def test_request_windows_and_multigets(cache):
    values = {f"w{number}": pattern(number, number * 97) for number in range(200)}
    assert all(request.wait() for request in [cache.iset(key, value) for key, value in values.items()])
    assert [request.wait() for request in [cache.iget(key) for key in values]] == list(values.values())
    assert cache.get_many(list(values) + ["none"]) == values
    cache.set("counter", 41)
    assert cache.incr("counter", 1) == 42 and cache.delete("counter") and cache.get("counter") is None


def test_child_opens_its_own_connections(cache):
    cache.set("a", b"parent")
    assert cache.get("a") == b"parent"
    flying = cache.iset("b", b"1")

    def child():
        # Any outcome is allowed in the child, but it must end soon and not take the parent's
        # replies.
        signal.alarm(60)
        for number in range(50):
            own = b"%d" % number
            assert cache.set("own", own) and cache.get("own") == own
            assert cache.get("a") == b"parent"
        assert isinstance(raised(flying.wait), fabcache.MemcacheUnexpectedCloseError)

    assert in_child(child)
    assert flying.wait() is True
    assert cache.get("a") == b"parent" and cache.set("a", b"again") and cache.get("a") == b"again"


def test_parent_and_children_run_concurrently(fabric):
    cache = fabcache.Client(fabric.address, timeout=20, connect_timeout=20)
    assert cache.set("all", b"here")

    def work(name):
        for turn in range(60):
            value = pattern(turn, turn * 500)
            assert cache.set(name, value) and cache.get(name) == value
            assert cache.get("all") == b"here"

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(f"child{number}",)) for number in range(3)]
    for child in children:
        child.start()
    work("parent")
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]


@pytest.mark.parametrize("mode", ["one-sided", "request"])
def test_killed_server_raises_and_successor_is_found(mode):
    port = free_port()
    server = FabricServer(port=port)
    cache = fabcache.Client(server.address, fabric=mode, timeout=3, connect_timeout=10)
    assert cache.set("a", b"1") and cache.get("a") == b"1"
    flying = [cache.iget("a") for _ in range(10)]
    server.kill()
    for request in flying:
        outcome = raised(request.wait)
        assert outcome is None or isinstance(outcome, (OSError, fabcache.MemcacheError)), outcome
    begun = time.monotonic()
    for call in (lambda: cache.get("a"), lambda: cache.set("a", b"2"), lambda: cache.iget("a").wait()):
        assert isinstance(raised(call), (OSError, fabcache.MemcacheError))
    assert time.monotonic() - begun < 20
    successor = FabricServer(port=port)
    deadline = time.monotonic() + 30
    while raised(lambda: cache.set("b", b"3")) is not None:
        assert time.monotonic() < deadline, raised(lambda: cache.set("b", b"3"))
        time.sleep(0.05)
    assert cache.get("a") is None and cache.get("b") == b"3"
    successor.stop()


def test_missing_fabric_is_reported(network):
    cache = fabcache.Client(f"fab://127.0.0.1:{network.port}", timeout=5)
    error = raised(lambda: cache.get("a"))
    assert error is not None and "--fabric" in str(error), error
