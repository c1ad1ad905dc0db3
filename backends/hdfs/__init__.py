"""`hdfs:` keeps checkpoints in HDFS."""
