"""Servers that fail, wrong input, many threads, forks."""

import itertools
import multiprocessing
import os
import random
import socket
import threading
import time
import traceback

import pymemcache
import pytest
from conftest import Answering

import fabcache
from fabcache.serde import pickle_serde


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def family(error):
    return [base.__name__ for base in type(error).__mro__]


# ---- servers ----


def test_missing_server_raises_as_in_pymemcache(folder):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for place in [unused.getsockname(), str(folder / "none.sock"), str(folder)]:
            ours, theirs = fabcache.Client(place, timeout=1), pymemcache.Client(place, timeout=1)
            for call in (lambda c: c.get("a"), lambda c: c.set("a", 1), lambda c: c.delete("a"), lambda c: c.version()):
                error, expected = raised(lambda: call(ours)), raised(lambda: call(theirs))
                assert family(error) == family(expected) and error.errno == expected.errno, place
    ignoring = fabcache.Client(str(folder / "none.sock"), ignore_exc=True)
    assert (ignoring.get("a"), ignoring.get("a", 5), ignoring.get_many(["a"])) == (None, 5, {})
    assert (ignoring.gets("a", 1, 2), ignoring.gets_many(["a"]), ignoring.stats()) == ((1, 2), {}, {})
    assert isinstance(raised(lambda: ignoring.set("a", 1)), FileNotFoundError)


@pytest.mark.parametrize(
    "answer, closes, kind",
    [
        (b"", False, TimeoutError),
        (b"", True, fabcache.MemcacheUnexpectedCloseError),
        (b"no answer at all\r\n", False, fabcache.MemcacheUnknownError),
        (b"SERVER_ERROR out of memory storing object\r\n", False, fabcache.MemcacheServerError),
        (b"CLIENT_ERROR something\r\n", False, fabcache.MemcacheClientError),
        (b"ERROR\r\n", False, fabcache.MemcacheUnknownCommandError),
        (b"VA 5 f0 c1\r\nhel", True, fabcache.MemcacheUnexpectedCloseError),
    ],
)
def test_server_faults_raise(answer, closes, kind):
    server = Answering(answer, closes)
    ours, theirs = fabcache.Client(server.place, timeout=0.3), pymemcache.Client(server.place, timeout=0.3)
    assert type(raised(lambda: ours.get("a"))) is kind
    if not answer.startswith(b"VA"):
        assert family(raised(lambda: ours.get("a"))) == family(raised(lambda: theirs.get("a")))
        set_one = [raised(lambda: c.set("a", 1, noreply=False)) for c in (ours, theirs)]
        assert family(set_one[0]) == family(set_one[1])
    if b"ERROR" not in answer:
        # After a refusal more bytes are due, and are awaited.
        assert type(raised(lambda: ours.get_many(["a", "b"]))) is kind
    assert type(raised(lambda: ours.iget("a").wait())) is kind
    if kind is fabcache.MemcacheUnexpectedCloseError:
        for call in (lambda: ours.get("a"), lambda: ours.iget("a").wait(), lambda: ours.raw_command("version", "END\r\n")):
            assert "closed the connection" in str(raised(call))
    server.listener.close()


def test_waiting_for_a_pooled_connection_times_out(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "silent.sock"))
        listener.listen()
        cache = fabcache.Client(str(folder / "silent.sock"), timeout=0.3)
        for call in (cache.get, cache.delete, lambda key: cache.iget(key).wait()):
            begun = time.monotonic()
            assert isinstance(raised(lambda: call("a")), TimeoutError)
            assert 0.2 < time.monotonic() - begun < 5


def test_restarted_server_is_used_again(new_server):
    for kind, shared in [("local", True), ("local", False), ("tcp", None)]:
        server = new_server(kind, name="back")
        cache = fabcache.Client(server.place, timeout=10, shared_memory=shared, default_noreply=False)
        assert cache.set("a", "1") and cache.get("a") == b"1"
        server.kill()
        error = raised(lambda: cache.get("a"))
        assert isinstance(error, (OSError, fabcache.MemcacheUnexpectedCloseError)), error
        again = type(server)(path=server.path, port=server.port)
        assert cache.get("a") is None
        assert cache.set("a", "2") and cache.get("a") == b"2"
        again.kill()


