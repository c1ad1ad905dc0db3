import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafeKeeper
from safekeeper.cli import main, show_key
from safekeeper.registry import COMMANDS_GROUP
from safekeeper.testing.entry_point import write_entry_points


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"


def run(*arguments, value=b"", path=""):
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-m", "safekeeper.cli", *arguments], input=value, capture_output=True, env=environment
    )


def answer(*arguments, value=b""):
    """Standard output of a command that must succeed."""
    done = run(*arguments, value=value)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture
def run_here(monkeypatch, capfd):
    """The same in this process, which is quicker."""

    def run_here(*arguments):
        monkeypatch.setattr(sys, "argv", ["safekeeper", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capfd.readouterr())

    return run_here


def test_a_value_goes_in_and_comes_out_as_it_is(url, tmp_path):
    value = bytes(range(256))
    (tmp_path / "value").write_bytes(value)
    answer("put", url, "g", "from stdin", value=value)
    answer("put", url, "g", "from file", str(tmp_path / "value"))
    assert answer("get", url, "g", "from stdin") == answer("get", url, "g", "from file") == value


def test_any_key_can_be_typed_and_is_shown_as_it_would_be_typed(url):
    for key in ("%00%ff", "100%25", "ü", ""):
        answer("put", url, "g", key)
    assert sorted(json.loads(answer("ls", "--json", url, "g"))) == ["", "%00%FF", "100%25", "ü"]


@pytest.mark.parametrize("key", [b"", b"a b", b"%", b"\0", b"\xff", "ü".encode(), b"a\nb", bytes(range(256))])
def test_a_shown_key_is_one_printable_line(key):
    assert show_key(key).isprintable()


def test_an_absent_id_is_exit_code_1_and_nothing_on_standard_output(url):
    done = run("get", url, "g", "nothing")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"safekeeper: g/nothing is not there\n")


def test_removed_ids_are_gone_and_absent_ones_are_no_error(url):
    answer("put", url, "g", "a")
    answer("rm", url, "g", "a", "b")
    assert answer("ls", url) == answer("ls", url, "g") == b""


def test_verify_names_the_damaged_place_and_exits_with_1(url, tmp_path):
    answer("put", url, "g", "good", value=b"1")
    answer("put", url, "g", "bad", value=b"2")
    assert re.fullmatch(rb"nothing is damaged, \d+ bytes checked\n", run("verify", url).stderr)
    with open(tmp_path / "store" / "g" / "bad.ckpt", "ab") as file:
        file.write(b"!")
    done = run("verify", url)
    assert (done.returncode, done.stderr) == (1, b"1 damaged\n")
    assert b"g/bad.ckpt: the checksum does not match" in done.stdout
    (damage,) = json.loads(run("verify", "--json", url).stdout)
    assert damage["place"].endswith("g/bad.ckpt")


def test_stat_counts_and_says_what_a_write_survives(url):
    for group in "ab":
        answer("put", url, group, "key")
    stat = json.loads(answer("stat", "--json", url + "?assert=host"))
    assert (stat["groups"], stat["ids"], stat["scope"]) == (2, 2, "host")
    assert stat["survives"].endswith("host (asserted: host)")


def test_backends_lists_every_scheme_with_its_state():
    rows = {row["scheme"]: row for row in json.loads(answer("backends", "--json"))}
    assert rows["file:"]["survives"] == "process, os, power"
    assert rows["memory:"]["state"] == "ready"
    assert b"one file per id" in answer("backends")


def test_backends_with_a_name_describes_the_options_of_its_url():
    said = answer("backends", "log:").decode()
    assert "- **`sync=`** always, interval, none (default `always`). When a write is durable:" in said
    assert said.rstrip() in (Path(__file__).parents[1] / "docs" / "backends.md").read_text()
    options = json.loads(answer("backends", "objects+s3", "--json"))
    assert [option["name"] for option in options] == ["parallel", "timeout", "retries"]
    assert all(option["text"] for option in options)
    assert b"did you mean 'log'" in run("backends", "lgo").stderr


