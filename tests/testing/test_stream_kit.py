"""The kit for carriers finds the mistakes it is there for: each of `broken_carriers` fails the test named here."""

import re
from pathlib import Path

import pytest

from safekeeper.streams.registry import STREAMS_GROUP
from safekeeper.testing.entry_point import write_entry_points

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(900)  # the first test waits for all of them

CAUGHT_BY = {
    "AppendsWhatIsSentAgain": "test_what_is_sent_again_is_there_once",
    "ForgetsItsNumbersWithItsElements": "test_what_is_sent_again_is_there_once_also_after_all_was_trimmed",
    "TakesGaps": "test_a_gap_between_the_stream_and_what_is_sent_is_refused",
    "StepsOverWhatIsGone": "test_what_every_reader_has_acknowledged_is_gone",
    "TrimsForTheQuickest": "test_elements_are_retained_until_every_reader_has_them",
    "NeverTrims": "test_what_every_reader_has_acknowledged_is_gone",
    "AcknowledgesLess": "test_acknowledgements_never_go_back",
    "ForgetsWhatWasAcknowledged": "test_a_reader_goes_on_after_what_it_has_acknowledged",
    "LosesKeys": "test_elements_arrive_in_order_with_their_keys",
    "ConfirmsTooEarly": "test_a_producer_that_is_killed_loses_and_repeats_nothing",
    "WaitsForEver": "test_closing_ends_a_read_that_waits",
    "ReadsWhenClosed": "test_a_closed_side_raises_closed",
    "LetsAnybodyRead": "test_a_reader_that_is_not_declared_is_told",
    "IgnoresUnknownOptionsOfStreams": "test_an_unknown_option_is_refused",
    "HasNoBounds": "test_a_reader_that_is_too_far_behind_stops_the_producer",
    "GivesPagesInAnyOrder": "test_many_elements_arrive_once_and_in_order",
    "BeginsWithThePosition": "test_a_reader_goes_on_after_its_position",
    "BeginsAnywhere": "test_a_position_behind_the_end_is_refused",
    "HearsOnlyWhatComesAfterwards": "test_what_is_sent_again_is_there_once",
}
MODEL = "test_any_history_gives_what_a_list_gives"
CAUGHT_BY_THE_MODEL = (
    "AppendsWhatIsSentAgain",
    "TrimsForTheQuickest",
    "ForgetsWhatWasAcknowledged",
    "HearsOnlyWhatComesAfterwards",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, run_kit):
    """What the kit said: class and test to "passed", "skipped" or the message."""
    folder = tmp_path_factory.mktemp("kit")
    (folder / "carriers.py").write_text(
        "import broken_carriers\n"
        + "".join(f"{name.lower()} = broken_carriers.{name}()\n" for name in ("SoundCarrier", *CAUGHT_BY))
    )
    schemes = {name.lower(): f"carriers:{name.lower()}" for name in ("SoundCarrier", *CAUGHT_BY)}
    write_entry_points(folder, schemes, STREAMS_GROUP)
    wanted = [("SoundCarrier", ""), *CAUGHT_BY.items(), *((name, MODEL) for name in CAUGHT_BY_THE_MODEL)]
    return run_kit(folder, "check_broken_carriers.py", wanted)


def test_a_sound_carrier_passes(outcomes):
    sound = {test: outcome for (tested, test), outcome in outcomes.items() if tested == "SoundCarrier"}
    assert len(sound) > 30
    assert {test: outcome for test, outcome in sound.items() if outcome != "passed"} == {}


@pytest.mark.parametrize(("name", "test"), tuple(CAUGHT_BY.items()), ids=CAUGHT_BY)
def test_a_mistake_is_caught(outcomes, name, test):
    _check_caught(outcomes[name, test])


@pytest.mark.parametrize("name", CAUGHT_BY_THE_MODEL)
def test_the_model_catches_it_too(outcomes, name):
    _check_caught(outcomes[name, MODEL])


def test_every_broken_carrier_is_in_the_table():
    classes = re.findall(r"^class (\w+)\(SoundCarrier", (HERE / "broken_carriers.py").read_text(), re.MULTILINE)
    assert set(classes) == set(CAUGHT_BY)


def _check_caught(outcome):
    assert outcome not in ("passed", "skipped", "error")
    assert not re.match("NameError|AttributeError|TypeError", outcome), "the broken carrier is broken in another way"
