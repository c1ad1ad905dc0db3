"""The command `safekeeper`, as a process of its own."""

import os
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it; how it ended and what it has said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "safekeeper.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
