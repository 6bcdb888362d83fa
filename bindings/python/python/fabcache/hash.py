"""A client of many servers that places keys like pymemcache's HashClient."""

import logging
import socket
import ssl
import time
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, List, Optional, Protocol, Tuple, Type, Union

from fabcache import serde as _serde
from fabcache._fabcache import murmur3_32, rendezvous_score
from fabcache._text import FABRIC, ServerSpec, behind
from fabcache.client import Client, Key, KeepaliveOpts, PooledClient, normalize_server_spec
from fabcache.exceptions import MemcacheError

logger = logging.getLogger(__name__)


class Hasher(Protocol):
    """Chooses the server of a key."""

    def add_node(self, node: str) -> None: ...

    def remove_node(self, node: str) -> None: ...

    def get_node(self, key: Key) -> Optional[str]: ...


class RendezvousHash:
    """Each key's server is the one whose name and the key together hash highest: removing a server moves only its keys."""

    def __init__(
        self,
        nodes: Optional[List[str]] = None,
        seed: int = 0,
        hash_function: Callable[[str, int], int] = murmur3_32,
    ) -> None:
        self.nodes: List[str] = [] if nodes is None else nodes
        self.seed = seed
        self._hash = hash_function

    def hash_function(self, data: str) -> int:
        """Return the hash of a node and a key."""
        return self._hash(data, self.seed)

    def add_node(self, node: str) -> None:
        """Add a node."""
        if node not in self.nodes:
            self.nodes.append(node)

    def remove_node(self, node: str) -> None:
        """Remove a node; its keys move to the others."""
        if node not in self.nodes:
            raise ValueError(f"No such node {node} to remove")
        self.nodes.remove(node)

    def get_node(self, key: Key) -> Optional[str]:
        """Return the node of a key, or None without nodes."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        best, winner = -1, None
        is_ours = self._hash is murmur3_32
        for node in self.nodes:
            score = rendezvous_score(node, f"{key!s}", self.seed) if is_ours else self.hash_function(f"{node}-{key!s}")
            if score > best:
                best, winner = score, node
            elif score == best:
                winner = max(str(node), str(winner))
        return winner


class _Failing:
    """A failed server, and the number of retries since."""

    def __init__(self) -> None:
        self.attempts = 0
        self.since = time.time()

    def note(self) -> None:
        self.attempts += 1
        self.since = time.time()


class HashClient:
    """Many servers as one cache. ``servers`` are what Client takes as its server, and so are the other arguments.

    A server to which no connection can be made is left alone for ``retry_timeout`` seconds, and tried so ``retry_attempts`` times;
    then its keys belong to the others for ``dead_timeout`` seconds.
    """

    client_class: Type[Client] = Client

    def __init__(
        self,
        servers: Iterable[ServerSpec],
        hasher: Callable[[], Hasher] = RendezvousHash,
        serde: Optional[_serde.Serde] = None,
        serializer: Optional[Callable[[Any, Any], Tuple[Any, int]]] = None,
        deserializer: Optional[Callable[[Any, bytes, int], Any]] = None,
        connect_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
        no_delay: bool = False,
        socket_module: ModuleType = socket,
        socket_keepalive: Optional[KeepaliveOpts] = None,
        key_prefix: Union[bytes, str] = b"",
        max_pool_size: Optional[int] = None,
        pool_idle_timeout: float = 0,
        lock_generator: Optional[Callable[[], Any]] = None,
        retry_attempts: int = 2,
        retry_timeout: float = 1,
        dead_timeout: float = 60,
        use_pooling: bool = False,
        ignore_exc: bool = False,
        allow_unicode_keys: bool = False,
        default_noreply: bool = True,
        encoding: str = "ascii",
        tls_context: Optional[ssl.SSLContext] = None,
        *,
        shared_memory: Optional[bool] = None,
        fabric: str = "auto",
        fabric_provider: Optional[str] = None,
        fabric_interface: Optional[str] = None,
        fabric_or_tcp: bool = False,
        protocol: str = "auto",
        username: Optional[str] = None,
        password: Optional[str] = None,
    ) -> None:
        self.clients: Dict[str, Client] = {}
        self.retry_attempts = retry_attempts
        self.retry_timeout = retry_timeout
        self.dead_timeout = dead_timeout
        self.use_pooling = use_pooling
        self.key_prefix = key_prefix
        self.ignore_exc = ignore_exc
        self.allow_unicode_keys = allow_unicode_keys
        self.encoding = encoding
        self.tls_context = tls_context
        self.hasher = hasher()
        self.default_kwargs: Dict[str, Any] = {
            "serde": serde,
            "serializer": serializer,
            "deserializer": deserializer,
            "connect_timeout": connect_timeout,
            "timeout": timeout,
            "no_delay": no_delay,
            "socket_module": socket_module,
            "socket_keepalive": socket_keepalive,
            "key_prefix": key_prefix,
            "allow_unicode_keys": allow_unicode_keys,
            "default_noreply": default_noreply,
            "encoding": encoding,
            "tls_context": tls_context,
            "shared_memory": shared_memory,
            "fabric": fabric,
            "fabric_provider": fabric_provider,
            "fabric_interface": fabric_interface,
            "fabric_or_tcp": fabric_or_tcp,
            "protocol": protocol,
            "username": username,
            "password": password,
        }
        self._failing: Dict[str, _Failing] = {}
        self._dead: Dict[str, Tuple[ServerSpec, float]] = {}
        for server in servers:
            self.add_server(normalize_server_spec(server))

    # ---- servers ----

    def add_server(self, server: ServerSpec, port: Optional[int] = None) -> None:
        """Add a server."""
        server = _with_port(server, port)
        name = _name(server)
        client_class: Any = PooledClient if self.use_pooling else self.client_class
        self.clients[name] = client_class(server, **self.default_kwargs)
        self.hasher.add_node(name)

    def remove_server(self, server: ServerSpec, port: Optional[int] = None) -> None:
        """Remove a server for dead_timeout seconds; its keys move to the others."""
        server = _with_port(server, port)
        name = _name(server)
        self.hasher.remove_node(name)
        self._failing.pop(name, None)
        self._dead[name] = (server, time.time())

    def _revive(self) -> None:
        now = time.time()
        for name, (server, since) in list(self._dead.items()):
            if now - since > self.dead_timeout and self._dead.pop(name, None) is not None:
                logger.debug("server is back in rotation: %s", name)
                self.add_server(server)

    def _server_of(self, key: Key) -> Optional[str]:
        if self._dead:
            self._revive()
        name = self.hasher.get_node(key)
        if name is None and not self.ignore_exc:
            raise MemcacheError("All servers seem to be down right now")
        return name

    def _ask(self, name: Optional[str], default: Any, call: Callable[[Client], Any]) -> Any:
        """Call a server, unless it is down after recent failures."""
        if name is None:
            return default
        failing = self._failing.get(name)
        if failing is not None:
            if failing.attempts >= self.retry_attempts:
                self._bury(name)
            elif time.time() - failing.since <= self.retry_timeout:
                return default
        try:
            result = call(self.clients[name])
        except OSError:
            self._note_failure(name)
            if not self.ignore_exc:
                raise
            return default
        except Exception:
            if not self.ignore_exc:
                raise
            return default
        if failing is not None:
            self._failing.pop(name, None)
        return result

    def _note_failure(self, name: str) -> None:
        if name in self._dead:
            return
        failing = self._failing.get(name)
        if failing is not None:
            failing.note()
            return
        self._failing[name] = _Failing()
        if self.retry_attempts <= 0:
            self._bury(name)

    def _bury(self, name: str) -> None:
        # Another thread may have removed it.
        if name not in self._dead:
            logger.debug("server is removed after failures: %s", name)
            self.remove_server(self.clients[name].server)

    def _key(self, name: str, key: Key, missing: Any, /, *args: Any, **kwargs: Any) -> Any:
        # An invalid key raises before any server is chosen.
        server = self._server_of(_checked(self, key))
        return self._ask(server, missing, lambda client: getattr(client, name)(key, *args, **kwargs))

    # ---- keys ----

    def get(self, key: Key, default: Any = None, **kwargs: Any) -> Any:
        return self._key("get", key, default, default=default, **kwargs)

    def gets(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("gets", key, None, *args, **kwargs)

    def gat(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("gat", key, None, *args, **kwargs)

    def gats(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("gats", key, None, *args, **kwargs)

    def set(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("set", key, False, *args, **kwargs)

    def add(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("add", key, False, *args, **kwargs)

    def replace(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("replace", key, False, *args, **kwargs)

    def append(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("append", key, False, *args, **kwargs)

    def prepend(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("prepend", key, False, *args, **kwargs)

    def cas(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("cas", key, False, *args, **kwargs)

    def delete(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("delete", key, False, *args, **kwargs)

    def incr(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("incr", key, False, *args, **kwargs)

    def decr(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("decr", key, False, *args, **kwargs)

    def touch(self, key: Key, *args: Any, **kwargs: Any) -> Any:
        return self._key("touch", key, False, *args, **kwargs)

    # ---- many keys ----

    def get_many(self, keys: Iterable[Key], gets: bool = False, *args: Any, **kwargs: Any) -> Dict[Key, Any]:
        batches: Dict[str, List[Key]] = {}
        for key in keys:
            name = self._server_of(_checked(self, key))
            if name is not None:
                batches.setdefault(name, []).append(key)
        call = "gets_many" if gets else "get_many"
        found: Dict[Key, Any] = {}
        for name, batch in batches.items():
            found.update(self._ask(name, {}, lambda client: getattr(client, call)(batch, *args, **kwargs)))
        return found

    get_multi = get_many

    def gets_many(self, keys: Iterable[Key], *args: Any, **kwargs: Any) -> Dict[Key, Any]:
        return self.get_many(keys, True, *args, **kwargs)

    gets_multi = gets_many

    def set_many(self, values: Dict[Key, Any], *args: Any, **kwargs: Any) -> List[Key]:
        batches: Dict[str, Dict[Key, Any]] = {}
        failed: List[Key] = []
        for key, value in values.items():
            name = self._server_of(_checked(self, key))
            if name is None:
                failed.append(key)
            else:
                batches.setdefault(name, {})[key] = value
        for name, batch in batches.items():
            failed += self._ask(name, list(batch), lambda client: client.set_many(batch, *args, **kwargs))
        return failed

    set_multi = set_many

    def delete_many(self, keys: Iterable[Key], *args: Any, **kwargs: Any) -> bool:
        for key in keys:
            self.delete(key, *args, **kwargs)
        return True

    delete_multi = delete_many

    # ---- all servers ----

    def flush_all(self, *args: Any, **kwargs: Any) -> None:
        for name in list(self.clients):
            self._ask(name, False, lambda client: client.flush_all(*args, **kwargs))

    def close(self) -> None:
        for client in list(self.clients.values()):
            client.close()

    disconnect_all = close

    def quit(self) -> None:
        for client in list(self.clients.values()):
            client.quit()


def _checked(client: HashClient, key: Key) -> Key:
    for any_client in client.clients.values():
        any_client.check_key(key, any_client.key_prefix)
        break
    return key


def _with_port(server: ServerSpec, port: Optional[int]) -> ServerSpec:
    if port is None:
        return server
    if not isinstance(server, str):
        raise TypeError("Server must be a string when passing port.")
    return server, port


def _name(server: ServerSpec) -> str:
    # The transport to a host does not change its keys.
    if not isinstance(server, str):
        return "%s:%s" % server
    on_fabric = behind(FABRIC, server)
    return server if on_fabric is None else on_fabric
