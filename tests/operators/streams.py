"""Streams in memory that survive the operators that use them."""

import threading
from bisect import bisect_right

from safekeeper import Closed, Gone
from safekeeper.streams import StreamElement


class MemoryStream:
    """Elements by number. What is sent again is dropped."""

    def __init__(self, bodies=(), *, retains=True):
        self.retains = retains
        self.elements = [StreamElement(number, body, body) for number, body in enumerate(bodies, 1)]
        self.acknowledgements = {"reader": 0}
        self.changed = threading.Condition()
        self.sends = 0

    @property
    def bodies(self):
        return [element.body for element in self.elements]

    @property
    def last(self):
        return self.elements[-1].number if self.elements else 0

    def send(self, elements):
        with self.changed:
            self.sends += 1
            new = [element for element in elements if element.number > self.last]
            if new and new[0].number != self.last + 1:
                raise Gone(f"{self.last} is followed by {new[0].number}")
            self.elements += new
            self.changed.notify_all()

    def append(self, *bodies):
        self.send([StreamElement(self.last + at, body, body) for at, body in enumerate(bodies, 1)])

    def acknowledged(self):
        return self.acknowledgements

    def close(self):
        pass

    def inlet(self, after):
        return MemoryInlet(self, after or 0)


class MemoryInlet:
    def __init__(self, stream, after):
        self.stream, self.at, self.closed = stream, after, False
        self.acknowledged = 0

    def read(self, timeout=None, most=100):
        with self.stream.changed:
            self.stream.changed.wait_for(lambda: self.closed or self.stream.last > self.at, timeout)
            if self.closed:
                raise Closed("the inlet was closed")
            begin = bisect_right(self.stream.elements, self.at, key=lambda element: element.number)
            found = self.stream.elements[begin : begin + most]
            if found:
                self.at = found[-1].number
            return found

    def acknowledge(self, upto):
        self.stream.acknowledgements["reader"] = upto

    def last(self):
        return self.stream.last or None

    def close(self):
        with self.stream.changed:
            self.closed = True
            self.stream.changed.notify_all()
