"""The launcher with real processes: it must be as if nothing stood in between."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sigmatrace.capture.captured import first_run_id
from sigmatrace.testing.write import RankFile
from tests.listening import free_port

LAUNCHER = [sys.executable, "-c", "from sigmatrace.capture.launch import main; main()"]
# Uses UCX without sending anything: it creates a context and a worker and prints about them.
UCX_USER = ["ucx_info", "-u", "t", "-w"]
MPIEXEC = [str(Path(sys.executable).with_name("mpiexec.hydra"))]
PRTERUN = [str(Path(sys.executable).with_name("prterun")), "--map-by", ":OVERSUBSCRIBE"]
WAIT_S = 60


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in [*os.environ]:
        is_ours = name.startswith("SIGMATRACE_") and name != "SIGMATRACE_LIB_DIR"
        if is_ours or name.startswith(("PMI", "OMPI_", "SLURM_")):
            monkeypatch.delenv(name)


def capture(*words, **options):
    """Run the launcher and return the completed process, output as text."""
    kept = {"capture_output": True, "text": True, "timeout": WAIT_S, **options}
    return subprocess.run([*LAUNCHER, *map(str, words)], check=False, **kept)


@contextlib.contextmanager
def started(*words, **options):
    """Start the launcher, and end it whatever happens."""
    with subprocess.Popen([*LAUNCHER, *map(str, words)], **options) as child:
        try:
            yield child
        finally:
            child.kill()


def script(tmp_path: Path, text: str, name: str = "script.py") -> list[str]:
    """Write a Python program and return the words that run it."""
    path = tmp_path / name
    path.write_text(text)
    return [sys.executable, str(path)]


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_code(tmp_path, code):
    assert capture("-o", tmp_path / "run", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE, signal.SIGABRT])
def test_the_launcher_ends_by_the_signal_that_ended_the_command(tmp_path, number):
    done = capture("-o", tmp_path / "run", "--", "sh", "-c", f"kill -{number.value} $$")
    assert done.returncode == -number
    assert f"was ended by {number.name}" in done.stderr


_COUNT = """
import signal, sys
got = []
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda n, _: got.append(n) or print("got", n, flush=True))
print("ready", flush=True)
sys.stdin.readline()
print("total", len(got), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
def test_a_signal_to_the_launcher_reaches_the_command_once(tmp_path, name):
    words = script(tmp_path, _COUNT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started("-o", tmp_path / "run", "--", *words, name, **pipes) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(getattr(signal, name))
        assert child.stdout.readline() == f"got {getattr(signal, name).value}\n"
        rest, _ = child.communicate("\n", timeout=WAIT_S)
        assert rest == "total 1\n"
        assert child.returncode == 7


@contextlib.contextmanager
def terminal(*words):
    """Run the launcher as the foreground job of a new terminal; yields pid and terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(LAUNCHER[0], [*LAUNCHER, *map(str, words)])
    try:
        yield pid, master
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(master)


def read_until(master: int, text: str) -> str:
    """Read from a terminal until a text was seen."""
    seen = ""
    while text not in seen:
        ready, _, _ = select.select([master], [], [], WAIT_S)
        assert ready, f"no {text!r} in {seen!r}"
        seen += os.read(master, 4096).decode()
    return seen


def test_ctrl_c_reaches_the_command_once(tmp_path):
    with terminal("-o", tmp_path / "run", "--", *script(tmp_path, _COUNT), "SIGINT") as job:
        pid, master = job
        read_until(master, "ready")
        os.write(master, b"\x03")
        read_until(master, "got 2")
        os.write(master, b"\n")
        assert "total 1" in read_until(master, "total 1")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_job_of_a_shell_can_be_stopped_and_continued(tmp_path):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--", *script(tmp_path, _COUNT), "SIGUSR1"]
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update(PS1="prompt", TERM="dumb")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        read_until(master, "prompt")
        os.write(master, (" ".join(f"'{word}'" for word in words) + "\n").encode())
        read_until(master, "ready\r\n")
        os.write(master, b"\x1a")
        assert "Stopped" in read_until(master, "prompt")  # who types before may lose it
        os.write(master, b"fg\n")
        read_until(master, "main()")  # the shell names the job that it continues
        os.write(master, b"\n")
        assert "total 0\r\n" in read_until(master, "prompt")
        os.write(master, b"echo code=$?\n")
        read_until(master, "code=7")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)


def test_stdin_and_stdout_are_the_commands_own(tmp_path):
    data = bytes(range(256)) * 1000
    done = capture("-o", tmp_path / "run", "--", "cat", input=data, text=False)
    assert done.stdout == data


def test_an_inherited_file_stays_open(tmp_path):
    read, write = os.pipe()
    done = capture("-o", tmp_path / "r", "--", "bash", "-c", f"echo hi >&{write}", pass_fds=[write])
    os.close(write)
    with os.fdopen(read) as file:
        assert file.read() == "hi\n"
    assert done.returncode == 0


def test_command_not_found(tmp_path):
    done = capture("-o", tmp_path / "run", "--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "sigmatrace-capture: no-such-command: command not found\n"
    assert not (tmp_path / "run").exists()


def test_not_executable(tmp_path):
    (tmp_path / "file").touch(mode=0o644)
    for target in ("file", "."):
        done = capture("-o", tmp_path / "run", "--", tmp_path / target)
        assert done.returncode == 126
        assert len(done.stderr.splitlines()) == 1


def test_a_script_without_an_interpreter_line_is_the_shells(tmp_path):
    path = tmp_path / "plain"
    path.write_text("echo from $1; exit 5")
    path.chmod(0o755)
    done = capture("-o", tmp_path / "run", "--", path, "shell")
    assert (done.stdout, done.returncode) == ("from shell\n", 5)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "no command"),
        (["--mode", "most", "--", "true"], 2, "most"),
        (["--layers", "ofi,verbz", "--", "true"], 2, "verbz"),
        (["--no-such-option", "--", "true"], 2, "--no-such-option"),
        (["-o", "", "--", "true"], 2, "empty"),
        (["-o", "/dev/null", "--", "true"], 6, "/dev/null"),
        (["-o", "/dev/null", "--print-env"], 6, "/dev/null"),
        (["--clock", "sundial", "--", "true"], 2, "realtime, tai or a device"),
        (["--clock", "/dev/ptp987", "--", "true"], 2, "/dev/ptp987"),
        (["--clock", "/dev/null", "--", "true"], 2, "/dev/null"),
    ],
)
def test_mistakes_give_one_line_and_a_code(words, code, text):
    done = capture(*words)
    assert done.returncode == code
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_clock_in_the_environment_is_a_mistake_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGMATRACE_CLOCK", "sundial")
    done = capture("-o", tmp_path / "run", "--", "touch", tmp_path / "ran")
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_check_says_no_to_the_clock_that_a_launch_refuses():
    done = capture("--check", "--layers", "ucp", "--clock", "sundial")
    assert done.returncode == 9
    assert "clock:   no: sundial: choose realtime, tai" in done.stdout


def test_check_of_some_layers():
    done = capture("--check", "--layers", "uct")
    assert done.returncode == 0, done.stdout
    assert [line.split(":")[0] for line in done.stdout.splitlines()][3:] == ["uct"]
    everything = capture("--check").stdout
    named = [line.split(":")[0] for line in everything.splitlines()][3:]
    assert named == ["ofi", "ucp", "uct", "verbs"]


def test_version():
    done = capture("--version")
    pipeline = [sys.executable, "-m", "sigmatrace", "--version"]
    said = subprocess.run(pipeline, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (0, said.stdout)
    assert done.stdout.startswith("sigmatrace ")


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


def test_an_interpreter_that_is_missing_leaves_no_folder(tmp_path):
    path = tmp_path / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    done = capture("-o", tmp_path / "run", "--", path)
    assert done.returncode == 127
    assert not (tmp_path / "run").exists()


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


def test_a_folder_in_use_is_refused_unless_appended_to(tmp_path):
    run = tmp_path / "run"
    capture("-o", run, "--layers", "ucx", "--", *UCX_USER)
    first = first_run_id(run)
    done = capture("-o", run, "--layers", "ucx", "--", *UCX_USER)
    assert done.returncode == 6
    assert len(done.stderr.splitlines()) == 1
    assert "another run" in done.stderr
    done = capture("-o", run, "--append", "--layers", "ucx", "--", *UCX_USER)
    assert done.returncode == 0
    files = sorted(run.glob("*.msgpack"))
    assert len(files) == 2
    for number, path in enumerate(files):  # each file says the same run
        (alone := tmp_path / str(number)).mkdir()
        path.rename(alone / path.name)
        assert first_run_id(alone) == first


def test_commands_with_one_run_id_share_a_folder(tmp_path):
    for _ in range(2):
        done = capture("-o", tmp_path, "--run-id", "pair", "--layers", "ucx", "--", *UCX_USER)
        assert done.returncode == 0
        assert " processes:" not in done.stderr  # the other command's process is not reported
    assert len(list(tmp_path.glob("*.msgpack"))) == 2


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_print_env_can_be_evaluated(tmp_path, shell):
    run = tmp_path / "a 'quoted' $run"
    printed = capture("-o", run, "--layers", "ucx", "--print-env")
    assert printed.returncode == 0
    assert all(line.startswith("export ") for line in printed.stdout.splitlines())
    program = f"{printed.stdout}\nexec {' '.join(UCX_USER)}"
    subprocess.run([shell, "-c", program], check=True, stdout=subprocess.DEVNULL)
    assert len(list(run.glob("*.msgpack"))) == 1


def test_print_env_makes_nothing(tmp_path):
    assert capture("--print-env", cwd=tmp_path).returncode == 0
    assert capture("-o", tmp_path / "a" / "b", "--print-env").returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-o", "used"], 6),
        (["-o", "used", "--debug"], 6),
        (["--clock", "it's\n$(echo ran >&2)"], 2),
        (["--no-such-option"], 2),
    ],
)
def test_a_batch_script_stops_when_there_is_nothing_to_evaluate(tmp_path, shell, words, code):
    (tmp_path / "used").mkdir()
    with RankFile(tmp_path / "used", run_id="other"):
        pass
    printed = capture(*words, "--print-env", cwd=tmp_path)
    assert printed.returncode == (1 if "--debug" in words else code)
    (tmp_path / "printed").write_text(printed.stdout)
    program = 'set -e; eval "$(cat printed)"; echo ran'
    done = subprocess.run(
        [shell, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.fixture(params=["mpich", "openmpi"])
def mpirun(request, monkeypatch):
    """The words that start a job of MPICH and of Open MPI."""
    for prefix in ("OMPI", "PRTE"):
        monkeypatch.setenv(f"{prefix}_ALLOW_RUN_AS_ROOT", "1")
        monkeypatch.setenv(f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return MPIEXEC if request.param == "mpich" else PRTERUN


def test_above_mpirun(tmp_path, mpirun):
    words = ["-o", tmp_path / "run", "--layers", "ucx", "--", *mpirun, "-n", "3", *UCX_USER]
    done = capture(*words)
    assert done.returncode == 0
    for rank in range(3):
        assert f"sigmatrace-capture: rank {rank} ucx_info" in done.stderr
    assert "3 processes: 0 operations" in done.stderr
    ways = {"MPICH over UCX": mpirun == MPIEXEC, "Open MPI over UCX": mpirun == PRTERUN}
    assert {way: way in done.stderr for way in ways} == ways


def test_under_mpirun_all_ranks_are_one_run(tmp_path, mpirun):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--layers", "ucx", "--", *UCX_USER]
    done = subprocess.run(
        [*mpirun, "-n", "4", *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    files = list((tmp_path / "run").glob("*.msgpack"))
    assert len(files) == 4
    identities = set()
    for number, path in enumerate(files):
        (alone := tmp_path / str(number)).mkdir()
        path.rename(alone / path.name)
        identities.add(first_run_id(alone))
    assert len(identities) == 1
    assert identities != {""}
    for rank in range(4):  # each launcher names its own process alone
        assert done.stderr.count(f"rank {rank} ucx_info") == 1


def test_under_mpirun_the_folder_is_named(tmp_path, mpirun):
    words = [*LAUNCHER, "--layers", "ucx", "--", *UCX_USER]
    done = subprocess.run(
        [*mpirun, "-n", "3", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob("*.msgpack"))) == 3
    assert done.stderr.count(f"the trace files of this job go to {folder}\n") == 1
    following = f"next when all ranks have ended: sigmatrace-pipeline +run={folder.name} "
    assert done.stderr.count(following) == 1


def test_under_mpirun_a_job_that_was_not_hooked_says_so_once(tmp_path, mpirun):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--", "sh", "-c", "true"]
    done = subprocess.run(
        [*mpirun, "-n", "3", *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: nothing was hooked") == 1
    assert done.stderr.count("MPI carries messages between ranks of one node") == 1
    assert not (tmp_path / "run").exists()


def test_under_mpirun_a_rank_that_was_not_hooked_says_which(tmp_path, mpirun):
    program = f'[ "${{PMIX_RANK:-$PMI_RANK}}" = 1 ] || exec {shlex.join(UCX_USER)}'
    waits = f"until [ -e {tmp_path}/run/*.msgpack ]; do sleep 0.01; done"
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--layers", "ucx", "--"]
    done = subprocess.run(
        [*mpirun, "-n", "2", *words, "sh", "-c", f"{program}; {waits}"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing was hooked") == 1
    assert "warning: rank 1: nothing was hooked" in done.stderr


def test_a_folder_that_another_launcher_removes_is_made_again(tmp_path):
    """It goes between the launcher's own making of it and the program's first record."""
    program = f"rmdir {tmp_path}/run && exec {shlex.join(UCX_USER)}"
    done = capture("-o", tmp_path / "run", "--layers", "ucx", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run").glob("*.msgpack"))) == 1


def test_under_mpirun_exit_codes_come_through(tmp_path, mpirun):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--", "sh", "-c", "exit 3"]
    done = subprocess.run(
        [*mpirun, "-n", "2", *words], capture_output=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 3


def test_help_is_quick_to_load():
    code = (
        "import sys\nfrom sigmatrace.capture.launch import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert not end.code\n"
        "print([n for n in ('numpy', 'numba', 'pyarrow', 'msgpack') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "--print-env" in done.stdout


def test_a_read_only_folder_is_refused(tmp_path):
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = capture("-o", tmp_path, "--", "true")
    assert done.returncode == 6
