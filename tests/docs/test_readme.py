import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def python_blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_first_lines_of_the_readme_save_and_fetch_a_state(tmp_path):
    code = python_blocks()[0].replace("/tmp/safekeeper-readme", str(tmp_path / "state"))
    assert run(code) == "{'count': 41}\n"
    without_save = "".join(line for line in code.splitlines(keepends=True) if ".save(" not in line)
    assert run(without_save) == "{'count': 41}\n"


def test_the_command_line_shows_what_the_first_lines_saved_and_they_fetch_what_it_puts(tmp_path):
    def local(text):
        return text.replace("/tmp/safekeeper-readme", str(tmp_path / "state"))

    code = local(python_blocks()[0])
    shown, put = (
        f"{sys.executable} -m safekeeper.cli {command}"
        for command in re.findall(
            r"^(?:echo .*)?safekeeper ((?:get|put) --.*?)(?: {2,}.*)?$", README.read_text(), re.MULTILINE
        )
    )
    (state,) = re.findall(r"^echo '(.*)' \| safekeeper put", README.read_text(), re.MULTILINE)
    run(code)
    said = subprocess.run(local(shown), shell=True, capture_output=True, text=True, check=True).stdout
    assert said == '{"count": 41}\n'
    subprocess.run(local(put), shell=True, input=state, text=True, check=True)
    without_save = "".join(line for line in code.splitlines(keepends=True) if ".save(" not in line)
    assert run(without_save) == "{'count': 42}\n"


def test_ci_runs_the_readmes_test_command():
    commands = re.findall(r"```\n(python3 -m venv .*)\n```", README.read_text())
    script = (README.parent / ".ci" / "run").read_text()
    assert len(commands) == 2
    for part in commands[1].split(" && "):
        assert part in script
