"""Servers that require authentication, with each protocol."""

import asyncio

import fabcache
import fabcache.aio
import pytest

ANN = {"username": "ann", "password": "secret word"}


@pytest.fixture
def users(folder):
    path = folder / "users"
    path.write_text("ann:secret word\n")
    return str(path)


def all_is_answered(cache):
    assert cache.set("a", b"1", noreply=False) and cache.get("a") == b"1"
    assert cache.iget("a").wait() == b"1" and cache.get_many(["a", "b"]) == {"a": b"1"}
    assert cache.version() == b"1.6.45"
    assert cache.stats()[b"threads"] == 2 and b"maxconns" in cache.stats("settings")
    assert cache.flush_all(noreply=False) and cache.get("a") is None


@pytest.mark.parametrize("protocol", ["auto", "meta", "text"])
@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_text_authentication(new_server, users, kind, protocol):
    server = new_server(kind, "-Y", users, name="login")
    insists = {"shared_memory": True if kind == "local" else None, "protocol": protocol, "timeout": 10}
    all_is_answered(fabcache.Client(server.place, **ANN, **insists))
    stranger = fabcache.Client(server.place, username="ann", password="guess", **insists)
    strangers_are_told(stranger, b"authentication failure")
    with pytest.raises(fabcache.MemcacheClientError, match="authentication failure"):
        stranger.raw_command("version")


@pytest.mark.parametrize("kind", ["local", "tcp"])
def test_sasl_authentication(new_server, users, kind):
    server = new_server(kind, "-S", "--sasl-pwdb", users, name="login")
    options = {"protocol": "binary", "timeout": 10}
    cache = fabcache.Client(server.place, **ANN, **options)
    all_is_answered(cache)
    assert cache.transport() == ("shared memory" if kind == "local" else "tcp")
    with pytest.raises(fabcache.MemcacheClientError, match="text protocol"):
        cache.raw_command("version")
    strangers_are_told(fabcache.Client(server.place, username="bob", password="", **options), b"Auth failure.")


def strangers_are_told(stranger, why):
    """Calls that ignore refusals raise as well: this client cannot run any request."""
    calls = [
        lambda: stranger.get("a"),
        lambda: stranger.set("a", b"1", noreply=True),
        lambda: stranger.delete_many(["a"]),
        lambda: stranger.iset("a", b"1").wait(),
        lambda: stranger.version(),
        lambda: stranger.flush_all(),
    ]
    for call in calls:
        with pytest.raises(fabcache.MemcacheClientError, match=why.decode()):
            call()


def test_every_client_accepts_credentials(new_server, users):
    server = new_server("tcp", "-Y", users)
    host, port = server.place
    for cache in [fabcache.PooledClient(server.place, **ANN), fabcache.HashClient([f"tcp://{host}:{port}"], **ANN)]:
        assert cache.set("a", b"1", noreply=False) and cache.get("a") == b"1"
    assert asyncio.run(fabcache.aio.Client(server.place, **ANN).get("a")) == b"1"


@pytest.mark.parametrize("protocol", ["auto", "meta", "binary", "text"])
def test_protocol_option_selects_the_protocol(network, protocol):
    all_is_answered(fabcache.Client(network.place, protocol=protocol, timeout=10))
    refused = {"protocol": "ascii"}, {"username": "ann"}, {"password": "guess"}
    for wrong in refused:
        with pytest.raises(ValueError, match="|".join(wrong)):
            fabcache.Client(network.place, **wrong)


def test_required_memory_failure_says_nothing_was_stored(new_server, folder):
    server = new_server("local", "--shm-users", "4242", name="others")
    insisting = fabcache.Client(server.place, shared_memory=True, timeout=10)
    with pytest.raises(fabcache.MemcacheClientError, match="unix://.*others.sock.*--shm-users"):
        insisting.set("a", b"1")
    assert fabcache.Client("unix://" + server.place, timeout=10).set("a", b"1", noreply=False)
