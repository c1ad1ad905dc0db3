"""The guide is true."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

from safekeeper import CheckpointId, SafeKeeper

GUIDE = (Path(__file__).parents[2] / "docs" / "keeper.md").read_text()
SETTINGS = [name for name in inspect.signature(SafeKeeper).parameters if name != "store"]


def test_the_code_in_the_guide_runs(tmp_path):
    first, changing, elements, typed = (
        code for code in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "import" in code
    )
    assert "file:///var/lib/app" in first
    exec(first.replace("file:///var/lib/app", f"file://{tmp_path}/store"), {})
    with SafeKeeper(f"file://{tmp_path}/store") as keeper:
        names: dict[str, object] = {"keeper": keeper, "CheckpointId": CheckpointId}
        exec(changing, names)
        keeper.flush()
        assert keeper.fetch(CheckpointId("WordCounter", "bar")) == {"count": 2}
        exec(elements, names)
        names["words"].close()
        assert dict(keeper.recover("WordCounter")) == {b"foo": {"count": 1}, b"bar": {"count": 2}}
    (tmp_path / "typed.py").write_text(typed.replace("log:///var/lib/app", f"log://{tmp_path}/typed"))
    assert runpy.run_path(str(tmp_path / "typed.py"))["session"].user == "ada"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_explained_where_it_is_defined(name):
    assert re.search(rf"^(\w+, )*{name}(, \w+)* +\S", inspect.getdoc(SafeKeeper), re.MULTILINE)


@pytest.mark.parametrize(
    "setting",
    (
        "storageMaxThreads",
        "storageThreadKeepAliveSeconds",
        "storageMaxOutstandingRequests",
        "serializationMaxThreads",
        "serializationThreadKeepAliveSeconds",
        "serializationMaxOutstandingRequests",
        "fetchingMaxThreads",
        "fetchingThreadKeepAliveSeconds",
        "fetchingMaxWaitMs",
        "fetchingQueueSize",
        "fetchingMaxConsecutiveFailuresBeforeDisabling",
        "fetchingDisabledDurationMs",
        "maxSerializationLockTime",
        "filesystem.storageRootPath",
    ),
)
def test_every_setting_of_s4_has_its_row(setting):
    (row,) = [line for line in GUIDE.splitlines() if line.startswith(f"| `{setting}`")]
    ours = row.split("|")[3]
    for name in re.findall(r"`(\w+)", ours):
        assert name in SETTINGS or name in ("fetch", "Fuse")
