"""Spark's own test suites of state stores and stateful queries, with our provider: what passes, and what cannot.

    python -m safekeeper.bench.studies.spark_suites [--quick] [--versions 4.2.0] [--only Base,InnerJoin]

The suites are those in the tests jars of Maven Central, one minor at a time, each on its own Spark. The base suite is
Spark's contract for any provider; the others are its tests of stateful queries, with our provider in their settings.
Our state is in a `log:` store. What fails and is not in the list of what cannot pass, with the reason, is told, and the
goal is then not met.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.laboratory import needs_laboratory
from safekeeper.spark import PROVIDER

with needs_laboratory():
    from safekeeper.bench.lab.spark_tests import VERSIONS, SparkTests

BASE = "Base"
QUERIES = {
    "Aggregation": "StreamingAggregationSuite",
    "Deduplication": "StreamingDeduplicationSuite",
    "DeduplicationWithinWatermark": "StreamingDeduplicationWithinWatermarkSuite",
    "FlatMapGroups": "FlatMapGroupsWithStateSuite",
    "FullOuterJoin": "StreamingFullOuterJoinSuite",
    "InitialState": "FlatMapGroupsWithStateWithInitialStateSuite",
    "InnerJoin": "StreamingInnerJoinSuite",
    "LeftSemiJoin": "StreamingLeftSemiJoinSuite",
    "OuterJoin": "StreamingOuterJoinSuite",
    "SessionWindow": "StreamingSessionWindowSuite",
    "SeveralOperators": "MultiStatefulOperatorsSuite",
}
"""Suites by the name that they have here."""

OPERATORS = {"TransformList": "TransformWithListStateSuite", "TransformMap": "TransformWithMapStateSuite"}
"""Of `transformWithState`, up to Spark 4.1: from 4.2 on Spark lets RocksDB's provider only do it. They set that
provider by its class, for which ours is put."""

QUICK = "Deduplication"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Tests that cannot pass."""

    suite: str
    test: str
    """Some words of its name."""
    reason: str
    minors: tuple[str, ...]
    """The versions of Spark that it is for: what fails with another one is told."""


BASE_CLASS = "org/apache/spark/sql/execution/streaming/state/StateStoreSuiteBase"
ITERATORS_LIKE = {"RocksDBStateStore": "SafeKeeperStateStore"}
"""Iterators of Spark's two stores differ: one shows the state as it was when it was opened, the other follows later
writes. The base suite goes by the name of the class, and ours has to be as RocksDB's."""

PROVIDERS = {
    "org/apache/spark/sql/execution/streaming/state/RocksDBStateStoreProvider": PROVIDER.replace(".", "/"),
}

ALL = ("4.0", "4.1", "4.2")

EXCLUDED: tuple[Exclusion, ...] = (
    Exclusion(
        BASE,
        "SPARK-18342: commit fails when rename fails",
        "breaks the file system of the checkpoint folder, into which we write no state",
        ALL,
    ),
    Exclusion(
        BASE,
        "SPARK-48997: maintenance threads with exceptions unload only themselves",
        "uses a provider of Spark's own, not ours; it failed by its limit of five seconds, on a busy machine",
        ALL,
    ),
    Exclusion(
        BASE,
        "overwrite state file without overwriting checksum file",
        "counts the checksum files beside Spark's state files; we have neither, our commits carry their checksums",
        ("4.1",),
    ),
    Exclusion(
        BASE,
        "checksum files are also cleaned up during maintenance",
        "counts the checksum files beside Spark's state files",
        ("4.1",),
    ),
    Exclusion(
        BASE,
        "Load spark 4.0 golden checkpoint written without checksum",
        "reads files that a provider of Spark's own has written",
        ("4.1",),
    ),
    Exclusion(
        BASE,
        "getStore with invalid versions",
        "with 4.0 a thread opens versions while it has another one open, and ours waits until that is given back; from"
        " 4.1 on it passes: Spark ends each store first",
        ("4.0",),
    ),
    *(
        Exclusion(
            suite,
            "(encoding = avro)",
            "asks for rows in Avro, which our provider refuses with a sentence",
            ("4.0", "4.1"),
        )
        for suite in OPERATORS
    ),
)

SOURCE = """\
package io.safekeeper.spark;

public final class SparkQuerySuites {{
  private SparkQuerySuites() {{}}
{suites}}}
"""

SUITE = """
  public static final class {name} extends org.apache.spark.sql.streaming.{base} {{
    @Override
    public org.apache.spark.SparkConf sparkConf() {{
      return SuiteSettings.with(super.sparkConf());
    }}
  }}
"""


def query_suites(version: str) -> dict[str, str]:
    """The suites of queries that Spark *version* has. From 4.2 on those of joins are in two, for the formats."""
    if version < "4.2":
        return QUERIES | OPERATORS
    return {name: base.replace("JoinSuite", "JoinWithoutVCFSuite") for name, base in QUERIES.items()}


