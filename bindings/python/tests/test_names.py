"""fabcache has pymemcache's public names, with the same arguments."""

import inspect

import pymemcache
import pymemcache.client.base
import pymemcache.client.hash
import pymemcache.exceptions
import pymemcache.serde
import pytest

import fabcache
import fabcache.client
import fabcache.exceptions
import fabcache.hash
import fabcache.serde

CLASSES = ["Client", "PooledClient", "HashClient", "KeepaliveOpts"]

# Not offered: pymemcache's own wrapper of any client works.
ELSEWHERE = {"RetryingClient"}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def takes(function):
    """Return the names, kinds and defaults of the parameters."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    return [(p.name, p.default) for p in parameters if p.kind in kinds and p.name != "self"]


def test_package_exports_pymemcaches_names():
    theirs = {name for name in public(pymemcache) if not inspect.ismodule(getattr(pymemcache, name))}
    assert theirs - ELSEWHERE <= public(fabcache)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_pymemcaches_names(name):
    theirs, ours = getattr(pymemcache, name), getattr(fabcache, name)
    assert public(theirs) <= public(ours)
    special = {"__getitem__", "__setitem__", "__delitem__"}
    assert {s for s in special if hasattr(theirs, s)} <= {s for s in special if hasattr(ours, s)}


@pytest.mark.parametrize("name", CLASSES)
def test_constructors_take_pymemcaches_arguments(name):
    theirs, ours = takes(getattr(pymemcache, name)), takes(getattr(fabcache, name))
    # The default hasher is a different class.
    def plain(parameters):
        return [(n, d.__name__ if inspect.isclass(d) else d) for n, d in parameters]

    assert plain(ours) == plain(theirs)


def calls():
    for name in CLASSES:
        theirs = getattr(pymemcache, name)
        for call in sorted(public(theirs)):
            if inspect.isfunction(getattr(theirs, call)):
                yield name, call


# Parameters that a pool or HashClient passes on as *args are named here, and may be more.
MORE = {("PooledClient", "gets"), ("PooledClient", "check_key"), ("PooledClient", "raw_command")}


@pytest.mark.parametrize("name, call", list(calls()))
def test_calls_take_pymemcaches_arguments(name, call):
    theirs = takes(getattr(getattr(pymemcache, name), call))
    ours = takes(getattr(getattr(fabcache, name), call))
    if (name, call) in MORE:
        assert [n for n, _ in theirs] == [n for n, _ in ours][: len(theirs)]
    else:
        assert ours == theirs


def test_client_has_pymemcaches_attributes(local):
    theirs = vars(pymemcache.Client(local.path))
    client = fabcache.Client(local.path)
    # A connection is not Python's.
    for name in theirs.keys() - {"sock"}:
        ours = getattr(client, name)
        if name != "serde":
            assert ours == theirs[name], name


def test_serializers_match_pymemcache():
    theirs = {n for n in public(pymemcache.serde) if not inspect.ismodule(getattr(pymemcache.serde, n))}
    assert theirs - {"BytesIO", "partial"} <= public(fabcache.serde)
    for name in theirs:
        value = getattr(pymemcache.serde, name)
        if isinstance(value, int):
            assert getattr(fabcache.serde, name) == value, name


def test_exceptions_match_pymemcache():
    def family(module):
        return {
            name: [base.__name__ for base in error.__mro__]
            for name, error in vars(module).items()
            if inspect.isclass(error)
        }

    assert family(fabcache.exceptions) == family(pymemcache.exceptions)


def test_server_addresses_parse_as_in_pymemcache():
    for spec in [("h", 1), "h", "h:1", "[::1]", "[::1]:5", "unix:/a/b", "unix:b", "/a"]:
        theirs = pymemcache.client.base.normalize_server_spec(spec)
        assert fabcache.client.normalize_server_spec(spec) == theirs
    for wrong in [5, None, b"h", ["h", 1], "h:port"]:
        for normalize in (
            pymemcache.client.base.normalize_server_spec,
            fabcache.client.normalize_server_spec,
        ):
            with pytest.raises(ValueError):
                normalize(wrong)


def test_fabric_servers_are_given_as_text():
    normalize = fabcache.client.normalize_server_spec
    for spec, written in [
        ("fab://h", "fab://h:11211"),
        ("fab://h:1", "fab://h:1"),
        ("FAB://h", "fab://h:11211"),
        ("fab://[::1]:5", "fab://[::1]:5"),
    ]:
        assert normalize(spec) == normalize(written) == written
        fabcache.Client(spec)
    for wrong in ["fab:///a", "fab://unix:a", "fab://h:port"]:
        with pytest.raises(ValueError):
            normalize(wrong)
    with pytest.raises(ValueError, match="one-sided"):
        fabcache.Client("fab://h", fabric="both")
    by_fabric = fabcache.HashClient(["fab://one:1", "Fab://two:2"])
    by_tcp = fabcache.HashClient(["one:1", "two:2"])
    for number in range(100):
        assert by_fabric.hasher.get_node(f"key{number}") == by_tcp.hasher.get_node(f"key{number}")


def test_keys_map_to_the_same_servers():
    nodes = ["10.0.0.1:11211", "10.0.0.2:11211", "/tmp/s", "ħost:1"]
    for seed in (0, 7, 0xFFFFFFFF):
        theirs = pymemcache.client.hash.RendezvousHash(list(nodes), seed)
        ours = fabcache.RendezvousHash(list(nodes), seed)
        for number in range(300):
            for key in (f"key{number}", b"key%d" % number, "ключ%d" % number, "x" * (number % 9)):
                assert ours.get_node(key) == theirs.get_node(key)
                assert ours.hash_function(f"{key}") == theirs.hash_function(f"{key}")
