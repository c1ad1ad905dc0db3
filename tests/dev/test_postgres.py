"""PostgreSQL, to be compared with."""

import psycopg

from safekeeper.dev.postgres import PostgresServer


def test_a_server_starts_ends_and_has_its_data_again(tmp_path):
    with PostgresServer(tmp_path / "server") as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("create table t (n int)")
        assert server.stored() > 0
        server.stop()
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select count(*) from t").fetchone() == (0,)
