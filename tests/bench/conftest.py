"""The laboratory for tests of a wheel, which does not have it."""

from importlib.util import find_spec
from pathlib import Path

import safekeeper.bench

if find_spec("safekeeper.bench.lab") is None:
    safekeeper.bench.__path__.append(str(Path(__file__).parents[2] / "bench"))
