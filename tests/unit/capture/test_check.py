"""``--check``: what can be traced here."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from sigmatrace.capture import check, environment, libraries
from sigmatrace.capture.layers import LAYERS

SHIMS = environment.Shims(
    core=Path("/l/c.so"), preload={"ucx": Path("/l/u.so")}, ofi_hook=Path("/l/p/h.so")
)


def settings(out, **changes):
    return environment.Settings(out=out, run_id="x", **changes)


def test_processor_needs_an_invariant_counter(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu constant_tsc nonstop_tsc sse4_2\n")
    assert check.processor(info).ok
    info.write_text("flags\t\t: fpu constant_tsc sse4_2\n")
    assert check.processor(info).line() == "cpu:     no: no nonstop_tsc: the TSC stops in idle"
    assert not check.processor(tmp_path / "missing").ok


@pytest.mark.parametrize(
    ("name", "ok"),
    [("realtime", True), ("tai", True), ("sundial", False), ("", False), ("/dev/zero", False)],
)
def test_clock(name, ok):
    assert check.clock(name).ok is ok


def test_clock_device(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_PTP", str(tmp_path / "ptp"))
    assert "No such file" in check.clock(str(tmp_path / "ptp9")).text
    (tmp_path / "ptp0").touch()  # it can be opened, but is no clock
    assert "Invalid argument" in check.clock(str(tmp_path / "ptp0")).text


def test_output_leaves_nothing_behind(tmp_path):
    verdict = check.output(tmp_path / "not" / "yet")
    assert verdict.ok
    assert list(tmp_path.iterdir()) == []


def test_a_layer_without_its_shim_names_the_package(tmp_path):
    shims = environment.Shims(core=Path("/l/c.so"))
    lines, works = check.check(settings(tmp_path, layers=tuple(LAYERS)), shims, {})
    assert not works
    assert sum("libucx-dev" in line for line in lines) == 2
    assert sum("libfabric-dev" in line for line in lines) == 1


def test_without_native_libraries(tmp_path):
    lines, works = check.check(settings(tmp_path, layers=tuple(LAYERS)), None, {})
    assert not works
    assert sum("not built" in line for line in lines) == len(LAYERS)


@pytest.mark.parametrize("shims", [None, SHIMS])
def test_only_the_chosen_layers_are_checked(tmp_path, shims):
    lines, works = check.check(settings(tmp_path, layers=("uct",)), shims, {})
    assert [line.split(":")[0] for line in lines] == ["cpu", "clock", "output", "uct"]
    assert works is (shims is not None)


def test_installed_libraries_say_what_the_loader_would_load():
    (first, *_) = libraries.found(LAYERS["ofi"], {})
    number = ctypes.CDLL("libfabric.so.1").fi_version()
    assert first.version == f"{number >> 16}.{number & 0xFFFF}"
    (ucx, *_) = libraries.found(LAYERS["ucp"], {})
    said = subprocess.run(["ucx_info", "-v"], capture_output=True, text=True, check=True).stdout
    assert f"ersion {ucx.version}" in said.replace("version: ", "version ")


def test_library_path_comes_first(tmp_path):
    (tmp_path / "libucp.so.0").write_bytes(b"no library")
    (first, second, *_) = libraries.found(LAYERS["ucp"], {"LD_LIBRARY_PATH": f"/no:{tmp_path}"})
    assert first == libraries.Library(tmp_path / "libucp.so.0", None)
    assert second.version


def test_a_library_that_does_not_tell_its_version_can_be_loaded(tmp_path):
    seen = {"LD_LIBRARY_PATH": str(tmp_path)}
    library = tmp_path / "libmlx5.so.1"
    built = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", library]
    subprocess.run(built, check=True)
    shims = environment.Shims(core=Path("/l/c.so"), preload={"gpu": Path("/l/g.so")})
    mlx5 = settings(tmp_path, layers=("mlx5dv",))
    verdict = check.layer("mlx5dv", mlx5, shims, seen)
    assert verdict.ok and f"libmlx5 (of unknown version) {library}" in verdict.text
    assert "cannot be loaded" not in verdict.text


def test_a_layer_whose_libraries_cannot_be_loaded_is_not_ok(tmp_path, monkeypatch):
    (tmp_path / "libmlx5.so.1").write_bytes(b"no library")
    monkeypatch.setattr(libraries, "_cache", str)
    shims = environment.Shims(core=Path("/l/c.so"), preload={"gpu": Path("/l/g.so")})
    mlx5 = settings(tmp_path, layers=("mlx5dv",))
    verdict = check.layer("mlx5dv", mlx5, shims, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (verdict.ok, verdict.text) == (False, f"{tmp_path / 'libmlx5.so.1'} cannot be loaded")


def test_default_provider_folders_are_read_from_the_library(tmp_path):
    providers = tmp_path / "providers"
    text = b"\0Search for providers in specific path. (default: %s)\0" % bytes(providers)
    (tmp_path / "libfabric.so.1").write_bytes(b"\x7fELF" + text)
    seen = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert providers not in libraries.provider_dirs(seen)  # it does not exist
    providers.mkdir()
    assert libraries.provider_dirs(seen)[0] == providers
    assert tmp_path not in libraries.provider_dirs(seen)
    (tmp_path / "libxyz-fi.so").touch()
    assert tmp_path in libraries.provider_dirs(seen)  # the loader would find a provider there


def test_default_provider_folder_of_the_installed_library():
    said = subprocess.run(["fi_info", "-e"], capture_output=True, text=True, check=True).stdout
    (path, *_) = libraries._paths("libfabric", {})
    (folder,) = libraries._compiled_in(path)
    assert f"(default: {folder})" in " ".join(said.split()).replace("# ", "")
