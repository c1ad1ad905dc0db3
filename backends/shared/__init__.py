"""What several backends use. Nothing here is a backend, and nothing here imports one.

- `records`: the bytes of segments, blocks and records (`log`, `hdfs`)
- `checksums`: values in a server, with a checksum (`redis`, `hbase`)
- `named_values`: one value in one named file or object (`file`, `objects`)
- `connection_pool`: connections that wait for their next use (`redis`, `hbase`)
- `server_clock`: timestamps of writes from a server's clock (`hbase`, `hdfs`)
- `errors`: a server must be set up differently, trying again does not help (`redis`, `hbase`)
- `local_files`: durable folders, and errors of the operating system (`file`, `log`, `lmdb`, `objects`)
"""
