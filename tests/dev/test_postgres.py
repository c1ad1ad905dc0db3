"""PostgreSQL for comparisons, where its programs are: they are not among what the everyday tests install."""

import pytest

from safekeeper.dev.postgres import PostgresServer
from safekeeper.dev.process import DevError


def test_a_server_starts_ends_and_has_its_data_again(tmp_path):
    psycopg = pytest.importorskip("psycopg")
    try:
        server = PostgresServer(tmp_path / "server")
    except DevError as error:
        pytest.skip(str(error))
    with server:
        with psycopg.connect(server.url) as connection:
            connection.execute("create table t (n int)")
        assert server.stored() > 0
        server.stop()
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select count(*) from t").fetchone() == (0,)
