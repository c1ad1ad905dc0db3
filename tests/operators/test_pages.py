"""The examples of `docs/operators.md` and `docs/streams.md` run as they stand there."""

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.testing.chaos import Chaos

DOCS = Path(__file__).parents[2] / "docs"
FILES = dict(
    re.findall(r"^```python file=(\S+)\n(.*?)^```$", (DOCS / "operators.md").read_text(), re.MULTILINE | re.DOTALL)
)


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def start(folder, name, **environment):
    path = os.pathsep.join(filter(None, sys.path))
    with (folder / "services.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, folder / name], env={**os.environ, "PYTHONPATH": path, **environment}, stderr=log
        )


def read_all(url):
    with closing(open_inlet(url, after=0)) as inlet:
        found = []
        while some := inlet.read(timeout=0):
            found += some
        return found


def test_errors_are_found_once_although_the_file_is_read_in_pieces(folder):
    urls = {"STORE": f"log://{folder}/store", "ERRORS": f"store:log://{folder}/store?stream=errors"}
    lines = [b"host%d %s %d\n" % (n % 3, b"ERROR" if n % 4 == 0 else b"fine", n) for n in range(60)]
    log = folder / "log"
    for end in (0, 20, 20, 60):
        log.write_bytes(b"".join(lines[:end]))
        assert start(folder, "errors.py", LOG=str(log), **urls).wait(120) == 0
    seen, expected = Counter(), []
    for line in lines:
        host = line.split()[0]
        seen[host] += 1
        if b"ERROR" in line:
            expected.append((host, b"line %d: %b" % (seen[host], line.strip())))
    assert [(element.key, element.body) for element in read_all(urls["ERRORS"])] == expected


def test_windows_are_counted_once_although_the_file_is_read_in_pieces(folder):
    random = Random(1)
    times = sorted(random.uniform(0, 600) for _ in range(500))
    lines = [b"%.3f %s\n" % (at, random.choice([b"/", b"/a", b"/b"])) for at in times]
    traffic = f"store:log://{folder}/traffic?stream=traffic"
    environment = {"STORE": f"log://{folder}/journal", "LOG": str(folder / "requests"), "TRAFFIC": traffic}
    for begin in range(0, 500, 125):
        with (folder / "requests").open("ab") as file:
            file.writelines(lines[begin : begin + 125])
        assert start(folder, "traffic.py", **environment).wait(60) == 0, (folder / "services.log").read_text()
    requests = [(float(at), page) for at, page in map(bytes.split, lines)]
    expected = Counter()
    for page in (b"/", b"/a", b"/b"):
        mine = [at for at, other in requests if other == page]
        for begin in range(-60, 600, 10):
            count = sum(begin <= at < begin + 60 for at in mine)
            if count and begin + 60 <= mine[-1]:
                expected[page, b"%d in the minute from %d" % (count, begin)] += 1
    assert Counter((element.key, element.body) for element in read_all(traffic)) == expected


@pytest.mark.crash
def test_totals_reach_the_database_once_although_everything_is_killed(folder):
    orders = f"store:log://{folder}/streams?stream=orders"
    amounts = [(b"customer %d" % (n % 5), n) for n in range(1, 1001)]
    database = folder / "totals.db"
    with Chaos(pause=(0.1, 0.8)) as chaos:
        settings = {"STORE": f"log://{folder}/store", "ORDERS": orders, "DATABASE": str(database)}
        with closing(open_outlet(orders, readers=["billing"])) as outlet:
            chaos.process("billing", lambda: start(folder, "billing.py", **settings))
            for number, (customer, amount) in enumerate(amounts, 1):
                outlet.send([StreamElement(number, b"%d" % amount, customer)])
        chaos.run(until=lambda: rows(database) == len(amounts), most=5, timeout=250)
    expected, sums = [], Counter()
    for number, (customer, amount) in enumerate(amounts, 1):
        sums[customer] += amount
        expected.append((number, customer.decode(), sums[customer]))
    with closing(sqlite3.connect(database)) as connection:
        assert list(connection.execute("SELECT * FROM totals ORDER BY number")) == expected


def rows(database):
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM totals").fetchone()[0]
    except sqlite3.OperationalError:  # it is not there yet, or being written
        time.sleep(0.01)
        return 0


def test_the_first_lines_about_streams_send_and_read(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "streams.md").read_text(), re.DOTALL)[:1]
    code = code.replace("/tmp/safekeeper-streams", str(tmp_path / "streams"))
    for first in (1, 3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == f"{first} b'to be'\n{first + 1} b'or not'\n"
