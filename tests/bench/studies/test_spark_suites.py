"""What Spark's suites report, and what of it was expected; and the turns of its benchmark."""

import io

import pytest

from safekeeper.bench.studies import spark_operations, spark_suites
from safekeeper.bench.studies.spark_suites import (
    BASE,
    EXCLUDED,
    OPERATORS,
    QUERIES,
    describe,
    exclusion,
    outcome,
    source,
    verdict,
)

XML = """<testsuite name="SparkBaseSuite">
  <testcase name="get, put" time="1"/>
  <testcase name="later" time="0"><skipped/></testcase>
  <testcase name="{excluded} - with codec lz4" time="1"><failure message="as expected"/></testcase>
  {more}
</testsuite>
"""


@pytest.mark.parametrize(
    ("more", "said", "wrong"),
    (("", "met", 0), ('<testcase name="iterator"><error message="2 is not 3"/></testcase>', "not met", 1)),
)
def test_only_failures_that_are_not_excluded_count(more, said, wrong, tmp_path):
    (tmp_path / "TEST-one.xml").write_text(XML.format(excluded=EXCLUDED[0].test, more=more))
    found = outcome(BASE, tmp_path)
    assert (found.passed, found.ignored, len(found.unexpected("4.2.0"))) == (1, 1, wrong)
    lines = [*describe("4.2.0", found), str(verdict("4.2.0", [found], everything=False))]
    assert lines[0] == f"Spark 4.2.0, Base: 1 passed, {1 + wrong} failed, 1 ignored by Spark"
    assert lines[1] == f"    1 excluded, {EXCLUDED[0].test}: {EXCLUDED[0].reason}"
    assert lines[-1].startswith(f"goal {said}: Spark 4.2.0's own tests, Base: 1 pass, {wrong} fail")
    assert lines[2:-1] == ["    1 not expected, iterator: 2 is not 3"] * wrong


def test_a_suite_that_came_to_no_end_has_no_outcome(tmp_path):
    assert outcome(BASE, tmp_path) is None


@pytest.mark.parametrize(
    ("version", "join", "others"),
    (("4.1.3", "StreamingInnerJoinSuite", len(OPERATORS)), ("4.2.0", "StreamingInnerJoinWithoutVCFSuite", 0)),
)
def test_every_query_suite_gets_a_class_with_our_settings(version, join, others):
    text = source(version)
    assert f"class InnerJoin extends org.apache.spark.sql.streaming.{join} {{" in text
    assert text.count("SuiteSettings.with(super.sparkConf())") == len(QUERIES) + others


def test_rows_in_avro_are_excluded():
    assert (
        exclusion("TransformList", "test list state (encoding = avro) (with changelog checkpointing)", "4.1.3")
        is not None
    )
    assert exclusion("TransformList", "test list state (encoding = unsaferow)", "4.1.3") is None
    assert exclusion("Deduplication", "one (encoding = avro)", "4.1.3") is None


def test_each_exclusion_is_for_some_versions_and_for_no_other():
    assert all(one.reason and set(one.minors) <= {"4.0", "4.1", "4.2"} and one.minors for one in EXCLUDED)
    assert exclusion(BASE, "getStore with invalid versions - with codec lz4", "4.0.4") is not None
    assert exclusion(BASE, "getStore with invalid versions - with codec lz4", "4.1.3") is None


def test_turns_are_compared_with_rocksdb_in_the_same_run():
    names = ["putting 10000 rows (5000 rows to overwrite - rate 50)", "evicting 1000 rows (x) from 10000 rows"]
    names.append("trying to delete 10000 rows from 10000 rows(0 rows are non-existing - rate 0)")
    lines = ["Running benchmark\n"]
    for name in names:
        for case, wall in (("In-memory", 10_000), ("RocksDB (trackTotalNumberOfRows: false)", 50_000)):
            lines += [f"turn\t{name}\t{case}\t100\t{wall}\t{wall // 2}\n"] * 3
    times = {short: {} for short in ("put, 50 % overwritten", "evict 10 %", "delete, 0 % absent")}
    for cases in times.values():
        cases |= {spark_operations.OURS: [], spark_operations.ROCKSDB: []}
    spark_operations.read(io.StringIO("".join(lines)), spark_operations.OURS, False, times)
    assert times["evict 10 %"][spark_operations.OURS] == [100.0] * 3
    assert [str(goal).partition(":")[0] for goal in spark_operations.goals(times)] == ["goal met"] * 3
    assert spark_suites.QUICK in QUERIES
