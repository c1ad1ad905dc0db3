"""`redis:` keeps checkpoints in Redis 7 or Valkey, alone, with replicas or as a cluster.

    redis://[user:password@]host[:6379][/db][?option=value]      over TCP
    rediss://...                                                 over TLS
    redis+unix:///path/of/the/socket[?option=value]              on the same host

Whether the server is part of a cluster, whether it may throw data away, and what a write survives there, is asked when
a connection is made, and again by writes every two seconds; the options are the fields of `RedisOptions`. What a write
survives is in `docs/durability.md`, the layout in `layout.py`.

A user needs `+@read +@write +@transaction +@scripting`, in a cluster `+info +cluster|slots +asking` as well, and `+wait
+waitaof` for `replicas=` and `aof=`. Whoever lacks `+info +config|get` gets a store that declares nothing, and whoever
lacks `+info` does not find out that the server throws data away.

The code reads well in this order: `options`, `layout`, `server` (connections and their leases), `routing` (which server
has what), `transaction` (what a write does, and why it cannot come late), `writing`, `backend`.
`stream` carries streams (`safekeeper.streams`) over the same connections.
"""
