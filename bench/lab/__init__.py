"""The laboratory: sites of studies that need root or a compiler.

It is in a clone of the repository and not in the wheel (`harness/laboratory.py`).

    shaped_network      network namespaces as servers, with links of a chosen rate
    peace_site          HDFS on such a network, for `studies.peace`; with stores of `hdfs:` on it: `store_site`
    HdfsRaw.java        the peer of `studies.hdfs_overhead`
    ycsb_core           YCSB's own client on Redis (`YcsbRedis.java`), for `studies.ycsb_agreement`
    spark_tests         Spark's own tests with our provider, for `studies.spark_suites` and `studies.spark_operations`;
                        what stands between the two is in `java/`
"""
