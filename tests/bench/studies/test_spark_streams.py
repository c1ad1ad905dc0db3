"""The study of streams and Spark runs, on few rows, and says what it has found."""

import os
import subprocess
import sys


def test_streams_are_compared_with_sparks_own_files_and_with_loops_by_hand():
    arguments = ["--quick", "--rows", "800", "--body", "json"]
    command = [sys.executable, "-m", "safekeeper.bench.studies.spark_streams", *arguments]
    wide = os.environ | {"COLUMNS": "160"}
    done = subprocess.run(command, env=wide, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    of_both = ("redis:", "PySpark alone", "Parquet files")
    reading = ("store:log:, from an operator", "store:log:, from Spark", "JSON files")
    writing = ("store:log:", "store:log:, to_json", "redis-py, foreachBatch", "redis-py, foreachPartition")
    for arm in (*of_both, *reading, *writing):
        assert done.stdout.count(f"│ {arm} ") == (2 if arm in of_both else 1)
    assert done.stdout.count("goal not measured: ") == 4
    assert done.stdout.count("│ redis:, json ") == 2  # the parts that are ours
