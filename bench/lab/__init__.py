"""The laboratory: sites of studies that need root or a compiler.

It is in a clone of the repository and not in the wheel (`harness/laboratory.py`).

    shaped_network      network namespaces as servers, with links of a chosen rate
    peace_site          HDFS on such a network, for `studies.peace`
    HdfsRaw.java        the peer of `studies.hdfs_overhead`
    spark_tests         Spark's own tests with our provider, for `studies.spark_suites` and `studies.spark_operations`;
                        what stands between the two is in `java/`
"""
