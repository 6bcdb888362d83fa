"""The same calls of pymemcache and fabcache, against the same server, have the same results and exceptions."""

import collections
import datetime
import json
import time

import pymemcache
import pymemcache.serde
import pytest
from conftest import WAYS

import fabcache
import fabcache.serde


class Json:
    def serialize(self, key, value):
        return (value, 1) if isinstance(value, str) else (json.dumps(value), 2)

    def deserialize(self, key, value, flags):
        if flags == 1:
            return value.decode()
        if flags == 2:
            return json.loads(value)
        raise ValueError(f"flags {flags}")


class Text(str):
    pass


class Thing:
    def __init__(self, what):
        self.what = what

    def __eq__(self, other):
        return isinstance(other, Thing) and self.what == other.what


LONG = "k" * 250


def do(name, *arguments, **options):
    return name, arguments, options


# Each script is a list of calls, made in order on one client.
SCRIPTS = {
    "strings": [
        do("set", "a", "text"), do("get", "a"), do("get", b"a"), do("set", b"a", b"\x00\xff\r\n"), do("get", "a"),
        do("set", "a", ""), do("get", "a"), do("get", "a", 5), do("get", "no"), do("get", "no", 5), do("get", "no", default=[]),
        do("set", LONG, b"1"), do("get", LONG), do("delete", LONG),
    ],
    "values that are not text": [
        do("set", "a", 5), do("get", "a"), do("set", "a", None), do("get", "a"), do("set", "a", 1.5), do("get", "a"),
        do("set", "a", [1, "b"]), do("get", "a"), do("set", "a", bytearray(b"x")), do("get", "a"), do("set", "a", "ü"),
        do("get", "a"), do("set", "a", Text("t")), do("get", "a"), do("set", "a", "\ud800"),
    ],
    "storing": [
        do("add", "a", "1"), do("add", "a", "2"), do("replace", "a", "3"), do("replace", "b", "3"), do("get", "a"),
        do("append", "a", "4"), do("prepend", "a", "2"), do("append", "b", "4"), do("prepend", "b", "4"), do("get", "a"),
        do("set", "a", "1", 0, False), do("set", "a", "1", expire=100, noreply=True), do("set", "a", "1", 0, None, 7),
        do("add", "c", "1", noreply=True), do("add", "c", "2", noreply=True), do("get", "c"),
        do("set", "a", "1", -1), do("get", "a"), do("set", "a", "1", 2000000000), do("get", "a"), do("set", "a", "1", 100),
        do("get", "a"), do("set", "a", "x", flags=4294967295), do("get", "a"),
    ],
    "many": [
        do("set_many", {"a": "1", "b": 2, b"c": b"3"}), do("get_many", ["a", "b", "no", b"c"]), do("get_many", ("a", "a")),
        do("get_many", []), do("get_many", None), do("get_multi", {"a", "b"}), do("gets_many", []), do("set_many", {}),
        do("set_multi", {"a": "5"}, 0, False), do("get", "a"), do("delete_many", ["a", "no"]), do("delete_many", []),
        do("delete_many", None), do("delete_multi", ["b"], False), do("get_many", ["a", "b", b"c"]), do("get_many", "abc"),
        do("set_many", {f"k{i}": "v" * i for i in range(500)}), do("get_many", [f"k{i}" for i in range(500)]),
        do("set_many", {"a": "1", "b c": "2"}), do("get_many", ["a", "b c"]), do("get_many", [5]), do("get_many", 5),
        do("set_many", 5), do("set_many", [("a", 1)]),
    ],
    "versions": [
        do("set", "a", "1"), do("cas", "a", "2", 99999999999), do("cas", "a", "2", "99999999999"), do("cas", "a", "2", b"99999999999"), do("cas", "no", "2", 1),
        do("cas", "a", "2", 1, 0, True), do("cas", "a", "2", "x"), do("cas", "a", "2", None), do("cas", "a", "2", -1),
        do("cas", "a", "2", ""), do("cas", "a", "2", "ü"), do("cas", "a", "2", 1.0), do("cas", "a", "2", 1 << 64),
        do("gets", "no"), do("gets", "no", 5), do("gets", "no", 5, 6), do("gets", "no", cas_default=0), do("get", "a"),
        do("gets_many", ["no"]),
    ],
    "numbers": [
        do("set", "n", "10"), do("incr", "n", 5), do("decr", "n", 3), do("decr", "n", 100), do("get", "n"), do("incr", "no", 1),
        do("decr", "no", 1), do("incr", "n", 1, True), do("get", "n"), do("incr", "n", 1, noreply=True), do("incr", "n", 0),
        do("incr", "n", (1 << 64) - 1), do("incr", "n", 1), do("incr", "n", -1), do("incr", "n", 1 << 64), do("incr", "n", "1"),
        do("incr", "n", 1.0), do("incr", "n", None), do("set", "n", "x"), do("incr", "n", 1), do("decr", "n", 1),
        do("incr", "n", 1, True), do("get", "n"),
    ],
    "removing": [
        do("set", "a", "1"), do("delete", "a"), do("delete", "a"), do("delete", "a", True), do("delete", "a", noreply=False),
        do("set", "a", "1"), do("touch", "a", 100), do("touch", "a"), do("touch", "no", 5), do("touch", "no", 5, True),
        do("touch", "a", -1), do("get", "a"), do("flush_all",), do("flush_all", 0, False), do("flush_all", noreply=True),
        do("flush_all", "x"), do("flush_all", 1.5),
    ],
    "wrong keys": [
        call
        for key in ["a b", " a", "a\n", "a\tb", "a\x00b", b"a b", "ü", "k" * 251, b"k" * 251, 5, None, ("a",)]
        for call in [do("get", key), do("gets", key), do("delete", key), do("incr", key, 1), do("touch", key)]
    ] + [do("set", "a b", 1), do("add", "ü", 1), do("cas", "a b", 1, 1), do("set", 5, 1), do("get",), do("set", "a")],
    "wrong times": [
        do("set", "a", "1", "x"), do("set", "a", "1", 1.5), do("set", "a", "1", None), do("touch", "a", "1"), do("touch", "a", None),
        do("add", "a", "1", b"1"), do("set", "a", "1", 1 << 70), do("set_many", {"a": 1}, "x"), do("get", "a", 1, 2),
        do("set", "a", "1", unknown=1),
    ],
    "the server": [
        do("version",), do("raw_command", "version"), do("raw_command", b"mn", b"\r\n"), do("raw_command", "no such thing"),
        do("raw_command", "set a 0 0 1\r\nx"), do("raw_command", "get a", "END\r\n"), do("raw_command", "incr a 1"),
        do("cache_memlimit", "x"), do("cache_memlimit", 64), do("stats", "no such thing"), do("shutdown",), do("quit",),
        do("get", "a"), do("close",), do("get", "a"), do("disconnect_all",), do("get", "a"),
    ],
    "items": [
        do("__setitem__", "a", "1"), do("__getitem__", "a"), do("__getitem__", "no"), do("__delitem__", "a"),
        do("__getitem__", "a"), do("check_key", "a", b"p:"), do("check_key", "a b", b""), do("check_key", "a", b"p" * 250),
    ],
    "overlong keys and values": [
        do("set", "big", b"x" * (2 << 20), 0, False), do("get", "big"), do("set", "big", b"x" * 900_000), do("get", "big"),
        do("set", "mid", b"y" * 70_000), do("get", "mid"), do("append", "mid", b"z" * 1000), do("get", "mid"),
    ],
}

