"""The kit finds the mistakes it is there for: each backend of `broken_backends` fails the test named here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from safekeeper.testing.entry_point import write_entry_points

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(900)  # the first test waits for all of them

SOUND = ("Sound", "FinishesForTheDead")
WITH_A_HOST = ("Distant", "Near")

CAUGHT_BY = {
    "WritesLate": "test_what_was_written_is_read_here_and_by_another_handle",
    "TakesUnreachableForAbsent": "test_a_store_that_cannot_be_reached_is_an_error_of_ours_and_not_empty[read]",
    "TakesUnreachableForEmpty": "test_a_store_that_cannot_be_reached_is_an_error_of_ours_and_not_empty[keys]",
    "LeaksAnExceptionOfItsDriver": "test_a_store_that_cannot_be_reached_is_an_error_of_ours_and_not_empty[write]",
    "ForgetsDeletesWhenClosed": "test_a_deleted_id_is_absent_also_after_reopening",
    "TearsValues": "test_readers_never_see_a_torn_value[another handle]",
    "ForgetsGroups": "test_a_group_exists_as_long_as_it_has_an_id",
    "KeepsEmptyGroups": "test_a_group_exists_as_long_as_it_has_an_id",
    "AnswersInItsOwnOrder": "test_a_read_keeps_the_order_and_answers_every_repetition",
    "AnswersRepetitionsOnce": "test_a_read_keeps_the_order_and_answers_every_repetition",
    "TakesAbsentForEmpty": "test_what_was_never_written_is_absent",
    "TakesEmptyForAbsent": "test_a_value_of_no_bytes_is_not_absent",
    "FoldsCase": "test_awkward_keys_do_not_collide",
    "DropsTrailingNuls": "test_awkward_keys_do_not_collide",
    "CutsLongKeys": "test_awkward_keys_do_not_collide",
    "RunsGroupAndKeyTogether": "test_a_group_and_a_key_do_not_run_into_each_other",
    "CutsLargeValues": "test_the_largest_value_comes_back_byte_for_byte",
    "AcknowledgesTooEarly": "test_acknowledged_writes_survive_kill_9_at_any_moment",
    "LeavesALockBehind": "test_acknowledged_writes_survive_kill_9_at_any_moment",
    "FinishesHalfForTheDead": "test_acknowledged_writes_survive_kill_9_at_any_moment",
    "FinishesTooLate": "test_acknowledged_writes_survive_kill_9_at_any_moment",
    "TakesBackWhatWasSeen": "test_acknowledged_writes_survive_kill_9_at_any_moment",
    "TakesBackWhatWasAcknowledged": "test_acknowledged_writes_survive_kill_9_at_any_moment",
    "WorksAfterClosing": "test_a_closed_handle_raises_closed[read]",
    "WorksAfterForking": "test_a_forked_child_gets_closed_and_the_parent_goes_on",
    "BreaksTheParentFromAChild": "test_a_forked_child_gets_closed_and_the_parent_goes_on",
    "ListsAfterClosing": "test_an_iterator_begun_before_closing_raises_closed",
    "EndsAListingAtTheNextWrite": "test_a_listing_shows_what_stays_while_the_rest_changes[the same handle]",
    "TakesTheFirstOfEqualKeys": "test_of_columns_the_last_value_of_a_key_counts",
    "MakesItsFolderWhenOpened": "test_opening_and_reading_leave_no_trace",
    "IgnoresUnknownOptions": "test_an_unknown_option_is_refused",
    "RefusesEmptyBatches": "test_an_empty_batch_is_not_an_error_and_changes_nothing",
    "RefusesToDeleteWhatIsAbsent": "test_deleting_what_is_not_there_is_not_an_error",
    "PromisesLessThanItDeclares": "test_it_says_who_sees_a_write_and_what_a_write_survives",
    "SendsWorkersElsewhere": "test_the_workers_of_a_job_open_the_same_store",
    "CountsHitsThatNobodyPlanned": "test_planned_files_are_counted_and_no_more_are_hits",
    "SaysThatItIsNotThere": "test_a_store_exists_when_it_has_been_written",
    "GainsByNoWriteAtAll": "test_as_many_writes_at_once_as_it_gains_by_are_all_acknowledged",
    "IsNotThereInItsTurn": "test_what_is_written_in_its_turn_is_there",
    "GetsOnByItsOwnClock": "test_a_write_tells_by_the_clock_that_it_got_on",
    "RemembersWhatItRead": "test_a_later_write_wins_whoever_made_it[another process]",
    "CountsItsOwnVersions": "test_a_later_write_wins_whoever_made_it[another handle]",
    "DropsWritesUnderWay": "test_threads_that_write_different_ids_do_not_disturb_each_other",
    "ScansWithoutEmptyValues": "test_a_scan_gives_every_key_with_its_value",
    "ScansInOnePage": "test_a_scan_of_many_comes_in_pages",
    "ScansWhatItHasScannedBefore": "test_a_scan_gives_every_key_with_its_value",
    "ForgetsTokens": "test_the_same_token_again_is_success",
    "RemembersTokens": "test_what_was_written_is_not_created",
    "TakesAnyToken": "test_what_cannot_be_stored_is_refused",
    "LooksBeforeItCreates": "test_of_several_at_once_one_creates",
    "CreatesAgainAfterAKill": "test_processes_that_are_killed_create_each_id_once",
    "WritesLargeValuesLate": "test_a_value_in_parts_comes_back_and_its_old_parts_go",
    "ListsLate": "test_of_claims_at_once_at_most_one_holds",
    "SaysThatBatchesAreWhole": "test_a_batch_is_seen_whole[another handle]",
    "SaysThatSomeBatchesAreWhole": "test_a_batch_is_seen_whole[another handle]",
}

CAUGHT_BY_THE_MODEL = (
    "ForgetsDeletesWhenClosed",
    "ForgetsGroups",
    "KeepsEmptyGroups",
    "AnswersInItsOwnOrder",
    "AnswersRepetitionsOnce",
    "TakesEmptyForAbsent",
    "FoldsCase",
    "DropsTrailingNuls",
    "RemembersWhatItRead",
    "CountsItsOwnVersions",
    "TakesTheFirstOfEqualKeys",
)
MODEL = "test_any_history_through_several_handles_gives_what_a_dict_gives"
UNREACHABLE = "test_a_store_that_cannot_be_reached_is_an_error_of_ours_and_not_empty"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, run_kit) -> dict[tuple[str, str], str]:
    """What the kit said: class and test to "passed", "skipped" or the message."""
    folder = tmp_path_factory.mktemp("kit")
    schemes = {name.lower(): f"broken_backends:{name}" for name in (*SOUND, *WITH_A_HOST, *CAUGHT_BY)}
    write_entry_points(folder, schemes)
    wanted = [
        *((name, "") for name in SOUND),
        *((name, UNREACHABLE) for name in WITH_A_HOST),
        *CAUGHT_BY.items(),
        *((name, MODEL) for name in CAUGHT_BY_THE_MODEL),
    ]
    return run_kit(folder, "check_broken_backends.py", wanted)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_backend_passes(outcomes, name):
    sound = {test: outcome for (tested, test), outcome in outcomes.items() if tested == name}
    assert len(sound) > 100
    assert {test: outcome for test, outcome in sound.items() if outcome not in ("passed", "skipped")} == {}


@pytest.mark.parametrize(("name", "test"), tuple(CAUGHT_BY.items()), ids=CAUGHT_BY)
def test_a_mistake_is_caught(outcomes, name, test):
    _check_caught(outcomes[name, test])


@pytest.mark.parametrize("name", CAUGHT_BY_THE_MODEL)
def test_the_model_catches_it_too(outcomes, name):
    _check_caught(outcomes[name, MODEL])


def _outcomes_unreachable(outcomes, name):
    return [outcome for (tested, test), outcome in outcomes.items() if tested == name and test.startswith(UNREACHABLE)]


def test_a_store_on_the_network_has_to_say_how_it_cannot_be_reached(outcomes):
    found = _outcomes_unreachable(outcomes, "Distant")
    assert len(found) == 5
    assert [outcome for outcome in found if "override unreachable_url" not in outcome] == []


def test_a_store_on_this_host_may_be_one_that_can_always_be_reached(outcomes):
    assert _outcomes_unreachable(outcomes, "Near") == ["skipped"] * 5


def test_every_broken_backend_is_in_the_table():
    source = (HERE / "broken_backends.py").read_text()
    classes = re.findall(r"^class (\w+)\(", source, re.MULTILINE)
    assert set(classes) == {*SOUND, *WITH_A_HOST, *CAUGHT_BY, "ChangesKeys", "LooksAtNothingWhenOpened"}


def _check_caught(outcome):
    assert outcome not in ("passed", "skipped", "error")
    assert not re.match("NameError|AttributeError|TypeError", outcome), "the broken backend is broken in another way"


@pytest.mark.parametrize("module", ("pytest", "hypothesis"))
def test_without_what_it_needs_the_kit_says_what_to_install(module):
    program = f"import sys; sys.modules[{module!r}] = None\nfrom safekeeper.testing import Slow, BackendContract"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.endswith(f"BackendContract needs {module}: pip install 'safekeeper[testing]'\n")
