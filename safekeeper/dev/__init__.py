"""Real servers to try backends on and to test them with: `safekeeper dev redis`, `safekeeper dev hbase`,
`safekeeper dev hdfs`, and the same from Python.

A server listens on loopback only, keeps its data in a folder that it is given, and ends with whoever started it,
however that ends.
"""
