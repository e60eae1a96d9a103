"""The launcher's options: what is refused, and how, --check, --print-env, and the output folder."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys

import pytest
from launching import LAUNCHER, UCX_USER, WAIT_S, capture

from sigmatrace.capture.captured import first_run_id
from sigmatrace.capture.layers import LAYERS
from sigmatrace.capture.libs import library
from sigmatrace.testing.write import RankFile
from tests.permissions import obeying

pytestmark = pytest.mark.usefixtures("clean_environment")


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


@pytest.mark.parametrize("words", [["--check"], ["--print-env"], ["--", "true"]])
def test_wrong_values_of_variables_are_mistakes_too(words, tmp_path, monkeypatch):
    monkeypatch.setenv("SIGMATRACE_DOORBELL", "foo")
    done = capture("-o", tmp_path / "run", *words)
    text = "SIGMATRACE_DOORBELL=foo: choose from forward-first, copy-first, sync, off"
    assert (done.returncode, done.stderr) == (2, f"sigmatrace-capture: {text}\n")
    assert list(tmp_path.iterdir()) == []


def test_unknown_variables_and_halves_of_layers_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGMATRACE_CUPTY", "off")
    done = capture("-o", tmp_path / "run", "--layers", "mlx5dv", "--print-env")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "sigmatrace-capture: warning: nothing reads the variable SIGMATRACE_CUPTY; do you mean"
        " SIGMATRACE_CUPTI?",
        "sigmatrace-capture: warning: layers mlx5dv and cuda work together: use --layers gpu",
    ]


def test_unknown_layers_are_told_with_the_groups(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGMATRACE_LAYERS", "gpus")
    done = capture("-o", tmp_path / "run", "--", "true")
    assert done.returncode == 2
    assert "choose from ofi, ucp, uct, verbs, mlx5dv, cuda, all, ucx, gpu" in done.stderr
    variables = {"SIGMATRACE_OUT": str(tmp_path / "run"), "SIGMATRACE_LAYERS": "gpus"}
    preload = {"LD_PRELOAD": ":".join(str(library(name)) for name in ("core", "ucx"))}
    said = subprocess.run(
        ["true"], env=variables | preload, capture_output=True, text=True, check=True
    ).stderr
    assert 'no layer is called "gpus"; there are: ofi ucp uct verbs mlx5dv cuda' in said
    assert said.rstrip().endswith("and the groups ucx gpu all")
    variables["SIGMATRACE_LAYERS"] = "all"
    known = subprocess.run(["true"], env=variables | preload, capture_output=True, check=True)
    assert known.stderr == b""


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
    assert named == [*LAYERS]


def test_version():
    done = capture("--version")
    pipeline = [sys.executable, "-m", "sigmatrace", "--version"]
    said = subprocess.run(pipeline, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (0, said.stdout)
    assert done.stdout.startswith("sigmatrace ")


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
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    words = obeying(*LAUNCHER, "-o", tmp_path, "--", "true")
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 6
    assert f"{tmp_path} is not writable" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_in_use_is_refused_unless_appended_to(tmp_path):
    run = tmp_path / "run"
    capture("-o", run, "--layers", "ucx", "--", *UCX_USER)
    first = first_run_id(run)
    done = capture("-o", run, "--layers", "ucx", "--", *UCX_USER)
    assert done.returncode == 6
    assert len(done.stderr.splitlines()) == 1
    assert "another run" in done.stderr and "the same --run-id" in done.stderr
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


def test_a_folder_that_another_launcher_removes_is_made_again(tmp_path):
    """It goes between the launcher's own making of it and the program's first record."""
    program = f"rmdir {tmp_path}/run && exec {shlex.join(UCX_USER)}"
    done = capture("-o", tmp_path / "run", "--layers", "ucx", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run").glob("*.msgpack"))) == 1
