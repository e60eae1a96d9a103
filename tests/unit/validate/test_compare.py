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


def only(sent: dict[Key, Sent], *flows: Flow):
    (found,) = compare(sent, flows, PLACES.__getitem__)
    return found


def test_equal_amounts_of_all_paths_between_two_places():
    """IPv4 and IPv6 addresses of a port are one place; so are datagrams of several senders."""
    sent = Sent({Op.SEND: Total(3, 60)})
    found = only({KEY: sent}, flow(send(10), send(20)), flow(send(30), source="fe80::1"))
    assert (found.verdict, found.requests) == (Verdict.EQUAL, 0)
    assert found.traced == found.captured == {Op.SEND: Total(3, 60)}


@pytest.mark.parametrize("amounts", [Total(1, 30), Total(2, 31), Total(3, 30)])
def test_other_amounts_differ(amounts):
    found = only({KEY: Sent({Op.SEND: amounts})}, flow(send(10), send(20)))
    assert found.verdict is Verdict.DIFFERS
    n, length = amounts
    assert found.text() == (
        f"a to queue pair 0x11 of b: send: {n} of {length} bytes in the trace, "
        "2 of 30 bytes on the wire"
    )


def test_messages_on_one_side_alone_differ():
    silent, talking = Sent(connections=1), Sent({Op.PUT: Total(1, 5)})
    assert only({KEY: silent}, flow(send(1))).verdict is Verdict.DIFFERS
    assert only({KEY: talking}, flow()).verdict is Verdict.DIFFERS
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
    assert only({KEY: sent}, back).verdict is Verdict.DIFFERS
    assert only({KEY._replace(destination="c"): sent}, back).verdict is Verdict.NOT_CAPTURED


def test_datagrams_of_management_are_left_out():
    assert compare({}, [flow(send(256), qpn=1, transport="UD")], PLACES.__getitem__) == []
