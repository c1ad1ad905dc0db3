"""The examples of `docs/integrations.md` run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SAID = ["2\n", "['main/reports/1.txt', 'main/reports/2.txt', 'main/reports/3.txt']\n"]


@pytest.mark.parametrize(("example", "said"), list(zip(EXAMPLES, SAID, strict=True)), ids=("langgraph", "fsspec"))
def test_an_example_runs(example, said, tmp_path):
    # Elsewhere than in the clone, whose own metadata may be old.
    code = re.sub(r"/tmp/safekeeper-\w+", str(tmp_path / "store"), example)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == said, done.stderr


@pytest.mark.parametrize(("module", "driver"), [("langgraph", "langgraph"), ("fsspec", "fsspec")])
def test_nothing_is_imported_unless_it_is_asked_for(module, driver):
    code = "import sys, safekeeper; print(sys.modules.keys() & {'langgraph', 'fsspec', 'safekeeper.integrations'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    code = f"import sys, safekeeper.{module}; print('{driver}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
