from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import os, pathlib, sys
import sigmatrace
real = os.access
package = pathlib.Path(sigmatrace.__file__).parent
os.access = lambda path, mode: pathlib.Path(path) != package and real(path, mode)
from sigmatrace import kernel_cache
kernel_cache.use_writable_cache()
print(os.environ.get("NUMBA_CACHE_DIR"))
"""


def chosen(code=CODE, **environment):
    kept = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_read_only_package_uses_the_users_cache(tmp_path):
    assert chosen(XDG_CACHE_HOME=str(tmp_path)) == f"{tmp_path}/sigmatrace/numba"


def test_without_a_usable_home_the_temporary_folder_serves(tmp_path):
    (tmp_path / "file").touch()
    found = chosen(XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert found == f"{tmp_path}/sigmatrace-{os.getuid()}/numba"


def test_numba_that_is_imported_already_is_told(tmp_path):
    assert chosen(
        "import numba\n" + CODE + "print(numba.config.CACHE_DIR)", XDG_CACHE_HOME=str(tmp_path)
    ) == "\n".join([f"{tmp_path}/sigmatrace/numba"] * 2)


def test_the_users_own_choice_stays(tmp_path):
    assert chosen(NUMBA_CACHE_DIR=str(tmp_path)) == str(tmp_path)
