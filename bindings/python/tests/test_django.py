"""Django's cache API over a fabcached."""

import asyncio
import threading
import time
import warnings

import django.conf
import pytest

if not django.conf.settings.configured:
    django.conf.settings.configure()

from django.core.cache import CacheHandler, InvalidCacheBackendError  # noqa: E402
from django.core.cache.backends.base import InvalidCacheKey  # noqa: E402


def location(server):
    return f"unix:{server.path}" if server.path else "%s:%d" % server.place


def handler(place, backend="fabcache.django.FabcacheCache", **settings):
    return CacheHandler({"default": {"BACKEND": backend, "LOCATION": place, **settings}})


@pytest.fixture
def cache(cache, server):
    """Return a Django cache of an empty server."""
    return handler(location(server))["default"]


class Thing:
    def __init__(self, what):
        self.what = what


def test_values_round_trip(cache):
    for value in ["text", "ünïcode", b"bytes", 5, -5, True, None, 1.5, [1], {"a": (1, 2)}, {1, 2}]:
        cache.set("key", value)
        found = cache.get("key", "missing")
        assert found == value and type(found) is type(value)
    cache.set("thing", Thing(5))
    assert cache.get("thing").what == 5
    assert cache.get("no") is None and cache.get("no", 7) == 7


def test_add_stores_once_and_delete_removes(cache):
    assert cache.add("a", 1) is True and cache.add("a", 2) is False
    assert cache.get("a") == 1 and "a" in cache and cache.has_key("a")
    assert cache.delete("a") is True and cache.delete("a") is False
    assert "a" not in cache


def test_incr_and_decr_count(cache):
    cache.set("n", 10)
    assert (cache.incr("n"), cache.incr("n", 5), cache.decr("n"), cache.decr("n", 3)) == (11, 16, 15, 12)
    assert (cache.incr("n", -2), cache.decr("n", -5)) == (10, 15)
    assert cache.get("n") == 15
    for call in (cache.incr, cache.decr):
        with pytest.raises(ValueError):
            call("no")


def test_many_keys_are_stored_and_read(cache):
    assert cache.set_many({"a": 1, "b": "two", "c": [3]}) == []
    assert cache.get_many(["a", "b", "c", "no"]) == {"a": 1, "b": "two", "c": [3]}
    cache.delete_many(["a", "b"])
    assert cache.get_many(["a", "b", "c"]) == {"c": [3]}
    assert cache.get_many([]) == {} and cache.set_many({}) == []
    cache.clear()
    assert cache.get("c") is None


def test_versions_are_separate(cache):
    cache.set("a", 1)
    cache.set("a", 2, version=2)
    assert (cache.get("a"), cache.get("a", version=1), cache.get("a", version=2)) == (1, 1, 2)
    assert cache.incr_version("a") == 2
    assert cache.get("a") is None and cache.get("a", version=2) == 1
    assert cache.decr_version("a", version=2) == 1
    assert cache.get("a") == 1
    cache.set_many({"x": 1}, version=3)
    assert cache.get_many(["x"], version=3) == {"x": 1} and cache.get_many(["x"]) == {}
    cache.delete_many(["x"], version=3)
    assert cache.get("x", version=3) is None


def test_items_expire(cache):
    cache.set("never", 1, None)
    cache.set("month", 1, 60 * 60 * 24 * 40)
    cache.set("at_once", 1, 0)
    cache.set("past", 1, -5)
    cache.set("soon", 1, 1)
    cache.set("kept", 1, 1)
    assert cache.touch("kept", 100) is True and cache.touch("no") is False
    assert cache.get("at_once") is None and cache.get("past") is None
    cache.set("touched", 1)
    assert cache.touch("touched", 0) is True and cache.get("touched") is None
    deadline = time.monotonic() + 10
    while cache.get("soon") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cache.get_many(["never", "month", "kept"]) == {"never": 1, "month": 1, "kept": 1}


def test_get_or_set(cache):
    assert cache.get_or_set("a", lambda: 5) == 5
    assert cache.get_or_set("a", 6) == 5
    assert cache.get_or_set("none", None) is None


def test_invalid_keys_warn_or_raise(cache):
    for wrong in ["a b", "x" * 300, "a\x00"]:
        with pytest.raises(InvalidCacheKey):
            cache.set(wrong, 1)
        with pytest.raises(InvalidCacheKey):
            cache.get_many([wrong])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.set("ключ", 1)
    assert cache.get("ключ") == 1


def test_too_long_value_raises_and_removes_the_old_one(cache):
    import fabcache

    cache.set("a", 1)
    with pytest.raises(fabcache.MemcacheServerError):
        cache.set("a", b"x" * (2 << 20))
    assert cache.get("a") is None


def test_async_calls_work(cache):
    async def main():
        await cache.aset("a", 1)
        assert await cache.aget("a") == 1
        assert await cache.aincr("a") == 2
        assert await cache.aget_many(["a"]) == {"a": 2}
        await cache.aclear()
        assert await cache.aget("a") is None

    asyncio.run(main())


def test_django_backend_reads_the_same_values(cache, server):
    other = handler(location(server), "django.core.cache.backends.memcached.PyMemcacheCache")["default"]
    for value in ["text", b"bytes", 5, [1, 2], None]:
        cache.set("a", value)
        assert other.get("a", "missing") == value
        other.set("b", value)
        assert cache.get("b", "missing") == value
    assert other.get_many(["a", "b"]) == cache.get_many(["a", "b"])


def test_threads_share_connections_across_requests(cache, server):
    caches = handler(location(server))
    seen = []

    def request():
        caches["default"].set("a", 1)
        caches["default"].close()
        seen.append(caches["default"]._cache)

    for _ in range(4):
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
    assert len(set(map(id, seen))) == 1


def test_keys_spread_over_servers(local, network):
    both = [f"unix:{local.path}", "%s:%d" % network.place]
    for place in (both, ";".join(both), ",".join(both)):
        cache = handler(place)["default"]
        cache.clear()
        values = {f"key{n}": n for n in range(200)}
        assert cache.set_many(values) == []
        assert cache.get_many(values) == values
        parts = [handler(one)["default"].get_many(values) for one in both]
        assert all(parts) and len(parts[0]) + len(parts[1]) == 200
        cache.delete_many(values)
        assert cache.get_many(values) == {}


def test_options_reach_the_client(cache, server):
    other = handler(location(server), KEY_PREFIX="site", OPTIONS={"key_prefix": b"x:", "timeout": 5}, TIMEOUT=100)["default"]
    other.set("a", 5)
    assert other.get("a") == 5 and cache.get("a") is None
    with pytest.raises((TypeError, InvalidCacheBackendError)):
        handler(location(server), OPTIONS={"no_such_option": 1})["default"].get("a")