def test_backends_describes_a_backend_that_does_not_say_its_options(tmp_path):
    (tmp_path / "theirs.py").write_text("import safekeeper\nclass Theirs(safekeeper.Backend): ...\n")
    write_entry_points(tmp_path, {"theirs": "theirs:Theirs"})
    assert b"does not say which options" in run("backends", "theirs", path=tmp_path).stdout


def test_backends_tells_how_to_install_a_missing_driver():
    program = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "fsspec" else find(name, package)
from safekeeper.cli import main
sys.argv[1:] = ["backends"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "COLUMNS": "80"}, capture_output=True, check=True
    )
    assert b"'safekeeper[objects]'" in done.stdout
    assert b"Redis 7 or Valkey" in done.stdout  # the last column is not cut, however narrow the terminal is


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ls", "nosuch:///x"], "no backend for nosuch:"),
        (["ls", "file:///x?a=1"], "has no option 'a'"),
        (["put", "file:///x", "", "key"], "a group has 1 to 255 bytes"),
        (["put", "file:///x", "g", "key", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["put", "file:///proc/x", "g", "key"], "/proc/x: "),
        (["compact", "file:///x"], "nothing that could be compacted"),
        (["put", "--encode", "file:///x", "g", "key"], "standard input is no JSON: Expecting value"),
        (["put", "--encode", "file:///x", "g", "key", "/dev/null"], "/dev/null is no JSON: Expecting value"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(arguments, says):
    done = run(*arguments)
    message = done.stderr.decode()
    assert (done.returncode, done.stdout, message.count("\n")) == (2, b"", 1)
    assert message.startswith("safekeeper: ")
    assert says in message


def test_a_reader_that_has_seen_enough_is_no_error(url):
    answer("put", url, "group", "key")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "safekeeper.cli", "ls", url], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    "command", (["get", "group", "key"], ["ls", "group"], ["stat"], ["verify", "--json"]), ids=" ".join
)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_2(url, command):
    """Not 1, which would say that the id is absent or the store damaged."""
    answer("put", url, "group", "key", value=b"value")
    name, *rest = command
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "safekeeper.cli", name, url, *rest], stdout=full, stderr=subprocess.PIPE
        )
    message = b"safekeeper: the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_compact_says_what_it_gave_back(tmp_path):
    url = f"log://{tmp_path}/store"
    answer("put", url, "group", "key", value=b"1")
    assert b" bytes before, " in answer("compact", url)


def test_help_tells_the_exit_codes():
    assert b"Exit codes: 0 all well, 1 the answer is no (absent, damaged), 2 it" in answer("--help")


@pytest.mark.parametrize("command", [(), ("get",), ("bench",), ("dev",)])
def test_h_is_help(command):
    assert answer(*command, "-h") == answer(*command, "--help")


