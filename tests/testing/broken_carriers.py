"""A correct carrier, `SoundCarrier`, and copies of it with one mistake each. The kit has to tell them apart.

The mistakes are made in a stream in a `log:` store, so that each class shows its mistake and nothing else.
"""

import threading
import time
from contextlib import suppress

from safekeeper import Closed, Gone
from safekeeper.streams import StreamElement, store
from safekeeper.streams.store import StoreInlet, StoreOutlet


class SoundCarrier:
    """No mistake."""

    outlet, inlet = StoreOutlet, StoreInlet

    def url(self, url):
        return f"store:{url.partition(':')[2]}"

    def open_outlet(self, url, readers, floor):
        opened, options = store.open_store(self.url(url))
        return self.outlet(store.StoredStream(opened, options.stream), readers, floor, options.retention)

    def open_inlet(self, url, reader, after):
        opened, options = store.open_store(self.url(url))
        return self.inlet(store.StoredStream(opened, options.stream), reader, after, options.poll)


class AppendsWhatIsSentAgain(SoundCarrier):
    class outlet(StoreOutlet):
        def send(self, elements):
            super().send([StreamElement(self.last + n, e.body, e.key) for n, e in enumerate(elements, 1)])


class ForgetsItsNumbersWithItsElements(SoundCarrier):
    class outlet(StoreOutlet):
        def _trim(self, floor):
            self._stream.forget([frame for frame in self._frames if frame.last <= floor])
            self._frames = [frame for frame in self._frames if frame.last > floor]


class TakesGaps(SoundCarrier):
    class outlet(StoreOutlet):
        def _check_gap(self, first):
            pass


class StepsOverWhatIsGone(SoundCarrier):
    class inlet(StoreInlet):
        def _check_end(self):
            with suppress(Gone):
                super()._check_end()
                return
            later = [frame.first for frame in self._known if frame.first > self._position]
            if later:
                self._after = min(later) - 1


class TrimsForTheQuickest(SoundCarrier):
    class outlet(StoreOutlet):
        def acknowledged(self):
            found = super().acknowledged()
            self._trim(max(found.values(), default=0))
            return found


class NeverTrims(SoundCarrier):
    class outlet(StoreOutlet):
        def _trim(self, floor):
            pass


class AcknowledgesLess(SoundCarrier):
    class inlet(StoreInlet):
        def acknowledge(self, upto):
            self._check_open()
            self._stream.acknowledge(self._reader, upto)


class ForgetsWhatWasAcknowledged(SoundCarrier):
    class inlet(StoreInlet):
        def _find_position(self):
            self._after = 0 if self._after is None else self._after
            return super()._find_position()


class LosesKeys(SoundCarrier):
    class outlet(StoreOutlet):
        def send(self, elements):
            super().send([StreamElement(e.number, e.body) for e in elements])


class ConfirmsTooEarly(SoundCarrier):
    """It writes in the background, which is quick enough for whoever is not killed."""

    class outlet(StoreOutlet):
        def send(self, elements):
            if elements and elements[-1].number > self._last:
                threading.Timer(0.03, self._write, [list(elements), self._last]).start()
                self._last = max(self._last, elements[-1].number)

        def _write(self, elements, last):
            for element in elements:
                if element.number > last:
                    frame, value = store.encode([element])
                    self._stream.write(frame, value)


class WaitsForEver(SoundCarrier):
    class inlet(StoreInlet):
        def read(self, timeout=None):
            if timeout is not None:
                return super().read(timeout)
            with suppress(Closed):
                return super().read()
            while True:
                time.sleep(0.01)


class ReadsWhenClosed(SoundCarrier):
    class inlet(StoreInlet):
        def read(self, timeout=None):
            with suppress(Closed):
                return super().read(timeout)
            return []


class LetsAnybodyRead(SoundCarrier):
    class inlet(StoreInlet):
        def _find_position(self):
            self._is_reader = True
            return super()._find_position()


class IgnoresUnknownOptionsOfStreams(SoundCarrier):
    def url(self, url):
        return super().url(url).replace("&nonsense=1", "")


class HasNoBounds(SoundCarrier):
    class outlet(StoreOutlet):
        def _make_room(self, last):
            pass


class GivesPagesInAnyOrder(SoundCarrier):
    class inlet(StoreInlet):
        def read(self, timeout=None):
            found = super().read(timeout)
            return found if len(found) < 1000 else [*found[500:], *found[:500]]


class BeginsWithThePosition(SoundCarrier):
    def open_inlet(self, url, reader, after):
        return super().open_inlet(url, reader, max(0, after - 1) if after else after)


class BeginsAnywhere(SoundCarrier):
    class inlet(StoreInlet):
        def _check_end(self):
            if max(frame.last for frame in self._known) >= self._position:
                super()._check_end()


class HearsOnlyWhatComesAfterwards(SoundCarrier):
    class inlet(StoreInlet):
        def _find_position(self):
            if self._after is None and self._stream.acknowledged([self._reader or ""]) == {}:
                self._after = max(frame.last for frame in self._known)
            return super()._find_position()
