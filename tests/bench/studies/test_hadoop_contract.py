"""Hadoop's contract tests on `safekeeper://`: what of them passes, and how their report is read."""

import os
import shutil
import subprocess
import sys

import pytest

from safekeeper.bench.studies.hadoop_contract import NOT_CLAIMED, SUITES, read

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
STUDY = [sys.executable, "-m", "safekeeper.bench.studies.hadoop_contract"]
XML = """<testsuite name="JUnit Jupiter">
  <testcase name="testSeek()" classname="io.safekeeper.hadoop.Suites$Seek"/>
  <testcase name="testOpen()" classname="io.safekeeper.hadoop.Suites$Open">
    <failure message="it is not there" type="x.Y">x.Y: it is not there</failure>
  </testcase>
  <testcase name="testFlush()" classname="io.safekeeper.hadoop.Suites$Create">
    <skipped>org.opentest4j.TestAbortedException: not for such
	at org.apache.hadoop</skipped>
  </testcase>
</testsuite>
"""


def test_a_report_says_what_passed_failed_and_is_not_for_it(tmp_path):
    (tmp_path / "report.xml").write_text(XML)
    found = [(test.suite, test.outcome, test.reason) for test in read(tmp_path / "report.xml")]
    assert found == [
        ("Seek", "passed", ""),
        ("Open", "failed", "it is not there"),
        ("Create", "aborted", "not for such"),
    ]


def test_a_suite_is_claimed_or_it_is_said_why_not():
    assert not set(SUITES) & set(NOT_CLAIMED)
    done = subprocess.run([*STUDY, "--only", "Rename"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no suite Rename: there are BulkDelete" in done.stderr


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="it starts a JVM for some two hundred tests")
@pytest.mark.skipif(shutil.which("mvn") is None, reason="the tests come from Maven Central: apt-get install maven")
def test_none_of_hadoops_tests_fails_of_what_is_claimed():
    done = subprocess.run(STUDY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "none fails; 187 passed, 0 failed, 5 aborted" in done.stdout
