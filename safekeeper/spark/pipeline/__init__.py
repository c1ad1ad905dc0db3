"""A pipeline of an operator in Python, a query in Spark, and an operator in Python, that anybody may kill.

    lines -> tidy (Python) -> words -> number (Spark, with state) -> counts -> total (Python) -> totals

`python -m safekeeper.spark.pipeline` starts it, kills its parts at random, and compares what comes out. `tidy`,
`number` and `total` are the three parts, each of which can be started by itself; `parts` starts and kills them; `truth`
says what must come out.
"""