def test_refused_values_are_not_reported_as_stored(server, way):
    cache = fabcache.Client(server.place, timeout=30)
    large = b"x" * (2 << 20)
    assert cache.default_noreply and cache.set("small", b"x") is True
    for store in (cache.set, cache.add, cache.replace):
        assert store("small", large) is False
    many = {f"k{i}": large if i % 70 == 0 else b"x" for i in range(150)}
    assert sorted(cache.set_many(many)) == ["k0", "k140", "k70"]
    assert cache.get_many(["k0", "k1", "k149"]) == {"k1": b"x", "k149": b"x"}
    with pytest.raises(fabcache.MemcacheServerError, match="too large"):
        cache.set("small", large, noreply=False)


def test_reason_for_no_shared_memory(folder, local):
    path = str(folder / "reason.sock")
    keeping = type(local)("--shm-users", "4242", path=path)
    cache = fabcache.Client(path, timeout=30)
    assert cache.transport() is None and cache.transport_reason() is None
    cache.get("a")
    assert cache.transport() == "unix" and "--shm-users" in cache.transport_reason()
    sharing = fabcache.Client(local.place, timeout=30)
    sharing.get("a")
    assert sharing.transport() == "shared memory" and sharing.transport_reason() is None
    keeping.stop()


def test_required_shared_memory(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "plain.sock"))
        listener.listen()
        Answering(b"ERROR\r\n", False, listener)
        insisting = fabcache.Client(str(folder / "plain.sock"), timeout=5, connect_timeout=5, shared_memory=True)
        assert "shares no memory" in str(raised(lambda: insisting.get("a")))
        listener.shutdown(socket.SHUT_RDWR)
    for place in [("127.0.0.1", 1), "fab://127.0.0.1:1"]:
        with pytest.raises(ValueError, match="shared memory is required"):
            fabcache.Client(place, shared_memory=True)


def test_invalid_arguments_raise():
    for wrong in [{"timeout": 0}, {"timeout": -1}, {"connect_timeout": float("nan")}]:
        with pytest.raises(ValueError):
            fabcache.Client("h", **wrong)
    for wrong in [{"timeout": "x"}, {"key_prefix": 5}, {"encoding": 5}, {"no_such": 1}]:
        with pytest.raises(TypeError):
            fabcache.Client("h", **wrong)
    for wrong in ["", "h:port", "h:70000", ("h",), ("h", 1, 2), 5, None, "unix:", ("", 1), "a?b"]:
        with pytest.raises((ValueError, TypeError)):
            fabcache.Client(wrong)
    with pytest.raises((TypeError, AttributeError)):
        fabcache.Client("h", serde=object())
    for refused in [{"tls_context": object()}, {"socket_module": os}, {"socket_keepalive": 5}]:
        with pytest.raises(ValueError):
            fabcache.Client("h", **refused)
    with pytest.raises(ValueError):
        fabcache.PooledClient("h", max_pool_size=-1)

    class Unready(fabcache.Client):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError):
        Unready().get("a")


# ---- input ----


def test_keys_may_hold_any_bytes(cache):
    for key in [b"\x01\x7f\x80\xff", b"\xff" * 186, "ü" * 93]:
        cache.allow_unicode_keys = True
        assert cache.set(key, "1") and cache.get(key) == b"1" and cache.get_many([key]) == {key: b"1"}
        assert cache.iget(key).wait() == b"1" and cache.delete(key)
    assert isinstance(raised(lambda: cache.set(b"\xff" * 187, "1")), fabcache.MemcacheClientError)



def test_no_argument_panics(cache):
    """A panic is not an Exception, so it would fail this test."""
    chance = random.Random(5)
    things = [
        None, True, 0, -1, 1 << 31, 1 << 64, 1 << 70, -(1 << 70), 1.5, float("nan"), "", "a", "a b", "k" * 300, "ü", "\ud800",
        b"", b"a", b"\xff", b"\x00", bytearray(b"x"), memoryview(b"x"), [], ["a"], [None], ["a", 5], ("a", "b"), {}, {"a": 1},
        {"a b": 1}, {5: 5}, {"a": "\ud800"}, set(), object(), lambda: 1, iter(["a"]), range(3), Exception, cache,
    ]  # fmt: skip
    # The first server never replies; the others are the tests' own.
    calls = [n for n in dir(cache) if callable(getattr(cache, n)) and not n.startswith("__")]
    calls = [n for n in calls if n not in ("shutdown", "client_class", "raw_command", "cache_memlimit", "_configure")]
    calls += ["__getitem__", "__setitem__", "__delitem__"]
    outcomes = {"returned": 0, "raised": 0}
    for _ in range(20_000):
        name = chance.choice(calls)
        arguments = [chance.choice(things) for _ in range(chance.randrange(5))]
        try:
            result = getattr(cache, name)(*arguments)
            if isinstance(result, fabcache.Request):
                result.wait()
            outcomes["returned"] += 1
        except Exception:
            outcomes["raised"] += 1
    assert min(outcomes.values()) > 100
    cache.set("a", "1")
    assert cache.get("a") == b"1"


