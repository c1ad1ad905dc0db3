"""Offer a backend by its scheme without installing it, for tests of backends that are being written."""

from __future__ import annotations

from pathlib import Path

from safekeeper.registry import ENTRY_POINT_GROUP


def write_entry_points(folder: Path, targets: dict[str, str], group: str = ENTRY_POINT_GROUP) -> None:
    """Make *folder* look like one with an installed package that offers *targets*: scheme to `module:Class`.

    It counts in every Python that has *folder* on its path. The modules may be anywhere on the path.
    """
    installed = folder / "safekeeper_test_backends-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: safekeeper-test-backends\nVersion: 1\n")
    lines = [f"{scheme} = {target}\n" for scheme, target in targets.items()]
    (installed / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
