"""The client for asyncio."""

import asyncio
import gc
import time

import pytest
from conftest import Answering

import fabcache
import fabcache.aio
from fabcache.aio import Client
from fabcache.serde import pickle_serde


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def test_every_call(cache, server, options):
    async def main():
        async with Client(server.place, **options) as c:
            assert await c.get("a") is None and await c.get("a", 5) == 5
            assert await c.set("a", "1") is True
            assert await c.get("a") == b"1"
            value, version = await c.gets("a")
            assert value == b"1" and await c.gets("no", 1, 2) == (1, 2)
            assert await c.cas("a", "2", version) is True
            assert await c.cas("a", "3", version) is False
            assert await c.cas("no", "3", version) is None
            assert await c.add("a", "4") is False and await c.add("b", "4") is True
            assert await c.replace("b", "5") is True and await c.replace("no", "5") is False
            assert await c.append("b", "6") is True and await c.prepend("b", "4") is True
            assert await c.get_many(["a", "b", "no"]) == {"a": b"2", "b": b"456"}
            many = await c.gets_many(["a", "no"])
            assert list(many) == ["a"] and many["a"][0] == b"2"
            assert await c.set_many({"n": "5", "m": "6"}, 100) == []
            assert await c.incr("n", 2) == 7 and await c.decr("n", 3) == 4
            assert await c.incr("no", 1) is None
            assert await c.touch("a", 100) is True and await c.touch("no") is False
            assert await c.gat("a", 100) == b"2" and (await c.gats("a", 100))[0] == b"2"
            assert await c.delete("a") is True and await c.delete("a") is False
            assert await c.delete_many(["n", "m"]) is True
            assert b"pid" in await c.stats()
            assert await c.version() == cache.version()
            assert await c.flush_all() is True
            assert await c.get_many(["b", "n"]) == {}
            assert c.client.transport() == cache.transport()

    run(main())


def test_concurrent_tasks_get_their_own_results(cache, server, options):
    async def main():
        c = Client(server.place, serde=pickle_serde, **options)

        async def task(number):
            for turn in range(30):
                await c.set(f"key{number}", (number, turn))
                assert await c.get(f"key{number}") == (number, turn)

        await asyncio.gather(*(task(number) for number in range(100)))

    run(main())


def test_requests_are_awaitable(cache):
    async def main():
        assert await cache.iset("a", "1") is True
        request = cache.iget("a")
        assert await request == b"1"
        assert await request == request.wait() == b"1"
        assert sorted(await asyncio.gather(*[cache.iget("a") for _ in range(50)])) == [b"1"] * 50

    run(main())


def test_refusals_raise(cache, server, options):
    async def main():
        c = Client(server.place, **options)
        with pytest.raises(fabcache.MemcacheServerError):
            await c.set("big", b"x" * (2 << 20))
        with pytest.raises(fabcache.MemcacheIllegalInputError):
            await c.get("a b")
        with pytest.raises(TypeError):
            await c.set(5, "1")
        ignoring = Client(server.place, ignore_exc=True, **options)
        with pytest.raises(fabcache.MemcacheIllegalInputError):
            await ignoring.get("a b")

    run(main())


def test_successive_event_loops(cache, server, options):
    c = Client(server.place, **options)
    for turn in range(5):

        async def main():
            await asyncio.gather(*(c.set(f"k{n}", str(turn)) for n in range(20)))
            return await asyncio.gather(*(c.get(f"k{n}") for n in range(20)))

        assert run(main()) == [str(turn).encode()] * 20
    gc.collect()
    # A closed loop is forgotten.
    assert len(fabcache.aio._waiting) == 0


@pytest.fixture
def silent():
    """A server that reads everything and never replies."""
    server = Answering(b"", False)
    yield server.place
    server.listener.close()


def test_task_can_be_cancelled(silent):
    async def main():
        c = Client(silent, timeout=30)
        # The loop runs on while the client connects to a server that does not reply.
        tasks = [asyncio.ensure_future(c.get("a")) for _ in range(10)]
        tasks += [asyncio.ensure_future(c.set("a", "1")) for _ in range(10)]
        for _ in range(20):
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        waiting = fabcache.aio._waiting[asyncio.get_running_loop()]
        assert not waiting._awaited
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(c.get("a"), 0.05)

    run(main())


def test_loop_closes_while_a_request_is_pending(silent):
    request = fabcache.Client(silent, timeout=0.5).iget("a")
    loop = asyncio.new_event_loop()

    async def start():
        task = asyncio.ensure_future(fabcache.aio._awaited(request))
        await asyncio.sleep(0.01)
        task.cancel()

    loop.run_until_complete(start())
    loop.close()
    with pytest.raises(TimeoutError):
        request.wait()


def test_timeouts_raise(silent):
    async def main():
        c = Client(silent, timeout=0.2)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            await c.get("a")
        assert time.monotonic() - begun < 5
        ignoring = Client(silent, timeout=0.2, ignore_exc=True)
        assert await ignoring.get("a", 7) == 7
        assert await ignoring.get_many(["a"]) == {}

    run(main())


def test_restarted_server_is_used_again(new_server):
    server = new_server(name="aio")

    async def main():
        c = Client(server.path, timeout=5, connect_timeout=5)
        await c.set("a", "1")
        server.kill()
        with pytest.raises((OSError, fabcache.MemcacheError)):
            await c.set("a", "2")
        await asyncio.get_running_loop().run_in_executor(None, lambda: new_server(name="aio"))
        deadline = time.monotonic() + 10
        while True:
            try:
                assert await c.get("a") is None
                break
            except (OSError, fabcache.MemcacheError):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        assert await c.set("a", "3") is True

    run(main())