def test_private_calls_reject_wrong_arguments(cache):
    from fabcache._fabcache import BaseClient, Request, Value, Wakeups, murmur3_32, rendezvous_score

    for call in [
        lambda: Request(), lambda: Value(), lambda: Wakeups().watch(None, 1), lambda: Wakeups().watch(cache.iget("a"), -1),
        lambda: murmur3_32(5), lambda: murmur3_32("a", -1), lambda: rendezvous_score("a", b"b", 1), lambda: murmur3_32("\ud800"),
        lambda: BaseClient().get("a"), lambda: BaseClient().close("x"), lambda: cache._configure(1), lambda: BaseClient().serde,
    ]:  # fmt: skip
        assert raised(call) is not None


class Odd:
    """A serializer that calls the client."""

    def __init__(self):
        self.cache = None

    def serialize(self, key, value):
        self.cache.serde = self
        self.cache.close()
        self.cache.get("other")
        return value, 1

    def deserialize(self, key, value, flags):
        self.cache.key_prefix = b""
        self.cache.get_view("other")
        if value == b"raise":
            raise KeyError(key)
        return value


def test_serializer_may_use_the_client(server, options):
    odd = Odd()
    cache = fabcache.Client(server.place, serde=odd, default_noreply=False, **options)
    odd.cache = cache
    assert cache.set("odd", b"1") and cache.get("odd") == b"1"
    assert cache.set_many({"odd": b"2", "raise": b"raise"}) == []
    assert cache.iget("odd").wait() == b"2"
    for call in (lambda: cache.get("raise"), lambda: cache.get_many(["odd", "raise"]), lambda: cache.iget("raise").wait()):
        with pytest.raises(KeyError):
            call()
    cache.ignore_exc = True
    assert cache.get("raise", 5) == 5 and cache.get_many(["odd", "raise"]) == {}
    for wrong in (lambda k, v: v, lambda k, v: (v, "x"), lambda k, v: (v, -1), lambda k, v: (v, 1 << 32), lambda k, v: 1 / 0):
        broken = fabcache.Client(server.place, serializer=wrong, **options)
        assert raised(lambda: broken.set("a", b"1")) is not None


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_calls_leak_no_references(cache):
    big = b"x" * 100_000
    cache.set("big", big)

    def turn():
        for number in range(300):
            cache.get("big")
            cache.get_view("big")
            cache.get_many(["big", f"no{number}"])
            cache.iget("big").wait()
            cache.iget("big")
            cache.set("other", big)
            cache.set_many({"other": big})
            cache.iset("other", big).wait()
            raised(lambda: cache.get("a b"))
            raised(lambda: cache.incr("big", 1))
            cache.close()

    turn()
    before = resident_bytes()
    for _ in range(4):
        turn()
    assert resident_bytes() - before < 30 << 20, "a quarter of what leaking one value per call would be"


# ---- threads ----


