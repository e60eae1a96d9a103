"""What the launcher says about the processes when the command has ended."""

from __future__ import annotations

import re
import subprocess

import pytest
from launching import UCX_USER, capture, script

from tests.listening import free_port

pytestmark = pytest.mark.usefixtures("clean_environment")


def warning(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what follows the words "warning: nothing was hooked"."""
    lines = [line.removeprefix("sigmatrace-capture: ") for line in done.stderr.splitlines()]
    return lines[lines.index("warning: nothing was hooked") + 1 :]


def test_a_shell_alone_leaves_nothing_and_is_told_of(tmp_path):
    done = capture("-o", tmp_path / "run", "--", "sh", "-c", "true")
    assert not (tmp_path / "run").exists()
    assert warning(done) == ["no process used libfabric or libucp, or LD_PRELOAD did not reach it"]


def test_a_failed_command_is_told_so(tmp_path):
    done = capture("-o", tmp_path / "run", "--", "sh", "-c", "exit 7")
    assert warning(done) == ["the command failed, perhaps before it communicated"]


def test_a_library_below_a_shell_is_found(tmp_path):
    done = capture("-o", tmp_path / "run", "--layers", "ucx", "--", "sh", "-c", "fi_info >&2; :")
    assert "provider: " in done.stderr
    (said,) = warning(done)
    assert said.endswith("fi_info is linked with layer ofi, which was not chosen with --layers")


_MARKS = """
from sigmatrace.capture import control
control.start()
for _ in range(8):
    with control.region("loop"):
        pass
"""


def test_marks_alone_are_shown(tmp_path):
    done = capture("-o", tmp_path / "run", "--", *script(tmp_path, _MARKS))
    process, problem, reason, after = done.stderr.splitlines()
    assert "; 0 operations, 16 marks, " in process
    assert problem.endswith("warning: no operation that moves data was recorded, only marks")
    assert "no process used libfabric or libucp" in reason
    assert "next: sigmatrace-pipeline" in after


def test_a_static_program_is_named(tmp_path):
    (tmp_path / "a.c").write_text("int main(void) { return 4; }")
    program = tmp_path / "static"
    subprocess.run(["gcc", "-static", "-o", program, tmp_path / "a.c"], check=True)
    done = capture("-o", tmp_path / "run", "--", program)
    assert done.returncode == 4
    assert f"{program} is statically linked" in done.stderr


def test_an_unchosen_layer_is_named(tmp_path):
    done = capture("-o", tmp_path / "run", "--layers", "ofi", "--", "ucx_info", "-v")
    assert "linked with layer ucp, which was not chosen" in done.stderr


def test_the_report_names_what_was_hooked(tmp_path):
    done = capture("-o", tmp_path / "run", "--layers", "ucx", "--", *UCX_USER)
    assert done.returncode == 0, done.stderr
    assert "sigmatrace-capture: ucx_info [" in done.stderr
    assert " (symbol); 0 operations," in done.stderr
    assert "warning: no operation that moves data was recorded" in done.stderr
    assert "next: " in done.stderr.splitlines()[-1]
    assert len(list((tmp_path / "run").glob("*.msgpack"))) == 1


_TRANSFER = """
unset UCX_TLS
export UCX_NET_DEVICES=lo UCX_TLS=tcp
ucx_perftest -p $1 -t tag_lat -n 30 -w 1 -s 8 >/dev/null & server=$!
until grep -q "$(printf ':%04X 0*:0000 0A' $1)" /proc/net/tcp /proc/net/tcp6; do
  kill -0 $server || exit 1
done
ucx_perftest -p $1 -t tag_lat -n 30 -w 1 -s 8 127.0.0.1 >/dev/null && wait $server
"""


@pytest.mark.parametrize("mode", ["aggregate", "simple", "full"])
def test_operations_are_counted_in_every_mode(tmp_path, mode):
    port = free_port()
    words = ["--mode", mode, "--layers", "ucp", "--", "bash", "-c", _TRANSFER, "pair", port]
    done = capture("-o", tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    export = "'export=[json,matrix]'" if mode == "aggregate" else "export=perfetto"
    assert done.stderr.endswith(f" {export}\n")
    counts = [int(n) for n in re.findall(r"; (\d+) operations,.* 0 dropped", done.stderr)]
    # 30 timed messages in each direction, one to warm up (more of them are cut short by a time
    # limit), and some of the program's own.
    assert len(counts) == 2
    assert all(62 <= count <= 100 for count in counts)
