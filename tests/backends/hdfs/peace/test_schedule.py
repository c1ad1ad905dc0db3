"""Timesteps: when chunks go."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
from safekeeper.backends.hdfs.peace.schedule import ChunkRequest, Schedule
from safekeeper.backends.hdfs.peace.template import NoPlan

from .networks import check_pipeline, networks, two_racks, unhurried, used


def schedule_of(network=None, seed=1, **options):
    return Schedule(network or two_racks(), random.Random(seed), **options)


@unhurried
@given(
    networks(),
    st.randoms(use_true_random=False),
    st.sampled_from(["keep", "release"]),
    st.sampled_from(["ours", "paper"]),
    st.data(),
)
def test_every_request_is_served_in_the_end_and_never_above_capacity(network, generator, unfinished, rules, data):
    schedule = Schedule(network, generator, unfinished=unfinished, rules=rules)
    wanted = Counter()
    for writer in data.draw(st.lists(st.sampled_from(sorted(network.nodes)), max_size=8)):
        request = ChunkRequest(writer, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)))
        try:
            wanted[schedule.ask(request), request.writer] = request.chunks
        except NoPlan:
            continue
    owners = dict(wanted.keys())
    served, of_timestep = Counter(), {}
    while schedule.waiting or schedule.running:
        for grant in schedule.start():
            served[grant.request, owners[grant.request]] += 1
            of_timestep.setdefault(grant.timestep, []).append(grant.pipeline)
            check_pipeline(network, owners[grant.request], grant.pipeline)
        running = used(grant.pipeline for grant in schedule.running.values())
        if unfinished == "keep":
            assert all(count <= network.capacities[edge] for edge, count in running.items())
        while schedule.running and generator.random() < 0.9:
            schedule.done(generator.choice(sorted(schedule.running)))
    assert served == wanted
    assert schedule.waiting == 0
    for pipelines in of_timestep.values() if rules == "paper" else ():
        assert all(count <= network.capacities[edge] for edge, count in used(pipelines).items())


def test_a_timestep_lasts_until_four_fifths_of_its_writes_are_done():
    schedule = schedule_of(rules="paper")
    for writer in ("1.1", "1.2", "2.1", "2.2"):
        schedule.ask(ChunkRequest(writer, 3, 8))
    first = schedule.start()
    needed = -(-len(first) * 4 // 5)
    for grant in first[: needed - 1]:
        schedule.done(grant.number)
        assert schedule.start() == []
    schedule.done(first[needed - 1].number)
    second = schedule.start()
    assert {grant.timestep for grant in second} == {first[0].timestep + 1}


def test_an_unfinished_write_keeps_its_capacity_in_the_next_timestep():
    network = two_racks(wire=1, link=9)
    schedule = schedule_of(network, done_fraction=0.0)
    schedule.ask(ChunkRequest("1.1", 3, 2))
    (first,) = schedule.start()
    assert schedule.start() == []  # the wire of 1.1 is still taken, however many timesteps begin
    schedule.done(first.number)
    assert len(schedule.start()) == 1


def test_what_a_write_frees_is_offered_at_once_to_the_first_in_line():
    schedule = schedule_of(two_racks(wire=1, link=9))
    for writer in ("1.1", "2.1"):
        schedule.ask(ChunkRequest(writer, 3, 1))
    first, second = schedule.start()
    waiting = schedule.ask(ChunkRequest("1.1", 3, 1))
    schedule.ask(ChunkRequest("1.2", 3, 1))
    assert schedule.start() == []
    schedule.done(first.number)
    again, *_ = schedule.start()
    assert again.request == waiting
    assert again.timestep == first.timestep  # one of two is not four fifths
    assert second.number in schedule.running


def test_what_comes_meanwhile_gets_what_is_left_of_the_timestep():
    schedule = schedule_of()
    schedule.ask(ChunkRequest("1.1", 3, 1))
    (first,) = schedule.start()
    schedule.ask(ChunkRequest("2.1", 3, 1))
    (second,) = schedule.start()
    assert first.timestep == second.timestep


def test_what_did_not_fit_goes_first_in_the_next_timestep():
    schedule = schedule_of(two_racks(per_rack=2, wire=1, link=1))
    early = schedule.ask(ChunkRequest("1.1", 3, 3))
    first = schedule.start()
    late = schedule.ask(ChunkRequest("2.1", 3, 1))
    order = [grant.request for grant in first]
    while schedule.running:
        for grant in list(schedule.running.values()):
            schedule.done(grant.number)
        order += [grant.request for grant in schedule.start()]
    assert order == [early, early, early, late]


def test_a_writers_later_request_does_not_overtake_its_earlier_one():
    schedule = schedule_of(two_racks(wire=1))
    numbers = [schedule.ask(ChunkRequest("1.1", 3, 2)), schedule.ask(ChunkRequest("1.1", 1, 1))]
    order = []
    while grants := schedule.start():
        order += [grant.request for grant in grants]
        for grant in grants:
            schedule.done(grant.number)
    assert order == [numbers[0], numbers[0], numbers[1]]


def test_a_checkpoint_that_has_begun_goes_on_before_others_begin():
    schedule = schedule_of(two_racks(wire=1, link=9))
    schedule.ask(ChunkRequest("1.1", 3, 1))
    waits = schedule.ask(ChunkRequest("1.1", 3, 1))
    filler = schedule.ask(ChunkRequest("1.2", 3, 2))
    first = schedule.start()
    assert filler in [grant.request for grant in first]
    for grant in first:
        schedule.done(grant.number)
    assert [grant.request for grant in schedule.start()][:2] == [filler, waits]


def test_one_that_waits_long_goes_before_others_that_have_begun():
    """Three replicas need both servers of the other rack, which those who need one of them never leave at once."""
    names = [f"1.{n}" for n in range(1, 9)] + ["2.1", "2.2"]
    nodes = [NetworkNode(name, f"/rack{name[0]}", 1, 1) for name in names]
    schedule = schedule_of(Network(nodes, [Link("/rack1", "/rack2", 9), Link("/rack2", "/rack1", 9)]))
    schedule.ask(ChunkRequest("1.1", 2, 4))
    schedule.start()
    waits = schedule.ask(ChunkRequest("1.2", 3, 1))
    for turn in range(30):
        schedule.ask(ChunkRequest(names[2 + turn % 6], 2, 3))
        if waits in [grant.request for grant in schedule.start()]:
            break
        for grant in list(schedule.running.values()):
            schedule.done(grant.number)
    else:
        pytest.fail("it was never served")
    assert schedule.timestep > 4  # it had to wait


def test_those_who_are_next_to_send_pass_nothing_on_for_others():
    """1.1 has begun and 2.1 is next: what 1.2 and 2.2 write passes through the two others of each rack."""
    for seed in range(30):
        schedule = schedule_of(two_racks(wire=2, link=9), seed)
        for writer, chunks in (("1.1", 4), ("2.1", 4), ("1.2", 1), ("2.2", 1)):
            schedule.ask(ChunkRequest(writer, 3, chunks))
        for grant in schedule.start():
            assert not {"1.1", "2.1"} & set(grant.pipeline.nodes[:-1])


def one_at_a_time():
    """A network on which one chunk at a time fits, whoever writes it: three replicas on three other servers."""
    return two_racks(per_rack=2, wire=1, link=1)


def finish(schedule):
    """Let everything be written; the requests in the order in which their chunks were granted."""
    order = []
    while grants := schedule.start():
        order += [grant.request for grant in grants]
        for grant in grants:
            schedule.done(grant.number)
    return order


def test_requests_of_one_checkpoint_take_the_place_of_its_first():
    schedule = schedule_of(one_at_a_time())
    a = schedule.ask(ChunkRequest("1.1", 3, 1, "a"))
    (first,) = schedule.start()
    b = schedule.ask(ChunkRequest("2.1", 3, 1, "b"))
    a_again = schedule.ask(ChunkRequest("1.1", 3, 1, "a"))
    schedule.done(first.number)
    assert [a, *finish(schedule)] == [a, a_again, b]


def test_a_checkpoint_does_not_overtake_another_one_of_its_own_writer():
    schedule = schedule_of(one_at_a_time())
    numbers = [schedule.ask(ChunkRequest("1.1", 3, 1, name)) for name in "aba"]
    assert finish(schedule) == numbers


def test_a_checkpoint_keeps_its_place_for_one_timestep_and_no_longer():
    schedule = schedule_of(one_at_a_time())
    for _ in range(3):
        schedule.ask(ChunkRequest("1.1", 3, 1, "a"))
    schedule.ask(ChunkRequest("2.1", 3, 9, "b"))
    order = []

    def step():
        (grant,) = schedule.start()
        schedule.done(grant.number)
        order.append(grant.request)

    for _ in range(3):
        step()
    soon = schedule.ask(ChunkRequest("1.1", 3, 1, "a"))
    step()
    assert order[-1] == soon
    for _ in range(3):
        step()
    late = schedule.ask(ChunkRequest("1.1", 3, 1, "a"))
    step()
    assert order[-1] != late
    assert len(schedule._places) <= 2


def test_what_is_withdrawn_is_not_granted_and_what_was_granted_stays():
    schedule = schedule_of(one_at_a_time())
    number = schedule.ask(ChunkRequest("1.1", 3, 5))
    (granted,) = schedule.start()
    other = schedule.ask(ChunkRequest("1.1", 3, 1))
    schedule.withdraw(number)
    assert schedule.start() == []
    schedule.done(granted.number)
    assert finish(schedule) == [other]
    assert schedule.waiting == 0


def test_done_twice_counts_once():
    schedule = schedule_of(rules="paper")
    schedule.ask(ChunkRequest("1.1", 3, 9))
    first = schedule.start()
    assert len(first) == 2
    for _ in range(5):
        schedule.done(first[0].number)
    assert schedule.start() == []


def test_a_standing_pipeline_takes_nothing_from_the_timesteps_and_is_spread():
    schedule = schedule_of(two_racks(wire=1))
    standing = [schedule.stand("1.1", 3) for _ in range(30)]
    assert {name for pipeline in standing for name in pipeline.nodes} == set(schedule.network.nodes) - {"1.1"}
    schedule.ask(ChunkRequest("1.1", 3, 1))
    assert len(schedule.start()) == 1


def test_an_unknown_writer_has_no_plan():
    with pytest.raises(NoPlan, match="nobody is not on the network"):
        schedule_of().ask(ChunkRequest("nobody", 3, 1))


def test_a_sender_can_join_while_chunks_are_under_way():
    schedule = schedule_of()
    schedule.ask(ChunkRequest("1.1", 3, 1))
    schedule.start()
    schedule.add_sender("driver", "/1")
    schedule.ask(ChunkRequest("driver", 3, 2))
    assert len(schedule.start()) == 2
    assert schedule.stand("driver", 3).nodes[0].startswith("1.")


def test_numbers_of_grants_fit_into_four_bytes_for_ever():
    schedule = schedule_of()
    schedule._grants = 0xFFFF_FFFE
    schedule.ask(ChunkRequest("1.1", 3, 2))
    assert [grant.number for grant in schedule.start()] == [0xFFFF_FFFF, 0]
