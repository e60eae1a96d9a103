"""The launcher's environment, as a pure function of settings and the user's environment."""

import re
import subprocess
from pathlib import Path

import pytest

from sigmatrace.capture import environment as env
from sigmatrace.capture.layers import LAYERS
from sigmatrace.capture.runid import RANK_VARIABLES, job_rank, run_id, under_launcher
from sigmatrace.errors import CaptureError, ConfigError

NATIVE = Path(env.__file__).parent / "native"
LIB = Path("/opt/st/lib")
SHIMS = env.Shims(
    core=LIB / "libsigmatrace_core.so",
    preload={name: LIB / f"libsigmatrace_{name}.so" for name in ("ofi", "ucx")},
    ofi_hook=LIB / "prov" / "libofi_hook_sigmatrace-fi.so",
)


def settings(**changes):
    return env.Settings(**{"out": Path("/data/run"), "run_id": "ab", **changes})


def test_all_layers_by_hook():
    got = env.compose(settings(layers=tuple(LAYERS)), SHIMS, {})
    assert got == {
        "SIGMATRACE_OUT": "/data/run",
        "SIGMATRACE_RUN_ID": "ab",
        "SIGMATRACE_MODE": "simple",
        "SIGMATRACE_LAYERS": "ofi,ucp,uct,verbs,mlx5dv,cuda",
        "SIGMATRACE_CLOCK": "realtime",
        "LD_PRELOAD": f"{LIB}/libsigmatrace_core.so:{LIB}/libsigmatrace_ucx.so",
        "FI_PROVIDER_PATH": f"{LIB}/prov",
        "FI_HOOK": "sigmatrace",
    }


def test_libfabric_by_preload_sets_no_hook():
    got = env.compose(settings(ofi_entry="preload"), SHIMS, {})
    assert f"{LIB}/libsigmatrace_ofi.so" in got["LD_PRELOAD"].split(":")
    assert "FI_HOOK" not in got
    assert "FI_PROVIDER_PATH" not in got


def test_an_unchosen_layer_is_not_loaded():
    assert "ucx" not in env.compose(settings(layers=("ofi",)), SHIMS, {})["LD_PRELOAD"]
    assert "FI_HOOK" not in env.compose(settings(layers=("uct",)), SHIMS, {})


@pytest.mark.parametrize("users", ["/a.so:/b.so", "/a.so /b.so", " /a.so  /b.so:"])
def test_users_preload_comes_after_ours(users):
    got = env.compose(settings(), SHIMS, {"LD_PRELOAD": users})
    assert got["LD_PRELOAD"].split(":")[2:] == ["/a.so", "/b.so"]


def test_composing_twice_changes_nothing():
    base = {"LD_PRELOAD": "/a.so", "FI_HOOK": "perf", "FI_PROVIDER_PATH": "@/p:/q"}
    once = env.compose(settings(), SHIMS, base)
    assert env.compose(settings(), SHIMS, {**base, **once}) == once
    assert once["FI_HOOK"] == "sigmatrace;perf"


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ("", "/o:/d1:/d2"),  # unset: the default folders would be searched
        ("/p:/q", "/o:/p:/q"),  # the user replaced the defaults: so do we
        ("@", "@/o:/d1:/d2"),
        ("@/p", "@/o:/p"),
        ("+/x/libtcp-fi.so", "/o:+/x/libtcp-fi.so:/d1:/d2"),  # + alone keeps the defaults
        ("+/x/libtcp-fi.so:/p", "/o:+/x/libtcp-fi.so:/p"),
        ("/o:/p", "/o:/p"),
    ],
)
def test_provider_path(users, expected):
    assert env.provider_path(Path("/o"), users, [Path("/d1"), Path("/d2")]) == expected


def test_a_blank_in_the_installation_path():
    shims = env.Shims(core=Path("/my lib/libc.so"), preload={"ucx": Path("/my lib/libu.so")})
    got = env.compose(settings(), shims, {"LD_LIBRARY_PATH": "/x"})
    assert got["LD_PRELOAD"] == "libc.so:libu.so"
    assert got["LD_LIBRARY_PATH"] == "/my lib:/x"


def test_a_colon_in_the_installation_path_is_refused():
    with pytest.raises(CaptureError, match="LD_PRELOAD"):
        env.compose(settings(), env.Shims(core=Path("/a:b/libc.so")), {})


def test_layers():
    assert env.parse_layers("ucx,ofi") == ("ofi", "ucp", "uct")
    assert env.parse_layers("all") == tuple(LAYERS)
    assert env.parse_layers(" UCT ,uct") == ("uct",)
    with pytest.raises(ConfigError, match="verbz"):
        env.parse_layers("ofi,verbz")
    with pytest.raises(ConfigError, match="no layer"):
        env.parse_layers(" , ")


def test_missing_layers_depend_on_the_entry():
    shims = env.Shims(core=SHIMS.core, preload={"ofi": SHIMS.preload["ofi"]})
    assert env.missing_layers(settings(layers=tuple(LAYERS)), shims) == tuple(LAYERS)
    assert env.missing_layers(settings(ofi_entry="preload"), shims) == ("ucp",)


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_export_lines_survive_any_posix_shell(shell):
    value = "a 'b' \"c\" $HOME `id` \\ \t* ü"
    script = "\n".join([*env.export_lines({"ST_TEST": value}), 'printf %s "$ST_TEST"'])
    got = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    assert got.stdout == value


def test_run_id_is_random_alone_and_shared_in_a_job():
    assert run_id({}) != run_id({})
    job = {"PMIX_NAMESPACE": "prterun-a-1@1"}
    assert run_id({**job, "PMIX_RANK": "0"}) == run_id({**job, "PMIX_RANK": "1"})
    assert run_id({**job, "PMIX_RANK": "0"}) != run_id({"PMIX_NAMESPACE": "b", "PMIX_RANK": "0"})
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}
    assert run_id(step) != run_id({**step, "SLURM_STEP_ID": "1"})
    assert run_id({**step, "SIGMATRACE_RUN_ID": "given"}) == "given"


def test_a_batch_script_is_not_a_rank():
    assert not under_launcher({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"})
    assert under_launcher({"PMI_RANK": "0"})
    assert not under_launcher({"RANK": "0"})
    assert not under_launcher({"RANK": "0", "WORLD_SIZE": "2"}), "nothing there names the job"


def test_launcher_and_core_read_ranks_from_the_same_variables():
    source = (NATIVE / "core/config.c").read_text()
    (listed,) = re.findall(r"sources\[\] = \{\n(.*?)\n    \};", source, re.DOTALL)
    rows = re.findall(r'\{"(\w+)", "\w+", (?:NULL|"(\w+)")\}', listed)
    assert tuple((name, only_with or None) for name, only_with in rows) == RANK_VARIABLES
    assert len(rows) == listed.count("{")


def test_the_most_specific_launcher_tells_the_rank():
    both = {"PMIX_RANK": "5", "SLURM_PROCID": "7", "SLURM_STEP_ID": "0"}
    assert job_rank(both) == "5"
    assert job_rank({**both, "RANK": "3", "TORCHELASTIC_RUN_ID": "t"}) == "3"
    assert job_rank({"FLUX_TASK_RANK": "2", "RANK": "1", "WORLD_SIZE": "4"}) == "2"
    assert job_rank({"MV2_COMM_WORLD_RANK": "6"}) == "6"
