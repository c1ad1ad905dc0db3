"""What the study of threads on HDFS says of the paper's numbers."""

from safekeeper.bench.studies import hdfs_threads


def test_what_contradicts_table_8_is_said_in_either_direction():
    lines = list(hdfs_threads.beside_the_paper("write", {1: 1.0, 2: 1.4, 4: 2.5, 8: 1.0, 16: 1.64}))
    verdicts = [line.rpartition(": ")[2] for line in lines]
    assert verdicts == [
        *["agrees with the paper"] * 2,
        "gains more than the paper",
        "gains less than the paper",
        "agrees with the paper",
    ]
