"""Many servers, as in pymemcache's HashClient."""

import time

import pymemcache
import pymemcache.serde
import pytest
from test_alike import SCRIPTS, do, outcome

import fabcache
import fabcache.serde

OPTIONS = {
    "plain": {"default_noreply": False},
    "pooled": {"use_pooling": True, "max_pool_size": 3},
    "prefix": {"key_prefix": b"p:", "default_noreply": False},
    "ignoring": {"ignore_exc": True, "default_noreply": False},
    "pickle": {"serde": "pickle_serde", "allow_unicode_keys": True, "default_noreply": False},
}


def made(package, serdes, servers, options, **more):
    options = {**options, **more}
    if "serde" in options:
        options["serde"] = getattr(serdes, options["serde"])
    return package.HashClient(servers, timeout=10, connect_timeout=10, **options)


def takes_more(call):
    """Calls that pymemcache's pool supports with a single key only."""
    name, arguments, options = call
    return name == "gets" and len(arguments) + len(options) > 1


def pair(servers, options, **more):
    return made(pymemcache, pymemcache.serde, servers, options, **more), made(fabcache, fabcache.serde, servers, options, **more)


@pytest.mark.parametrize("script", ["strings", "storing", "many", "versions", "numbers", "removing", "wrong keys", "values"])
@pytest.mark.parametrize("options", OPTIONS)
def test_results_match_pymemcache(script, options, local, network):
    theirs, ours = pair([local.path, network.place], OPTIONS[options])
    calls = [call for call in SCRIPTS[script] if not (options == "pooled" and takes_more(call))]
    ours.flush_all(noreply=False)
    expected = [outcome(theirs, call) for call in calls]
    theirs.close()
    ours.flush_all(noreply=False)
    for call, expected in zip(calls, expected):
        told = outcome(ours, call)
        if told[0] == "returned" and call[0].startswith("gets"):
            # CAS versions differ.
            assert repr(told)[:20] == repr(expected)[:20]
        else:
            assert told == expected, call
    ours.close()


def test_keys_map_to_the_same_servers_as_in_pymemcache(local, network):
    theirs, ours = pair([local.path, "127.0.0.1:%d" % network.port], OPTIONS["plain"])
    ours.flush_all()
    keys = [f"key{n}" for n in range(300)]
    assert ours.set_many({key: key for key in keys[:150]}) == []
    assert theirs.set_many({key: key for key in keys[150:]}) == []
    assert ours.get_many(keys) == theirs.get_many(keys) == {key: key.encode() for key in keys}
    assert all(ours.get(key) == theirs.get(key) == key.encode() for key in keys)
    assert all(fabcache.Client(place).get_many(keys) for place in (local.path, network.place))
    assert ours.gets_many(keys[:5]) == theirs.gets_many(keys[:5])
    assert ours.delete_many(keys) is True
    assert theirs.get_many(keys) == {}


def of(client, name):
    """Return keys of this server."""
    return [key for key in (f"key{n}" for n in range(100)) if client.hasher.get_node(key) == name]


@pytest.mark.parametrize("ignore_exc", [False, True])
def test_failed_server_is_retried_then_removed(ignore_exc, local, new_server):
    servers = [local.path, ("127.0.0.1", 1)]
    theirs, ours = pair(
        servers, {"ignore_exc": ignore_exc, "retry_attempts": 1, "retry_timeout": 0.4, "dead_timeout": 2.0}
    )
    key = of(ours, "127.0.0.1:1")[0]
    ours.clients[local.path].delete(key, noreply=False)
    seen = []
    for client in (theirs, ours):
        told = [outcome(client, do("get", key, default=7))]
        # The server is not retried this soon.
        told.append(outcome(client, do("get", key, default=7)))
        time.sleep(0.5)
        told.append(outcome(client, do("get", key, default=7)))
        time.sleep(0.5)
        told.append(outcome(client, do("set", key, "1")))
        # Now its keys belong to the other server.
        told.append(outcome(client, do("set", key, "1", noreply=False)))
        told.append(outcome(client, do("get", key)))
        ours.clients[local.path].delete(key, noreply=False)
        time.sleep(2.2)
        told.append(outcome(client, do("get", key, default=7)))
        seen.append([(what[0], what[1]) for what in told])
    assert seen[1] == seen[0]


def test_servers_are_added_and_removed(local, network):
    client = fabcache.HashClient([local.path], default_noreply=False)
    client.flush_all()
    client.add_server("127.0.0.1", network.port)
    assert len(client.clients) == 2 and of(client, local.path) and of(client, f"127.0.0.1:{network.port}")
    client.remove_server("127.0.0.1", network.port)
    assert of(client, local.path) == [f"key{n}" for n in range(100)]
    client.remove_server(local.path)
    with pytest.raises(fabcache.MemcacheError):
        client.get("a")
    client.ignore_exc = True
    assert client.get("a", 5) == 5 and client.set("a", 1) is False
    assert client.set_many({"a": 1}) == ["a"] and client.get_many(["a"]) == {}
    with pytest.raises(TypeError):
        client.add_server(("h", 1), 5)