VALUES = [
    b"bytes", "text", "ünïcode", "", b"", 5, -5, 1 << 80, True, None, 1.5, [1, 2], {"a": (1, 2)}, {1, 2},
    datetime.datetime(2020, 1, 1), Text("subclass"), Thing(5), collections.OrderedDict(a=1), b"long" * 500, "lang" * 500,
]
SCRIPTS["values"] = [
    call for n, value in enumerate(VALUES) for call in [do("set", f"v{n}", value), do("get", f"v{n}")]
] + [do("get_many", [f"v{n}" for n in range(len(VALUES))])]

MAKE = {
    "plain": {"default_noreply": False},
    "noreply": {},
    "prefix": {"key_prefix": b"prefix:", "default_noreply": False},
    "text prefix": {"key_prefix": "p:"},
    "unicode": {"allow_unicode_keys": True, "encoding": "utf8", "default_noreply": False},
    "ignoring": {"ignore_exc": True, "default_noreply": False},
    "json": {"serde": Json(), "default_noreply": False},
    "functions": {
        "serializer": lambda key, value: (repr(value), 3),
        "deserializer": lambda key, value, flags: (key, value, flags),
        "default_noreply": False,
    },
    "pickle": {"serde": ("pickle_serde", ()), "default_noreply": False},
    "pickle 2": {"serde": ("PickleSerde", (2,)), "default_noreply": False},
    "compressed": {"serde": ("compressed_serde", ()), "default_noreply": False},
}


def made(package, serdes, place, options, **more):
    options = dict(options)
    if isinstance(options.get("serde"), tuple):
        name, arguments = options["serde"]
        serde = getattr(serdes, name)
        options["serde"] = serde(*arguments) if arguments else serde
    return package.Client(place, timeout=30, connect_timeout=10, **options, **more)


def outcome(client, call):
    """Return a call's result, or the exception's name and arguments."""
    name, arguments, options = call
    try:
        return "returned", getattr(client, name)(*arguments, **options)
    except Exception as error:
        family = [base.__name__ for base in type(error).__mro__]
        # Python words wrong arguments of functions differently.
        return "raised", family, () if isinstance(error, (TypeError, AttributeError)) else error.args


