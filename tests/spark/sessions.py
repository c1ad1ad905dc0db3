"""A query by transformWithState. Its class is local to a function: so workers of Spark get it by value."""


def sessions(numbers_of, row):
    """A value, a list and a map for each key, and a timer that ends them; rows go in and come out as given."""
    from pyspark.sql.streaming import StatefulProcessor

    class Sessions(StatefulProcessor):
        def init(self, handle):
            self.handle = handle
            self.seen = handle.getValueState("seen", "rows int")
            self.numbers = handle.getListState("numbers", "number int")
            self.times = handle.getMapState("times", "number int", "rows int")

        def handleInputRows(self, key, rows, timerValues):
            numbers = numbers_of(rows)
            before = self.seen.get()[0] if self.seen.exists() else 0
            self.seen.update((before + len(numbers),))
            self.numbers.appendList([(number,) for number in numbers])
            for number in numbers:
                known = self.times.getValue((number,))[0] if self.times.containsKey((number,)) else 0
                self.times.updateValue((number,), (known + 1,))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 300_000)
            yield self.told(key, "so far")

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            if self.seen.exists():
                yield self.told(key, "in the end")
                for state in (self.seen, self.numbers, self.times):
                    state.clear()

        def told(self, key, when):
            listed = sorted(number for (number,) in self.numbers.get())
            mapped = sorted((number, rows) for (number,), (rows,) in self.times.iterator())
            return row(key[0], f"{when} {self.seen.get()[0]} {listed} {mapped}")

        def close(self):
            pass

    return Sessions(), "key string, told string", "append", "eventtime"


def sessions_in_pandas(left):
    import pandas

    processor = sessions(
        lambda chunks: [number for chunk in chunks for number in chunk["number"].tolist()],
        lambda key, told: pandas.DataFrame({"key": [key], "told": [told]}),
    )
    return left.withWatermark("time", "2 minutes").groupBy("key").transformWithStateInPandas(*processor)
