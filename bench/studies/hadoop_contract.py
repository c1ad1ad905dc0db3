"""Hadoop's own contract tests for file systems, on `safekeeper://`: what it claims passes, and what it does not claim.

    python -m safekeeper.bench.studies.hadoop_contract [--quick] [--only Open,Seek] [--url log:///empty/store]

The tests are those in the tests jar of hadoop-common 3.5.0, as Apache compiled them; Hadoop is the one that PySpark
brings. A test that a file system does not have to pass says so itself ("aborted"): these are listed with the reason
that they give. What `safekeeper://` does not claim is in a list here, suite by suite.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.table import Table

from safekeeper.bench.harness.goals import Goal
from safekeeper.dev.jars import fetch_pom
from safekeeper.spark import jar
from safekeeper.spark.build import find_tool, spark_home

SUITES = (
    "BulkDelete",
    "ContentSummary",
    "CopyFromLocal",
    "Create",
    "Delete",
    "GetEnclosingRoot",
    "GetFileStatus",
    "Mkdir",
    "Open",
    "RootDirectory",
    "Seek",
    "VectoredRead",
)
"""What is claimed: the suites, by the middle of their names."""

NOT_CLAIMED = {
    "Append": "there is no append: a file is written once and replaced whole",
    "Concat": "there is no concat",
    "Etag": "a file has no etag",
    "LeaseRecovery": "nothing is leased: who writes a file needs nobody's leave",
    "MultipartUploader": "an upload is a stream that is written in parts, not an interface of its own",
    "PathHandle": "a file is opened by its path only",
    "Rename": "there is no rename, so nothing may need one: a file appears whole when it is closed",
    "SafeMode": "there is no safe mode",
    "SetTimes": "the time of a file is when it was written",
    "StreamIOStatistics": "streams count nothing by themselves",
    "Unbuffer": "a stream that is read keeps the part at hand",
}
"""What is not, and why. The other suites of the jar are of what stands around them."""

_SOURCE = """\
package io.safekeeper.hadoop;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.contract.AbstractFSContract;

public final class Suites {{
  private Suites() {{}}
{suites}}}
"""

_SUITE = """
  public static final class {name} extends org.apache.hadoop.fs.contract.AbstractContract{base} {{
{constructor}
    @Override
    protected AbstractFSContract createContract(Configuration conf) {{
      return new VolumeContract(conf);
    }}
  }}
"""

_WITH_PARAMETER = """\
    public {name}(String parameter) {{
      super(parameter);
    }}
"""


@dataclass(frozen=True, slots=True)
class ContractTest:
    """A test and what became of it."""

    suite: str
    name: str
    outcome: str
    """`passed`, `failed` or `aborted`."""
    reason: str = ""


def run(suites: Sequence[str], url: str) -> list[ContractTest]:
    """The tests of *suites* on the store at *url*."""
    pom = resources.files("safekeeper.bench.lab").joinpath("hadoop-contract-pom.xml").read_bytes()
    jars = fetch_pom("hadoop-contract", pom)
    with tempfile.TemporaryDirectory(prefix="safekeeper-hadoop-contract-") as scratch:
        folder = Path(scratch)
        path = f"{folder}:{jar()}:{jars}/*:{spark_home()}/jars/*"
        _compile(suites, folder, path)
        given = {"safekeeper.url": url, "safekeeper.python": sys.executable, "java.io.tmpdir": scratch}
        command = [
            find_tool("java"),
            "-Xmx1g",
            "-XX:TieredStopAtLevel=1",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        ]
        command += [
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            *(f"-D{name}={value}" for name, value in given.items()),
        ]
        command += ["-cp", path, "org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"]
        command += ["--details=none", f"--reports-dir={folder}/reports"]
        command += [f"--select-class=io.safekeeper.hadoop.Suites${name}" for name in suites]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        report = folder / "reports" / "TEST-junit-jupiter.xml"
        if not report.exists():
            raise SystemExit(f"Hadoop's tests did not run: {(done.stderr or done.stdout)[-2000:]}")
        return list(read(report))


def _compile(suites: Sequence[str], folder: Path, path: str) -> None:
    text = ""
    for name in suites:
        constructor = _WITH_PARAMETER.format(name=name) if name == "VectoredRead" else ""
        base = name if name == "GetEnclosingRoot" else f"{name}Test"
        text += _SUITE.format(name=name, base=base, constructor=constructor)
    (folder / "Suites.java").write_text(_SOURCE.format(suites=text))
    contract = resources.files("safekeeper.bench.lab") / "java" / "io" / "safekeeper" / "hadoop" / "VolumeContract.java"
    command = [find_tool("javac"), "--release", "17", "-proc:none", "-nowarn", "-cp", path, "-d", str(folder)]
    done = subprocess.run([*command, str(contract), f"{folder}/Suites.java"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Hadoop's tests do not compile with the contract: {done.stderr[-2000:]}")


def read(report: Path) -> Iterator[ContractTest]:
    """What JUnit has reported."""
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - JUnit has just written it
        suite, name = case.attrib["classname"].rpartition("$")[2], case.attrib["name"]
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if bad is not None:
            yield ContractTest(suite, name, "failed", _reason(bad))
        elif skipped is not None:
            yield ContractTest(suite, name, "aborted", _reason(skipped))
        else:
            yield ContractTest(suite, name, "passed")


def _reason(element: ElementTree.Element) -> str:
    """The first line of what was thrown, without the name of its class."""
    said = element.attrib.get("message") or element.text or ""
    return re.sub(r"^[\w.$]+(Exception|Error): ", "", said.strip().partition("\n")[0])


def table(tests: Sequence[ContractTest]) -> Table:
    """How many of each suite passed, and what is not claimed."""
    shown = Table(title="Hadoop's contract tests for file systems on safekeeper://")
    for heading in ("suite", "passed", "failed", "aborted", "not claimed, because"):
        shown.add_column(heading)
    for suite in dict.fromkeys(test.suite for test in tests):
        outcomes = [test.outcome for test in tests if test.suite == suite]
        shown.add_row(suite, *(str(outcomes.count(one)) for one in ("passed", "failed", "aborted")), "")
    for suite, reason in NOT_CLAIMED.items():
        shown.add_row(suite, "", "", "", reason)
    return shown


def main() -> None:
    """Run it and print what passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one suite")
    parser.add_argument("--only", help="these suites only")
    parser.add_argument("--url", help="an empty store to do it on; a log: in a temporary folder otherwise")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else ["Open"] if given.quick else list(SUITES)
    if unknown := sorted(set(names) - set(SUITES)):
        parser.error(f"there is no suite {', '.join(unknown)}: there are {', '.join(SUITES)}")
    with tempfile.TemporaryDirectory() as folder:
        tests = run(names, given.url or f"log://{folder}/store")
    console = Console()
    console.print(table(tests))
    for test in tests:
        if test.outcome != "passed":
            print(f"{test.outcome} {test.suite}.{test.name}: {test.reason[:300]}")
    counts = {one: sum(test.outcome == one for test in tests) for one in ("passed", "failed", "aborted")}
    text = "Hadoop's contract tests of what safekeeper:// claims: none fails; " + ", ".join(
        f"{count} {one}" for one, count in counts.items()
    )
    print(Goal(text, not counts["failed"] and counts["passed"] > 0))


if __name__ == "__main__":
    main()