def test_scripts_cover_every_public_call():
    called = {call[0] for script in SCRIPTS.values() for call in script}
    public = {name for name in dir(pymemcache.Client) if not name.startswith("_")}
    assert public - called == set()


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("make", MAKE)
def test_results_match_pymemcache(make, script, cache, server, way):
    calls = SCRIPTS[script]
    theirs = made(pymemcache, pymemcache.serde, server.place, MAKE[make])
    ours = made(fabcache, fabcache.serde, server.place, MAKE[make], shared_memory=WAYS[way])
    cache.flush_all()
    expected = [outcome(theirs, call) for call in calls]
    cache.flush_all()
    for call, expected in zip(calls, expected):
        assert outcome(ours, call) == expected, call
    theirs.close()
    ours.close()


@pytest.mark.parametrize("script", ["strings", "storing", "many", "numbers", "removing", "wrong keys", "values"])
def test_pool_results_match_pymemcache(script, cache, server, way):
    calls = [call for call in SCRIPTS[script] if not (call[0] == "gets" and len(call[1]) > 1)]
    options = {"max_pool_size": 2, "pool_idle_timeout": 5, "timeout": 30, "default_noreply": False}
    theirs = pymemcache.PooledClient(server.place, **options)
    ours = fabcache.PooledClient(server.place, shared_memory=WAYS[way], **options)
    cache.flush_all()
    expected = [outcome(theirs, call) for call in calls]
    cache.flush_all()
    for call, expected in zip(calls, expected):
        assert outcome(ours, call) == expected, call
    theirs.close()
    ours.close()


@pytest.mark.parametrize("make", MAKE)
def test_both_clients_read_each_others_values(make, cache, server, way):
    theirs = made(pymemcache, pymemcache.serde, server.place, MAKE[make])
    ours = made(fabcache, fabcache.serde, server.place, MAKE[make], shared_memory=WAYS[way])
    for number, value in enumerate(VALUES):
        for one, other in ((theirs, ours), (ours, theirs)):
            key = f"v{number}"
            cache.flush_all()
            stored = outcome(one, do("set", key, value, noreply=False))
            assert outcome(other, do("get", key)) == outcome(one, do("get", key))
            is_stored = stored == ("returned", True)
            assert is_stored == (outcome(other, do("get", key, cache)) != ("returned", cache))
            assert outcome(other, do("get_many", [key])) == outcome(one, do("get_many", [key]))
            assert outcome(other, do("gets", key)) == outcome(one, do("gets", key))


def test_cas_versions_are_bytes_for_both_clients(cache, server, way):
    theirs = made(pymemcache, pymemcache.serde, server.place, {})
    cache.set("a", "1")
    value, version = cache.gets("a")
    assert (value, version) == theirs.gets("a")
    assert cache.gets_many(["a"]) == theirs.gets_many(["a"]) == {"a": (b"1", version)}
    assert theirs.cas("a", "2", version) is True
    assert cache.cas("a", "3", version) is False
    assert cache.cas("a", "3", theirs.gets("a")[1]) is True
    cache.delete("a")
    assert cache.cas("a", "4", version) is None


def test_statistics_match_in_names_and_types(cache, server):
    theirs = made(pymemcache, pymemcache.serde, server.place, {})
    for topic in [(), ("settings",), ("items",)]:
        told, expected = cache.stats(*topic), theirs.stats(*topic)
        assert {n: type(v) for n, v in told.items()} == {n: type(v) for n, v in expected.items()}
    assert len(cache.stats()) > 30


def test_times_to_live_match_pymemcache(cache):
    cache.set("short", "1", expire=1)
    cache.set("touched", "1")
    cache.touch("touched", 1)
    cache.set("seen", "1", expire=1)
    assert cache.gat("seen", 100) == b"1"
    assert cache.gats("seen", 100)[0] == b"1"
    assert (cache.gat("no", 5, 7), cache.gats("no", 5, 7, 8)) == (7, (7, 8))
    cache.set("dated", "1", expire=int(time.time()) + 100)
    deadline = time.monotonic() + 10
    while cache.get_many(["short", "touched"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cache.get_many(["seen", "dated"]) == {"seen": b"1", "dated": b"1"}


def test_pymemcache_wrappers_accept_our_clients(cache):
    from pymemcache.client.retrying import RetryingClient
    from pymemcache.fallback import FallbackClient

    retrying = RetryingClient(cache, attempts=2, retry_for=[fabcache.MemcacheUnexpectedCloseError])
    assert retrying.set("a", "1") is True and retrying.get("a") == b"1"
    retrying["a"] = "2"
    assert retrying["a"] == b"2"
    falling_back = FallbackClient([fabcache.Client("/no/server", ignore_exc=True), cache])
    assert falling_back.get("a") == b"2" and falling_back.get_many(["a"]) == {"a": b"2"}
