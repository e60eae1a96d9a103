"""The comparison of a trace with a capture: what is equal, what differs, what cannot be told."""

from __future__ import annotations

import pytest

from sigmatrace.trace_format import Op
from sigmatrace.validate.compare import Key, Request, Sent, Verdict, as_array, compare
from sigmatrace.validate.flows import Flow, Message, Total

KEY = Key("a", "b", 0x11)
PLACES = {"10.0.0.1": "a", "fe80::1": "a", "10.0.0.2": "b", "10.0.0.3": "c"}


def flow(*messages: Message, source="10.0.0.1", destination="10.0.0.2", qpn=0x11, **more) -> Flow:
    made = Flow(source, destination, qpn, more.pop("transport", "RC"), None, list(messages))
    for name, value in more.items():
        setattr(made, name, value)
    return made


def send(length: int) -> Message:
    return Message("SEND", 0, 0, length, None, None, None)


def write(length: int, address: int, rkey: int = 7) -> Message:
    return Message("WRITE", 0, 0, length, address, rkey, None)


def asked(*requests: Request, connections: int = 1) -> Sent:
    made = Sent(requests=as_array(requests), connections=connections)
    for one in requests:
        made.add(Op.SEND if one.kind == "SEND" else Op.PUT, 1, one.length)
    return made


def only(sent: dict[Key, Sent], *flows: Flow, **more):
    (found,) = compare(sent, flows, PLACES.__getitem__, **more)
    return found


def proven(sent: Sent, start: int = 0) -> Sent:
    """As sent by a queue pair whose numbers begin there, all at one time."""
    sent.starts, sent.first_ns, sent.last_ns = {start}, 7, 7
    return sent


def test_equal_amounts_of_all_paths_between_two_places():
    """IPv4 and IPv6 addresses of a port are one place; so are datagrams of several senders."""
    sent = Sent({Op.SEND: Total(3, 60)})
    found = only({KEY: sent}, flow(send(10), send(20)), flow(send(30), source="fe80::1"))
    assert (found.verdict, found.requests) == (Verdict.EQUAL, 0)
    assert found.traced == found.captured == {Op.SEND: Total(3, 60)}


@pytest.mark.parametrize("amounts", [Total(1, 30), Total(2, 31), Total(3, 30)])
def test_other_amounts_differ(amounts):
    seen = flow(send(10), send(20), runs=[(0, 2)])
    found = only({KEY: proven(Sent({Op.SEND: amounts}))}, seen)
    assert found.verdict is Verdict.DIFFERS
    n, length = amounts
    assert found.text() == (
        f"a to queue pair 0x11 of b: send: {n} of {length} bytes in the trace, "
        "2 of 30 bytes on the wire"
    )


def test_messages_on_one_side_alone_differ():
    silent, talking = Sent(connections=1), Sent({Op.PUT: Total(1, 5)})
    assert only({KEY: silent}, flow(send(1))).verdict is Verdict.DIFFERS
    assert only({KEY: talking}, flow()).verdict is Verdict.NOT_WHOLE
    assert compare({KEY: silent}, [flow()], PLACES.__getitem__) == []


def test_requests_are_compared_one_by_one():
    requests = [Request("WRITE", 5, 64, 7, 0), Request("WRITE", 5, 128, 7, 0)]
    found = only({KEY: asked(*requests)}, flow(write(5, 64), write(5, 128)))
    assert (found.verdict, found.requests) == (Verdict.EQUAL, 2)
    for other in (write(5, 129), write(5, 128, rkey=8), send(5)):
        found = only({KEY: asked(*requests)}, flow(write(5, 64), other))
        assert (found.verdict, found.differs_at) == (Verdict.DIFFERS, 1)
    assert "request 1 is another one" in found.text()


def test_order_counts_on_one_connection_alone():
    requests = [Request("WRITE", 5, 64, 7, 0), Request("WRITE", 5, 128, 7, 0)]
    seen = flow(write(5, 128), write(5, 64))
    assert only({KEY: asked(*requests)}, seen).differs_at == 0
    assert only({KEY: asked(*requests, connections=2)}, seen).verdict is Verdict.EQUAL


def test_requests_that_are_missing_differ():
    one = Request("SEND", 5, 0, 0, 0)
    sent = asked(one, one)
    sent.requests = sent.requests[:1]
    found = only({KEY: sent}, flow(send(5), send(5)))
    assert (found.verdict, found.requests, found.differs_at) == (Verdict.DIFFERS, 1, 1)


def test_datagrams_are_compared_by_amounts():
    found = only({KEY: asked(Request("SEND", 5, 0, 0, 0))}, flow(send(5), transport="UD"))
    assert (found.verdict, found.requests) == (Verdict.EQUAL, 0)


