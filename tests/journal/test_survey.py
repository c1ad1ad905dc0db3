"""What people see of journals: `safekeeper journal`."""

import json
import os
import sys

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, claims
from safekeeper.cli import main
from safekeeper.operators import Operator
from safekeeper.policy import Eventual

from ..operators.streams import MemoryStream


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"


@pytest.fixture
def run(monkeypatch, capfd):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["safekeeper", "journal", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capfd.readouterr())

    return run


def count(url, name, events, **settings):
    operator = Operator(name, url, outputs={"out": MemoryStream(retains=False)}, **settings)
    with operator:
        for position in range(1, events + 1):
            with operator.event("in", position) as event:
                event.part(b"%d" % (position % 3)).state["n"] = position
                event.emit("out", b"x")
            operator.flush()
        yield operator


def test_an_operator_that_is_at_work_is_shown(url, run):
    for operator in count(url, "counter", 5):
        code, out, _ = run(url, "--json")
        assert (code, operator.events) == (0, 5)
        (row,) = json.loads(out)
        assert row.pop("recovery_seconds") > 0
        assert row.pop("nbytes") > 0
        assert row.pop("owner").startswith(f"process {os.getpid()} on ")
        assert row == {
            **{"name": "counter", "epoch": 1, "ended": False, "blocks": 5, "parts": 3, "extent": 5, "events": 5},
            **{"replay": 0, "outputs": 5, "standbys": []},
        }


def test_what_would_be_replayed_is_counted(url, run):
    for _ in count(url, "counter", 9, capture=Once(), kind="deterministic"):
        (row,) = json.loads(run(url, "--json")[1])
        assert (row["replay"], row["extent"]) == (6, 3)


class Once(Eventual):
    """Nothing but what was opened goes into its blocks."""

    def due(self, view):
        return iter(())


def test_people_get_a_few_lines(url, run):
    for name in ("one", "two"):
        list(count(url, name, 2))
    code, out, _ = run(url)
    assert code == 0
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines[::4]] == ["one", "two"]
    assert all(line.endswith("epoch 1, ended") for line in lines[::4])
    assert lines[1] == "  events    2 taken, 0 to replay; 2 outputs kept"
    assert lines[2].startswith("  state     2 parts; extent 2 records in 2 blocks, ")
    assert lines[3].endswith(" s expected")


def test_one_can_be_asked_for(url, run):
    list(count(url, "one", 2))
    assert [row["name"] for row in json.loads(run(url, "one", "--json")[1])] == ["one"]
    code, _, err = run(url, "other")
    assert (code, err.strip()) == (1, "safekeeper: there is no journal of other")


def test_other_groups_are_not_journals(url, run):
    with safekeeper.open(url) as store:
        store.write(Batch({CheckpointId("orders", b"1"): b""}))
        claims.take(store, "orders")
    code, out, err = run(url)
    assert (code, out, err.strip()) == (1, "", "there are no journals")