def test_a_shell_completes_the_commands():
    """As bash asks, once `safekeeper --install-completion` has told it to."""
    asked = {"_SAFEKEEPER_COMPLETE": "complete_bash", "COMP_WORDS": "safekeeper ver", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'safekeeper'; from safekeeper.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert done.stdout.split() == ["verify"]
    assert b"--install-completion" in answer("--help")


def test_a_package_may_bring_commands_of_its_own(tmp_path):
    (tmp_path / "theirs.py").write_text(
        "import typer\napp = typer.Typer(help='Theirs.')\n"
        "@app.callback()\ndef all_of_them(): ...\n"
        "@app.command()\ndef greet(name: str): print('hello', name)\n"
    )
    write_entry_points(tmp_path, {"theirs": "theirs:app", "broken": "nowhere:app", "dev": "theirs:app"}, COMMANDS_GROUP)
    assert b"From safekeeper-test-backends." in run("--help", path=tmp_path).stdout
    assert run("theirs", "greet", "Ada", path=tmp_path).stdout == b"hello Ada\n"
    done = run("broken", "greet", path=tmp_path)
    assert done.returncode == 2
    assert b"the commands of broken (nowhere:app) do not load: No module named 'nowhere'" in done.stderr
    assert b"hbase" in run("dev", "--help", path=tmp_path).stdout  # a bundled word cannot be taken over


def test_the_first_page_of_help_loads_no_added_command():
    code = "import sys, safekeeper.cli as c; c.app(['--help'], standalone_mode=False); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert "safekeeper.cli" in loaded
    assert not {"safekeeper.bench.cli", "safekeeper.dev.cli", "safekeeper.backends.hdfs"} & set(loaded)


@pytest.mark.parametrize("scheme", ["file", "log", "lmdb", "objects+file"])
@pytest.mark.parametrize("command", ["verify", "stat", "ls", "compact", "prune", "copy", "repair"])
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(tmp_path, run_here, scheme, command):
    url, target = f"{scheme}://{tmp_path}/mistyped", f"file://{tmp_path}/target"
    arguments = [command, url, *([target] if command in ("copy", "repair") else [])]
    if command == "compact" and scheme in ("file", "lmdb"):
        pytest.skip("has nothing to compact")
    message = f"safekeeper: there is no store at {url}: look at its path\n"
    assert run_here(*arguments) == (2, "", message)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mistyped").mkdir()
    assert run_here(*arguments) == (2, "", message)


@pytest.mark.parametrize("scheme", ["file", "log", "lmdb", "objects+file"])
def test_a_store_with_nothing_left_in_it_is_there(tmp_path, run_here, scheme):
    url, id = f"{scheme}://{tmp_path}/store", CheckpointId("group", b"key")
    with safekeeper.open(url) as store:
        store.write(Batch({id: b""}))
    assert run_here("rm", url, "group", "key") == (0, "", "")
    assert json.loads(run_here("stat", "--json", url)[1])["ids"] == 0
    assert run_here("verify", url)[:2] == run_here("ls", url)[:2] == (0, "")


@pytest.mark.parametrize("command", ["copy", "repair"])
@pytest.mark.parametrize("scheme", ["file", "log", "lmdb"])
def test_a_store_is_not_copied_onto_itself_whatever_it_is_called(tmp_path, monkeypatch, run_here, scheme, command):
    url, id = f"{scheme}://{tmp_path}/store", CheckpointId("group", b"key")
    with safekeeper.open(url) as store:
        store.write(Batch({id: b"1"}))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("store")
    names = [url, f"{url}/", f"{scheme}:store", f"{scheme}:link/", f"{scheme}://{tmp_path}/./x/../store?assert=host"]
    (tmp_path / "x").mkdir()
    for name in [*names, "objects+file:store"]:
        code, printed, said = run_here(command, url, name)
        assert (code, printed) == (2, "")
        assert re.fullmatch("safekeeper: .* is the same store: give the URL of another one\n", said)
    with safekeeper.open(url) as store:
        assert store.read([id]) == [b"1"]


def test_a_server_is_not_copied_onto_itself(run_here):
    said = "safekeeper: memory://h/x/ is the same store: give the URL of another one\n"
    assert run_here("copy", "memory://me:QUIET@h/x", "memory://h/x/") == (2, "", said)
    assert run_here("copy", "memory://h/x", "memory://h/y")[0] == 0


WITH_LOGIN = """
from safekeeper.backends.file import FileBackend
class WithLogin(FileBackend):
    @classmethod
    def from_url(cls, url):
        return cls(url.path)
"""


def test_repair_names_its_target_without_the_password(url, tmp_path):
    (tmp_path / "login.py").write_text(WITH_LOGIN)
    write_entry_points(tmp_path, {"login": "login:WithLogin"})
    for folder in ("store", "target"):
        answer("put", f"file://{tmp_path}/{folder}", "group", "key", value=b"1")
    done = run("repair", url, f"login://me:QUIET@h{tmp_path}/target", path=tmp_path)
    message = f"safekeeper: login://me:***@h{tmp_path}/target is not empty: give the URL of a new store\n"
    assert (done.returncode, done.stderr.decode()) == (2, message)


EVIL = "\x1b]0;owned\x07\u202e\x9b31m"


def test_no_output_lets_what_is_stored_reach_the_terminal_unescaped(tmp_path, run_here):
    folder = tmp_path / f"store{EVIL}"
    url = f"file://{tmp_path}/store%1B%5D0;owned%07%E2%80%AE%C2%9B31m"
    ids = [CheckpointId("group\u202e", EVIL.encode()), CheckpointId("group\u202e", b"\x1b[31m" + b"x" * 300)]
    with safekeeper.open(url) as store:
        store.write(Batch(dict.fromkeys(ids, b"value")))
    for path in folder.rglob("*.ckpt"):
        path.write_bytes(path.read_bytes() + b"!")
    commands = [
        ["ls", url],
        ["ls", url, "group\u202e"],
        ["verify", url],
        ["stat", url],
        ["repair", url, f"log:{tmp_path}/x"],
    ]
    commands += [["get", url, "g", EVIL], ["get", url, "group\u202e", EVIL], ["put", f"{url}?{EVIL}=1", "g", "k"]]
    commands += [[*command, "--json"] for command in commands if command[0] in ("ls", "verify", "stat", "repair")]
    for command in commands:
        _, printed, said = run_here(*command)
        assert printed + said
        assert (printed + said).replace("\n", "").isprintable(), (command, printed, said)
        if "--json" in command:
            json.loads(printed)
    assert json.loads(run_here("ls", url, "--json")[1]) == ["group\u202e"]
    assert len(json.loads(run_here("verify", url, "--json")[1])) == 2


def test_a_terminal_that_knows_ascii_only_gets_escapes(url):
    answer("put", url, "gr\u00fcn", "\u00fc")
    command = [sys.executable, "-m", "safekeeper.cli", "ls", url]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, b"gr\\xfcn\n")


