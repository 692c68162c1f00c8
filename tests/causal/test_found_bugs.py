"""Bugs that were found, kept as tests. Most are stamps that are well-formed and lie: they may delay or misorder, but
they must not break the site that believed them."""

from causal import Dot, Duplicate, Held, Outgoing, decode, dump, encode, load, make_site
from causal.log import LogStamp
from causal.oracle import judge
from causal.protocols.false_causality import Meant, MeantStamps
from causal.rows import Matrix
from causal.simulation import simulate
from causal.workload import Workload


def test_a_lie_about_a_senders_newest_message_leaves_a_log_that_can_be_written() -> None:
    for protocol in ("optimal", "pruning"):
        victim = make_site(protocol, 2, 4)
        forged = Outgoing(Dot(0, 1), 0b100, LogStamp((0, 10, 0, 0), {(1, 10): 0b1000}, []))
        victim.receive(decode(victim, encode(make_site(protocol, 0, 4), forged)[2]))
        (honest,) = make_site(protocol, 1, 4).send(0b100)
        victim.receive(honest.copy(2))
        assert dump(load(dump(victim))) == dump(victim)
        assert encode(victim, victim.send(0b1011)[-1]).keys() == {0, 1, 3}


def test_rows_that_contradict_each_other_leave_matrices_that_can_be_written() -> None:
    def row(cells: tuple[int, ...]) -> Matrix:
        nothing = (0,) * 4
        return Matrix((nothing, cells, nothing, nothing))

    victim = make_site("false-causality", 2, 4)
    for sender, previous, sent in ((0, (1, 0, 0, 9), (1, 0, 0, 9)), (3, (0, 0, 0, 0), (2, 0, 0, 0))):
        forged = Outgoing(Dot(sender, 1), 0b100, MeantStamps(Meant(row(previous), row(sent)), {2: 1}))
        victim.receive(decode(victim, encode(make_site("false-causality", sender, 4), forged)[2]))
    assert dump(load(dump(victim))) == dump(victim)


def test_seeds_on_which_news_came_before_the_message() -> None:
    """A late delivery once took back what the site knew already; tokens then landed too early."""
    for seed in (20, 50):
        for fifo in (True, False):
            workload = Workload(6, 200, seed=seed, dependent=0.05, sessions=4, fifo=fifo)
            outcome = simulate(workload, "false-causality", record=True)
            assert outcome.execution is not None
            verdict = judge(outcome.execution)
            assert verdict.ok, f"{workload.command('false-causality', {})}\n{verdict.explain()}"


def test_a_sender_that_numbers_its_messages_backwards_cannot_make_one_come_twice() -> None:
    for protocol in ("optimal", "matrix", "direct", "extra-message", "pruning"):
        site, first = make_site(protocol, 2, 3), make_site(protocol, 1, 3)
        liar = make_site(protocol, 0, 3)
        (cause,) = first.send(0b101)
        liar.receive(cause.copy(0))
        late: list[Outgoing] = []
        for clock in (4, 2):  # message 5 first, then message 3
            liar.clock = clock
            fresh = load(dump(liar))
            late += fresh.send(0b100)
        assert all(isinstance(site.receive(one.copy(2))[0], Held) for one in late)
        site.receive(cause.copy(2))
        assert site.delivered[0] == 5
        assert isinstance(site.receive(late[0].copy(2))[0], Duplicate)
