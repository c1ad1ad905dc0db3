"""Checkpoints in HDFS."""
