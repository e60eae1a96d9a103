"""The server of sigmatrace-view: what it serves, to whom, and that there is nothing else."""

from __future__ import annotations

import http.client
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from sigmatrace.view.server import Server


@pytest.fixture
def server(tmp_path):
    (tmp_path / "page.html").write_text("<p>page")
    (tmp_path / "trace").write_bytes(bytes(range(256)) * 8192)
    (tmp_path / "secret").write_text("secret")
    files = {"/": tmp_path / "page.html", "/trace.pftrace": tmp_path / "trace"}
    with Server(files) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_what_is_listed_is_served_whole(server, tmp_path):
    answer, body = ask(server, "/trace.pftrace?x=1")
    assert (answer.status, body) == (200, (tmp_path / "trace").read_bytes())
    assert int(answer.headers["Content-Length"]) == len(body)
    answer, body = ask(server, "/")
    assert (answer.headers["Content-Type"], body) == ("text/html; charset=utf-8", b"<p>page")


def test_a_head_has_no_body(server):
    answer, body = ask(server, "/", "HEAD")
    assert (answer.status, answer.headers["Content-Length"], body) == (200, "7", b"")


@pytest.mark.parametrize(
    "path",
    [
        "/secret",
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/trace.pftrace/../secret",
        "//etc/passwd",
        "/etc/passwd",
        "/....//secret",
        "/%00",
        "secret",
    ],
)
def test_nothing_else_is_there(server, path):
    answer, body = ask(server, path)
    assert answer.status == 404
    assert b"secret" not in body and b"root:" not in body


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.x"])
def test_other_names_for_loopback_are_refused(server, host):
    answer, body = ask(server, "/trace.pftrace", Host=host)
    assert answer.status == 403 and len(body) < 1000


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "LOCALHOST"])
def test_loopback_by_any_port_is_served(server, host):
    assert ask(server, "/", Host=host)[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(server, method):
    assert ask(server, "/", method)[0].status == 501


def test_pages_may_load_from_here_alone(server):
    for path in ("/", "/missing"):
        headers = ask(server, path)[0].headers
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_loopback_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_file_that_went_away_is_not_found(server, tmp_path):
    (tmp_path / "trace").unlink()
    assert ask(server, "/trace.pftrace")[0].status == 404


def test_a_browser_that_goes_away_is_no_error(server, capsys):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", "/trace.pftrace")
    connection.sock.close()
    assert ask(server, "/")[0].status == 200
    assert capsys.readouterr().err == ""


def test_the_port_is_that_which_is_asked_for(tmp_path):
    with Server({}) as first:
        port = first.server_port
        with pytest.raises(OSError, match="in use"):
            Server({}, port)
    with Server({"/": Path("x")}, port) as second:
        assert second.url == f"http://127.0.0.1:{port}"


def test_a_file_that_is_replaced_is_served_as_it_was_opened(server, tmp_path):
    """The length that is told is that of the bytes that follow, whatever has the name by then."""
    whole = (tmp_path / "trace").read_bytes()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", "/trace.pftrace")
    answer = connection.getresponse()
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(tmp_path / "trace")
    assert answer.read() == whole
    connection.request("GET", "/trace.pftrace")
    assert connection.getresponse().read() == b"new"
    connection.close()


@pytest.mark.parametrize(("told", "body"), [(1 << 10, b"short"), (3, b"sho")])
def test_a_file_that_is_cut_or_grows_while_it_is_served(server, tmp_path, monkeypatch, told, body):
    """A browser gets no more than it was told, and is not left waiting where there is less."""
    (tmp_path / "page.html").write_bytes(b"short")
    size = SimpleNamespace(st_size=told)
    monkeypatch.setattr("sigmatrace.view.server.os", SimpleNamespace(fstat=lambda _: size))
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", "/")
    answer = connection.getresponse()
    if told > len(body):
        with pytest.raises(http.client.IncompleteRead) as cut:
            answer.read()
        assert cut.value.partial == body
    else:
        assert answer.read() == body
    connection.close()


@pytest.mark.parametrize("host", ["[", "[::1", "http://["])
def test_a_host_that_is_none_is_refused(server, host):
    assert ask(server, "/", Host=host)[0].status == 403
