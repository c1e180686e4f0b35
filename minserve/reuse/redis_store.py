"""A store of cached entries in a Redis server, shared by machines."""

from __future__ import annotations

from collections.abc import Iterable

from minserve.errors import ConfigError
from minserve.reuse import stores


class RedisStore:
    """In a Redis server, shared by machines. Each operation is one script, so it is atomic.

    Expiry is by the callers' clock, as everywhere, and not by the server's: one clock decides.
    NOTE: names have one hash tag, so a Redis Cluster keeps them on one node.
    """

    def __init__(
        self,
        url: str,
        max_entries: int = stores.MAX_ENTRIES,
        max_bytes: int = stores.MAX_BYTES,
        prefix: str = "{minserve-cache}",
    ) -> None:
        import redis

        try:
            self._redis = redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=0.25, socket_connect_timeout=0.25
            )
        except ValueError as error:
            raise ConfigError(
                f"{url!r} is no Redis URL: {error}", "use redis://HOST:PORT"
            ) from None
        self._prefix, self._max_entries, self._max_bytes = prefix, max_entries, max_bytes
        scripts = {"get": _GET, "put": _PUT, "remove": _REMOVE, "invalidate": _INVALIDATE}
        self._scripts = {n: self._redis.register_script(_COMMON + s) for n, s in scripts.items()}

    def num_events(self) -> int:
        return int(self._redis.get(f"{self._prefix}:num_events") or 0)

    def get(self, partition: str, key: str, now_s: float) -> str | None:
        return self._run("get", _place(partition, key), repr(now_s))

    def put(self, partition, key, value, *, tags, expires_s, now_s, since) -> bool:
        tags = tuple(tags)
        num_bytes = stores.size_of((value, tags, expires_s))
        times = repr(expires_s), repr(now_s), stores.MAX_SWEPT
        bounds = (self._max_entries, self._max_bytes, num_bytes)
        place = _place(partition, key)
        return bool(self._run("put", place, value, since, *times, *bounds, *tags))

    def remove(self, partition: str, key: str) -> None:
        self._run("remove", _place(partition, key))

    def invalidate(self, tags: Iterable[str]) -> int:
        return int(self._run("invalidate", stores.MAX_EVENTS, *tags))

    def size(self) -> tuple[int, int]:
        num_bytes = int(self._redis.get(f"{self._prefix}:num_bytes") or 0)
        return self._redis.zcard(f"{self._prefix}:used"), num_bytes

    def close(self) -> None:
        self._redis.close()

    def _run(self, name: str, *args):
        return self._scripts[name](keys=[self._prefix], args=args)


def _place(partition: str, key: str) -> str:
    return f"{len(partition)}:{partition}:{key}"


_COMMON = """
local p = KEYS[1]
local function drop(place)
  local entry = p .. ':entry:' .. place
  local tags = redis.call('SMEMBERS', entry .. ':tags')
  if redis.call('EXISTS', entry) == 0 then return 0 end
  for _, tag in ipairs(tags) do redis.call('SREM', p .. ':tag:' .. tag, place) end
  redis.call('DECRBY', p .. ':num_bytes', redis.call('HGET', entry, 'num_bytes'))
  redis.call('ZREM', p .. ':used', place)
  redis.call('ZREM', p .. ':ends', place)
  redis.call('DEL', entry, entry .. ':tags')
  return 1
end
local function use(place)
  redis.call('ZADD', p .. ':used', redis.call('INCR', p .. ':clock'), place)
end
"""
_GET = """
local place, now_s = ARGV[1], tonumber(ARGV[2])
local found = redis.call('HMGET', p .. ':entry:' .. place, 'value', 'expires_s')
if not found[1] then return false end
if now_s >= tonumber(found[2]) then drop(place) return false end
use(place)
return found[1]
"""
_PUT = """
local place, value, since = ARGV[1], ARGV[2], tonumber(ARGV[3])
local expires_s, now_s, max_swept = ARGV[4], ARGV[5], ARGV[6]
local max_entries, max_bytes, num_bytes = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
if since < tonumber(redis.call('GET', p .. ':forgotten') or 0) then return 0 end
if since > tonumber(redis.call('GET', p .. ':num_events') or 0) then return 0 end
for i = 10, #ARGV do
  if tonumber(redis.call('HGET', p .. ':events', ARGV[i]) or 0) > since then return 0 end
end
for _, old in ipairs(
    redis.call('ZRANGEBYSCORE', p .. ':ends', '-inf', now_s, 'LIMIT', 0, max_swept)) do
  drop(old)
end
drop(place)
if num_bytes > max_bytes then return 0 end
local entry = p .. ':entry:' .. place
redis.call('HSET', entry, 'value', value, 'expires_s', expires_s, 'num_bytes', num_bytes)
for i = 10, #ARGV do
  redis.call('SADD', entry .. ':tags', ARGV[i])
  redis.call('SADD', p .. ':tag:' .. ARGV[i], place)
end
redis.call('INCRBY', p .. ':num_bytes', num_bytes)
redis.call('ZADD', p .. ':ends', expires_s, place)
use(place)
while redis.call('ZCARD', p .. ':used') > max_entries
    or tonumber(redis.call('GET', p .. ':num_bytes')) > max_bytes do
  drop(redis.call('ZRANGE', p .. ':used', 0, 0)[1])
end
return 1
"""
_REMOVE = "return drop(ARGV[1])"
_INVALIDATE = """
local number, count = redis.call('INCR', p .. ':num_events'), 0
for i = 2, #ARGV do
  redis.call('HSET', p .. ':events', ARGV[i], number)
  for _, place in ipairs(redis.call('SMEMBERS', p .. ':tag:' .. ARGV[i])) do
    count = count + drop(place)
  end
end
if redis.call('HLEN', p .. ':events') > tonumber(ARGV[1]) then
  redis.call('DEL', p .. ':events')
  redis.call('SET', p .. ':forgotten', number)
end
return count
"""