def source(version: str) -> str:
    """The query suites in Java: Spark's, with our settings."""
    bases = query_suites(version)
    return SOURCE.format(suites="".join(SUITE.format(name=name, base=base) for name, base in bases.items()))


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """What became of the tests of a suite."""

    suite: str
    passed: int
    failed: dict[str, str]
    """What went wrong, by test."""
    ignored: int
    """By Spark itself."""

    def unexpected(self, version: str) -> dict[str, str]:
        """The failures that no exclusion for Spark *version* explains."""
        return {test: said for test, said in self.failed.items() if exclusion(self.suite, test, version) is None}


def exclusion(suite: str, test: str, version: str) -> Exclusion | None:
    """Why a test cannot pass with Spark *version*, if it cannot."""
    minor = version.rpartition(".")[0]
    return next((one for one in EXCLUDED if one.suite == suite and one.test in test and minor in one.minors), None)


def outcome(suite: str, reports: Path) -> SuiteOutcome | None:
    """What the reports of a run say; None if there are none, since it came to no end."""
    passed, ignored, failed = 0, 0, {}
    trees = map(ElementTree.parse, reports.glob("TEST-*.xml"))
    cases = [case for tree in trees for case in tree.iter("testcase")]
    for case in cases:
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            failed[case.get("name", "")] = problem.get("message", "")
        elif case.find("skipped") is not None:
            ignored += 1
        else:
            passed += 1
    return SuiteOutcome(suite, passed, failed, ignored) if cases else None


def run(tests: SparkTests, suite: str) -> SuiteOutcome:
    """Run one suite in a JVM of its own."""
    name = "SparkBaseSuite" if suite == BASE else f"SparkQuerySuites${suite}"
    reports = Path(tempfile.mkdtemp(dir=tests.folder))
    arguments = ("-R", str(reports), "-s", f"io.safekeeper.spark.{name}", "-oW", "-u", str(reports))
    with tempfile.TemporaryFile("w+") as out:
        tests.run("org.scalatest.tools.Runner", *arguments, out=out, spark_testing="true")
        found = outcome(suite, reports)
        if found is not None:
            return found
        out.seek(0)
        said = re.sub(r"\s+", " ", out.read())[-1000:]
        return SuiteOutcome(suite, 0, {"the whole suite": f"it came to no end: {said}"}, 0)


def told(failures: dict[str, str]) -> Iterator[str]:
    """A line for each test that was not expected to fail; Spark has most of them once for every codec."""
    said = {test.partition(" - with codec")[0]: what for test, what in failures.items()}
    counts = Counter(test.partition(" - with codec")[0] for test in failures)
    for test, count in counts.items():
        yield f"    {count} not expected, {test}: {' '.join(said[test].split())[:300]}"


def describe(version: str, one: SuiteOutcome) -> Iterator[str]:
    """Lines about a suite: counts, exclusions, and what was not expected."""
    ignored = f", {one.ignored} ignored by Spark" if one.ignored else ""
    yield f"Spark {version}, {one.suite}: {one.passed} passed, {len(one.failed)} failed{ignored}"
    explained = Counter(found for test in one.failed if (found := exclusion(one.suite, test, version)))
    for found, count in explained.items():
        yield f"    {count} excluded, {found.test}: {found.reason}"
    yield from told(one.unexpected(version))


def verdict(version: str, outcomes: list[SuiteOutcome], everything: bool) -> Goal:
    """Whether all that can pass does."""
    wrong = sum(len(one.unexpected(version)) for one in outcomes)
    passed = sum(one.passed for one in outcomes)
    which = "all suites" if everything else ", ".join(one.suite for one in outcomes)
    return Goal(f"Spark {version}'s own tests, {which}: {passed} pass, {wrong} fail that are not excluded", not wrong)


def main() -> None:
    """Run the suites and print what became of them."""
    known = [BASE, *QUERIES, *OPERATORS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one suite of one version")
    parser.add_argument("--versions", default=",".join(VERSIONS), help="of Spark")
    parser.add_argument("--only", default=",".join(known), metavar="NAMES", help=f"some of {', '.join(known)}")
    given = parser.parse_args()
    if given.quick:
        given.versions, given.only = VERSIONS[-1], QUICK
    suites = given.only.split(",")
    if unknown := set(suites) - set(known):
        raise SystemExit(f"there is no suite {min(unknown)}, only {', '.join(known)}")
    for version in given.versions.split(","):
        with SparkTests(version) as tests:
            tests.compile(["SparkBaseSuite", "SuiteSettings"], {"SparkQuerySuites": source(version)})
            tests.rename(BASE_CLASS, ITERATORS_LIKE)
            for name in OPERATORS.values() if version < "4.2" else ():
                tests.rename(f"org/apache/spark/sql/streaming/{name}", PROVIDERS)
            outcomes = []
            for suite in (suite for suite in suites if suite == BASE or suite in query_suites(version)):
                outcomes.append(run(tests, suite))
                for line in describe(version, outcomes[-1]):
                    print(line, flush=True)
        print(verdict(version, outcomes, suites == known), flush=True)


if __name__ == "__main__":
    main()