def test_soak_with_eight_threads(cache, server, options):
    """Threads have their own keys, and share some keys that each writes whole; no other value is ever read."""
    shared = fabcache.Client(server.place, serde=pickle_serde, default_noreply=False, **options)
    seconds = float(os.environ.get("SOAK_SECONDS", "3"))
    end = time.monotonic() + seconds
    faults, turns = [], itertools.count()

    def value(number, turn):
        return bytes([number]) * chance_len[turn % len(chance_len)]

    chance_len = [0, 1, 30, 64, 500, 4000, 30_000]

    def work(number):
        chance = random.Random(number)
        mine = [f"t{number}k{n}" for n in range(20)]
        held = {}
        try:
            while time.monotonic() < end:
                turn = next(turns)
                key = chance.choice(mine)
                kind = chance.randrange(9)
                if kind == 0:
                    held[key] = value(number, turn)
                    assert shared.set(key, held[key])
                elif kind == 1:
                    assert shared.delete(key) == (key in held)
                    held.pop(key, None)
                elif kind == 2:
                    assert shared.get_many(mine) == held
                elif kind == 3:
                    requests = [shared.iget(one) for one in mine]
                    assert [r.wait() for r in requests] == [held.get(one) for one in mine]
                elif kind == 4:
                    held.update({one: value(number, turn) for one in mine[:5]})
                    assert shared.set_many({one: held[one] for one in mine[:5]}) == []
                elif kind == 5:
                    assert shared.add(key, b"new") == (key not in held)
                    held.setdefault(key, b"new")
                elif kind == 6:
                    view = shared.get_view(key)
                    assert (view if view is None else bytes(view)) == held.get(key)
                else:
                    shared.set("common", value(number, turn))
                    found = shared.get("common")
                    assert found is None or len(set(found)) <= 1 and len(found) in chance_len
                assert shared.get(key) == held.get(key)
        except BaseException:
            faults.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
    assert next(turns) > 500


def test_clients_are_closed_and_changed_while_in_use(cache):
    stop = threading.Event()
    faults = []

    def busy(number):
        try:
            while not stop.is_set():
                key = f"busy{number}"
                assert cache.set(key, b"1" * 100)
                assert cache.get(key) == b"1" * 100
                # Requests before and after a close use different connections.
                assert [r.wait() for r in [cache.iget(key) for _ in range(10)]] == [b"1" * 100] * 10
                assert cache.iset(key, b"2").wait()
                assert cache.get_many([key]) == {key: b"2"}
        except BaseException:
            faults.append(traceback.format_exc())

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2
    turns = 0
    while time.monotonic() < end and not faults:
        cache.close()
        cache.ignore_exc = not cache.ignore_exc
        cache.serde = fabcache.serde.LegacyWrappingSerde(None, None)
        turns += 1
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
    assert turns > 50


def test_waiting_releases_the_gil():
    server = Answering(b"", False)
    cache = fabcache.Client(server.place, timeout=1)
    thread = threading.Thread(target=lambda: raised(lambda: cache.get("a")))
    begun = time.monotonic()
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.01)
    assert time.monotonic() - begun >= 0.9 and turns > 20


# ---- forks ----


def in_child(body):
    """Return whether a child running this exits cleanly."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def connections(cache):
    return cache.stats()[b"total_connections"]


def test_child_opens_its_own_connections(cache):
    cache.set("a", b"parent")
    flying = cache.iset("b", b"1")
    before = connections(cache)

    def child():
        assert cache.get("a") == b"parent"
        assert cache.transport() is not None
        assert cache.set("a", b"child") and cache.get("a") == b"child"
        # Replies to the parent stay with the parent.
        for call in (flying.test, flying.wait):
            assert isinstance(raised(call), fabcache.MemcacheUnexpectedCloseError)
        for number in range(200):
            cache.set("own", str(number))
            assert cache.get("own") == str(number).encode()
            assert cache.iget("own").wait() == str(number).encode()

    assert in_child(child)
    assert flying.wait() is True
    assert cache.get("a") == b"child" and cache.set("a", b"parent") and cache.get("a") == b"parent"
    assert connections(cache) - before >= 2, "the child opened a connection"


def test_parent_and_children_run_concurrently(cache):
    def work(name):
        for turn in range(300):
            assert cache.set(name, b"%d" % turn)
            assert cache.get(name) == b"%d" % turn
            assert cache.iset(name + "i", b"%d" % turn).wait()
            assert cache.get(name + "i") == b"%d" % turn

    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(f"child{number}")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    work("parent")
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork_while_threads_use_the_client(cache):
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            cache.set("busy", b"1" * 1000)
            cache.get("busy")
            [request.wait() for request in [cache.iget("busy"), cache.iset("busy", b"2")]]

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):

            def child():
                assert cache.set("mine", b"1") and cache.get("mine") == b"1"
                assert cache.iget("mine").wait() == b"1"
                cache.close()

            assert in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def add_one(_):
    return of_all_processes.incr("n", 1)


def test_multiprocessing_workers_use_the_client(cache):
    global of_all_processes
    of_all_processes = cache
    cache.set("n", "0")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert sorted(pool.map(add_one, range(100))) == list(range(1, 101))
    assert cache.get("n") == b"100"