def test_what_is_put_as_json_a_keeper_fetches(url):
    answer("put", "--encode", url, "g", "k", value=b'{"count": 41, "w\xc3\xb6rter": [1.5, null, true]}')
    with SafeKeeper(url) as keeper:
        assert keeper.fetch(CheckpointId("g", b"k")) == {"count": 41, "w\u00f6rter": [1.5, None, True]}
    shown = answer("get", "--decode", url, "g", "k").decode()
    assert shown == '{"count": 41, "w\u00f6rter": [1.5, null, true]}\n'


def test_get_shows_what_a_keeper_saved_whatever_its_serializer(url):
    states = {"msgpack": {"a": b"\xff", "at": [1, {2: "x"}]}, "json": [1, "\x1b"], "raw": b"bytes"}
    for name, state in states.items():
        with SafeKeeper(url, serializer=name, schema=3) as keeper:
            keeper.save(CheckpointId("g", name.encode()), state).result()
    shown = [answer("get", "--decode", url, "g", name) for name in states]
    assert shown == [b'{"a": "b\'\\\\xff\'", "at": [1, {"2": "x"}]}\n', b'[1, "\\u001b"]\n', b"\"b'bytes'\"\n"]


@pytest.mark.parametrize(
    ("serializer", "says"),
    [
        (
            "pickle",
            "saved with pickle, which runs code that it finds: fetch it with a keeper that has serializer='pickle'",
        ),
        (None, "carries no serializer's header"),
    ],
)
def test_a_state_that_cannot_be_shown_is_one_line(url, serializer, says):
    with SafeKeeper(url, serializer=serializer) as keeper:
        keeper.save(CheckpointId("g", b"k"), b"x").result()
    done = run("get", "--decode", url, "g", "k")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"safekeeper: g/k: ")
    assert says in done.stderr.decode()
