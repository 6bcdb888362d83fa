"""Django's cache in fabcache:

    CACHES = {
        "default": {
            "BACKEND": "fabcache.django.FabcacheCache",
            "LOCATION": "unix:/run/fabcached.sock",
        }
    }

``LOCATION`` is one server or a list of them, or several with commas between; ``OPTIONS`` are the arguments of ``fabcache.Client``,
or with many servers of ``fabcache.HashClient``. What Django's PyMemcacheCache has stored is read, and the other way round.
"""

import re
import threading
from typing import Any, Dict, Tuple

from django.core.cache.backends.memcached import BaseMemcachedCache  # type: ignore[import-untyped]
from django.utils.functional import cached_property  # type: ignore[import-untyped]

import fabcache
from fabcache.serde import pickle_serde

_clients: Dict[Tuple[Any, ...], Any] = {}
_making = threading.Lock()


class FabcacheCache(BaseMemcachedCache):  # type: ignore[misc]
    """Django's cache in one fabcached or many. Its threads share clients, which keep their connections between requests."""

    def __init__(self, server: Any, params: Dict[str, Any]) -> None:
        super().__init__(server, params, library=fabcache, value_not_found_exception=KeyError)
        places = re.split("[;,]", server) if isinstance(server, str) else server
        self._servers = [place.strip() if isinstance(place, str) else place for place in places]
        self._options: Dict[str, Any] = {
            "allow_unicode_keys": True,
            "default_noreply": False,
            "serde": pickle_serde,
            **(params.get("OPTIONS") or {}),
        }

    @cached_property  # type: ignore[untyped-decorator]
    def _cache(self) -> Any:
        try:
            which = (tuple(self._servers), frozenset(self._options.items()))
            hash(which)
        except TypeError:
            # Clients with incomparable options are not shared.
            return self._made()
        with _making:
            client = _clients.get(which)
            if client is None:
                client = _clients[which] = self._made()
        return client

    def _made(self) -> Any:
        if len(self._servers) == 1:
            return fabcache.Client(self._servers[0], **self._options)
        return fabcache.HashClient(self._servers, **self._options)

    def close(self, **kwargs: Any) -> None:
        # Django calls this after each request; the connections stay open for other threads and
        # later requests.
        pass
