"""sigmatrace-view: what is found where, what is said, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from sigmatrace.errors import RunNotFoundError
from sigmatrace.view import command
from sigmatrace.view.command import contents, main

TRACE = b"\n\x02\x50\x01"
"""A packet."""


@pytest.fixture
def output(tmp_path):
    out = tmp_path / "run" / "sigmatrace-out"
    out.mkdir(parents=True)
    (out / "trace.pftrace").write_bytes(TRACE)
    return out


def test_a_run_its_output_and_its_trace_are_the_same(output):
    for place in (output, output.parent, output / "trace.pftrace"):
        files, pages = contents(place)
        assert files["/trace.pftrace"] == output / "trace.pftrace"
        assert pages == ["/#!/?url={url}/trace.pftrace"]
        assert files["/"].name == "index.html" and "/service_worker.js" in files


def test_a_report_alone_needs_no_user_interface(output):
    (output / "report.html").write_text("")
    assert contents(output)[1] == ["/#!/?url={url}/trace.pftrace", "/report.html"]
    (output / "trace.pftrace").unlink()
    for place in (output, output / "report.html"):
        assert contents(place) == ({"/report.html": output / "report.html"}, ["/report.html"])


def test_of_several_traces_one_must_be_named(output):
    (output / "trace.pftrace").rename(output / "trace-ranks-0-1.pftrace")
    with pytest.raises(RunNotFoundError, match=r"several traces there: name one, as .*ranks-0-1"):
        contents(output)


@pytest.mark.parametrize("error", [KeyError("uid 4711"), OSError("no name")])
def test_a_user_without_a_name_sees_it_too(output, monkeypatch, capsys, error):
    """In a container a number is often all that is known of a user."""

    def nobody() -> str:
        raise error

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.getpass, "getuser", nobody)
    monkeypatch.setattr(command.Server, "serve_forever", interrupted)
    assert main([str(output)]) == 0
    assert f" {socket.gethostname()}\n" in capsys.readouterr().out


def test_nothing_there_is_one_line_that_says_what_to_do(tmp_path, capsys):
    (tmp_path / "host-1-1.msgpack").touch()
    assert main([str(tmp_path)]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"sigmatrace-pipeline run={tmp_path} export=perfetto" in err
    assert main([str(tmp_path / "missing")]) == 3
    assert "no such file" in capsys.readouterr().err


def test_a_file_that_is_no_trace_is_refused(output, capsys):
    path = output / "run.sh"
    for content in (b"#!/bin/sh\n", b""):
        path.write_bytes(content)
        assert main([str(path)]) == 4
        assert "run.sh: neither a trace of Perfetto nor HTML: name a" in capsys.readouterr().err
    path.write_bytes(b"\x1f\x8b compressed")
    assert contents(path)[0]["/trace.pftrace"] == path


def test_what_a_trace_does_not_show_is_said(output, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Server, "serve_forever", interrupted)
    assert main([str(output)]) == 0
    assert capsys.readouterr().err == ""
    book = {"exports": {"perfetto": {"not_chosen": 7, "beyond_budget": 7}}}
    (output / "ledger.json").write_text(json.dumps(book))
    assert main([str(output)]) == 0
    err = capsys.readouterr().err
    assert "attention: trace.pftrace does not show 7 records beyond its budget" in err


@pytest.mark.parametrize("port", ["x", "-1", "65536", "1.5"])
def test_ports_are_numbers(output, capsys, port):
    assert main([str(output), f"--port={port}"]) == 2
    assert "ports are 0 to 65535" in capsys.readouterr().err


def test_help_names_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "143 terminated" in said and "4 the file" in said


def test_it_serves_until_ctrl_c(output):
    command = [sys.executable, "-m", "sigmatrace.view", str(output)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        url, port = re.fullmatch(r"(http://127\.0\.0\.1:(\d+))/#!/\?url=.*\n", lines[0]).groups()
        assert lines[0] == f"{url}/#!/?url={url}/trace.pftrace\n"
        assert re.search(rf"ssh -L {port}:127\.0\.0\.1:{port} \S+@\S+$", lines[1].strip())
        with urllib.request.urlopen(f"{url}/trace.pftrace", timeout=10) as answer:
            assert answer.read() == TRACE
        busy = subprocess.run(
            [*command, "--port", port], capture_output=True, text=True, env=environment, timeout=60
        )
        assert busy.returncode == 2 and "choose another one by --port" in busy.stderr
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
