"""Non-blocking calls, and views of values."""

import gc
import threading

import pytest

import fabcache
from fabcache.serde import pickle_serde


def test_request_window_completes(cache):
    keys = [f"key{n}" for n in range(1000)]
    stored = [cache.iset(key, key.encode() * 9) for key in keys]
    # A get sees the values of earlier sets.
    found = [cache.iget(key) for key in keys]
    assert all(request.wait() is True for request in stored)
    assert [request.wait() for request in found] == [key.encode() * 9 for key in keys]
    assert cache.get_many(keys) == {key: key.encode() * 9 for key in keys}


def test_request_completes_and_stays_completed(cache):
    cache.set("a", "1")
    for request, result in [
        (cache.iget("a"), b"1"),
        (cache.bget("a"), b"1"),
        (cache.iget("no"), None),
        (cache.iget("no", 5), 5),
        (cache.iset("b", "2"), True),
        (cache.bset("c", b"3" * 100_000, 100, 7), True),
    ]:
        while not request.test():
            pass
        assert request.test()
        assert request.wait() == request.wait() == result
    assert cache.iget("a").key == "a"
    assert cache.igets("a").wait() == cache.gets("a")
    assert cache.igets("no", 1, 2).wait() == (1, 2)
    assert cache.get_many(["b", "c"]) == {"b": b"2", "c": b"3" * 100_000}


def test_wait_raises_the_servers_refusal(cache):
    request = cache.iset("big", b"x" * (2 << 20))
    for _ in range(2):
        with pytest.raises(fabcache.MemcacheServerError):
            request.wait()
    assert request.test()
    with pytest.raises(fabcache.MemcacheIllegalInputError):
        cache.iget("a b")
    with pytest.raises(fabcache.MemcacheClientError):
        cache.iset("a", "1", 1 << 70)


def test_dropped_request_still_runs(cache):
    for number in range(100):
        cache.iset(f"dropped{number}", "1")
        cache.iget(f"dropped{number}")
    gc.collect()
    assert cache.iset("last", "1").wait()
    assert len(cache.get_many([f"dropped{number}" for number in range(100)])) == 100


def test_threads_may_wait_for_one_request(cache):
    cache.set("a", b"1" * 50_000)
    for _ in range(50):
        request = cache.iget("a")
        results = []

        def wait():
            while not request.test():
                pass
            results.append(request.wait())

        threads = [threading.Thread(target=wait if n % 2 else lambda: results.append(request.wait())) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [b"1" * 50_000] * 4


def test_requests_use_the_clients_serializer(cache, server, options):
    cache = fabcache.Client(server.place, serde=pickle_serde, key_prefix=b"p:", **options)
    assert cache.iset("a", {"x": [1]}).wait()
    assert cache.iget("a").wait() == cache.get("a") == {"x": [1]}
    request = cache.iget("a")
    # Requests in flight keep their serializer.
    cache.serde = fabcache.serde.LegacyWrappingSerde(None, None)
    cache.key_prefix = b""
    assert request.wait() == {"x": [1]}
    assert cache.get("a") is None
    assert isinstance(cache.get("p:a"), bytes)


def test_views_outlive_client_and_request(server, options):
    cache = fabcache.Client(server.place, default_noreply=False, **options)
    views = []
    for size in (0, 1, 64, 5000, 500_000):
        value = bytes(range(256)) * (size // 256 + 1)
        cache.set("a", value[:size])
        view = cache.get_view("a")
        assert isinstance(view, memoryview) and view.readonly and view.nbytes == size
        assert view.format == "B" and view.contiguous
        with pytest.raises(TypeError):
            view[0:0] = b""
        views.append((view, value[:size]))
    cache.set("a", "other")
    cache.delete("a")
    cache.close()
    del cache
    gc.collect()
    for view, value in views:
        assert view == value and bytes(view[1:]) == value[1:]


def test_view_of_an_empty_value(cache):
    assert cache.get_view("no") is None
    assert cache.get_view("no", 5) == 5
    with pytest.raises(fabcache.MemcacheIllegalInputError):
        cache.get_view("a b")