@pytest.mark.parametrize(
    ("runs", "starts", "verdict"),
    [
        ([(5, 7)], {5}, Verdict.DIFFERS),
        ([(5, 7)], {4}, Verdict.NOT_WHOLE),  # the first packet is missing
        ([(5, 7)], set(), Verdict.NOT_WHOLE),
        ([(5, 7)], {5, -1}, Verdict.NOT_WHOLE),
        ([(5, 6), (7, 8)], {5}, Verdict.NOT_WHOLE),  # one in between
        ([(5, 6), (90, 91)], {5, 90}, Verdict.DIFFERS),  # connected again
        ([(5, 7)], {5, 90}, Verdict.NOT_WHOLE),  # all of the second connection
        ([(5, 7)], {5, 6}, Verdict.DIFFERS),  # the second began where the first one was
        ([(2**24 - 1, 2**24 + 1)], {2**24 - 1, 0}, Verdict.DIFFERS),
        ([(-1, 1)], {2**24 - 1}, Verdict.DIFFERS),
    ],
)
def test_less_on_the_wire_differs_where_no_packet_number_is_missing(runs, starts, verdict):
    sent = proven(Sent({Op.SEND: Total(3, 30)}))
    sent.starts = starts
    assert only({KEY: sent}, flow(send(10), send(10), runs=runs)).verdict is verdict


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [(100, 105, Verdict.DIFFERS), (100, 106, Verdict.NOT_WHOLE), (None, None, Verdict.NOT_WHOLE)],
)
def test_less_on_the_wire_differs_where_the_capture_lasts(first, last, verdict):
    """Of a message at 0 ns; the capture ends at 5 ns."""
    sent = proven(Sent({Op.SEND: Total(2, 20)}))
    sent.first_ns, sent.last_ns = first, last
    assert only({KEY: sent}, flow(send(10), runs=[(0, 1)]), until_ns=5).verdict is verdict


@pytest.mark.parametrize(
    ("answered", "qpn", "verdict"),
    [
        (0, 0x22, Verdict.DIFFERS),  # to the only packet
        (1, 0x22, Verdict.NOT_WHOLE),  # to one that is not there
        (2**24 - 3, 0x22, Verdict.DIFFERS),
        (1, 0x23, Verdict.DIFFERS),  # another queue pair's
    ],
)
def test_an_answer_shows_that_a_packet_was_on_the_wire(answered, qpn, verdict):
    sent = proven(Sent({Op.SEND: Total(2, 20)}, connections=1, qpns={0x22}))
    back = flow(source="10.0.0.2", destination="10.0.0.1", qpn=qpn, answered=answered)
    assert only({KEY: sent}, flow(send(10), runs=[(0, 1)]), back).verdict is verdict
    sent.connections = 2
    seen = flow(send(10), runs=[(0, 1)])
    assert only({KEY: sent}, seen, back).verdict is Verdict.DIFFERS


def test_more_on_the_wire_differs_in_whatever_is_missing():
    """Counts prove it, parts of messages included."""
    sent = Sent({Op.SEND: Total(2, 20)})
    for seen in (
        flow(send(10), send(10), send(10), incomplete=1, runs=[(4, 5)]),
        flow(send(10), incomplete=2),
        flow(send(10), send(10), incomplete=1),
        flow(send(10), write(5, 64)),
        flow(send(10), send(10), send(10), contradicting=1),
    ):
        assert only({KEY: sent}, seen, is_cut=True).verdict is Verdict.DIFFERS
    # Of several connections, or packets that contradict each other, parts may be none.
    sent.connections = 2
    assert only({KEY: sent}, flow(send(10), incomplete=2)).verdict is Verdict.NOT_WHOLE


def test_as_much_on_the_wire_and_other_messages_differ():
    one, other = Request("WRITE", 5, 64, 7, 0), Request("WRITE", 5, 128, 7, 0)
    seen = flow(write(5, 64), write(5, 129), runs=[(3, 4), (9, 10)])
    assert only({KEY: asked(one, other)}, seen, is_cut=True).verdict is Verdict.DIFFERS
    assert only({KEY: Sent({Op.PUT: Total(2, 11)})}, seen).verdict is Verdict.DIFFERS


def test_a_connection_that_is_made_again_may_repeat_numbers():
    """Five equal messages of the second connection look like the first one's, sent again."""
    sent = proven(Sent({Op.SEND: Total(4, 40)}, connections=2))
    seen = flow(send(10), send(10), runs=[(0, 2)], repeated=2)
    assert only({KEY: sent}, seen).verdict is Verdict.NOT_WHOLE
    sent.connections = 1
    assert only({KEY: sent}, seen).verdict is Verdict.DIFFERS


def test_what_cannot_be_told_is_no_difference():
    sent = Sent({Op.SEND: Total(2, 20)})
    assert only({KEY: sent}, flow(send(10), incomplete=1)).verdict is Verdict.NOT_WHOLE
    assert only({KEY: sent}, flow(send(10), unsupported=1)).verdict is Verdict.NOT_WHOLE
    assert only({KEY: sent}, flow(send(10), unsure_mtu=True)).verdict is Verdict.NOT_WHOLE
    assert only({KEY: sent}, flow(send(20), unsure_mtu=True)).verdict is Verdict.NOT_WHOLE
    (cut,) = compare({KEY: sent}, [flow(send(10))], PLACES.__getitem__, is_cut=True)
    assert cut.verdict is Verdict.NOT_WHOLE
    assert only({KEY: sent}).verdict is Verdict.NOT_CAPTURED
    assert only({KEY._replace(destination="a"): sent}).verdict is Verdict.LOOPBACK
    assert only({}, flow(send(10))).verdict is Verdict.NOT_TRACED


def test_answers_alone_show_that_two_places_were_captured():
    sent = Sent({Op.SEND: Total(2, 20)})
    back = flow(source="10.0.0.2", destination="10.0.0.1", qpn=0x22, responses=3)
    assert only({KEY: sent}, back).verdict is Verdict.NOT_WHOLE
    assert only({KEY._replace(destination="c"): sent}, back).verdict is Verdict.NOT_CAPTURED


def test_datagrams_of_management_are_left_out():
    assert compare({}, [flow(send(256), qpn=1, transport="UD")], PLACES.__getitem__) == []
