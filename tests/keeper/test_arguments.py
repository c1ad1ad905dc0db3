"""Whoever passes the wrong thing learns at once what the right one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from safekeeper import BadId, BadUrl, CheckpointId, SafeKeeper

ID = CheckpointId("group", b"key")


def test_a_path_is_not_a_store_and_the_error_has_its_url(tmp_path):
    with pytest.raises(BadUrl, match=f"not a path: write 'log://{tmp_path}/a%20b'"):
        SafeKeeper(tmp_path / "a b")
    with pytest.raises(BadUrl, match=f"write 'log://{Path.cwd()}/x'"):
        SafeKeeper(Path("x"))


@pytest.mark.parametrize("store", (None, b"memory:", 7, object, {}), ids=repr)
def test_what_is_neither_a_url_nor_a_backend_is_refused(store):
    with pytest.raises(BadUrl, match="a store is a URL, such as 'log:///var/lib/app', or an open backend, not"):
        SafeKeeper(store)


@pytest.mark.parametrize("id", ("k", b"k", ("group", b"k"), None, 7), ids=repr)
@pytest.mark.parametrize("method", ("save", "forget", "fetch"))
def test_an_id_is_a_checkpoint_id(store, method, id):
    state = [1] if method == "save" else []
    with SafeKeeper(store) as keeper:
        with pytest.raises(BadId, match=r"an id is a CheckpointId\(group, key\), not .*: write CheckpointId\("):
            getattr(keeper, method)(id, *state)
        assert keeper.metrics().pending == 0


@pytest.mark.parametrize("group", (b"group", None, ID, ""), ids=repr)
def test_a_group_is_a_str(store, group):
    with SafeKeeper(store) as keeper, pytest.raises(BadId, match="a group"):
        list(keeper.recover(group))
