"""Values of variables that have no option, and names that nothing reads."""

import re
from pathlib import Path

import pytest

from sigmatrace.capture import variables
from sigmatrace.errors import ConfigError

NATIVE = Path(variables.__file__).parent / "native"
RIGHT = {
    "SEGMENT_KIB": ["4", "256", "32768"],
    "MAX_CHANNELS": ["1", "4194304"],
    "WRITER": ["thread", "inline", "INLINE"],
    "DOORBELL": ["forward-first", "copy-first", "sync", "off"],
    "DOORBELL_BATCH": ["1", "128", "32768"],
    "POLL_CPUS": ["0", "2-3", "2,8", "0-0,1023"],
    "CUPTI": ["off", "libcupti.so.12", "/opt/cupti/libcupti.so", "./cupti"],
}
WRONG = {
    "SEGMENT_KIB": ["3", "32769", "many"],
    "MAX_CHANNELS": ["0", "4194305"],
    "WRITER": ["threads"],
    "DOORBELL": ["foo", "SYNC"],
    "DOORBELL_BATCH": ["abc", "0", "-1", "999999999", "9" * 5000, "\u0663"],
    "POLL_CPUS": ["abc", "1,", "3-2", "-1", "0 1", "1024"],
    "CUPTI": ["on", "Off", "0"],
}


def cases(values):
    return [(name, value) for name, some in values.items() for value in some]


@pytest.mark.parametrize(("name", "value"), [*cases(RIGHT), *((name, "") for name in RIGHT)])
def test_right_values(name, value):
    assert variables.check({f"SIGMATRACE_{name}": value, "HOME": "/x"}) == []


@pytest.mark.parametrize(("name", "value"), cases(WRONG))
def test_wrong_values_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"^SIGMATRACE_{name}={value}: ."):
        variables.check({f"SIGMATRACE_{name}": value})


def test_unknown_names_are_told_with_the_nearest_known_one():
    assert variables.check({"SIGMATRACE_DOORBEL": "off", "SIGMATRACE_xyzzy": "", "SIGMA": "1"}) == [
        "nothing reads the variable SIGMATRACE_DOORBEL; do you mean SIGMATRACE_DOORBELL?",
        "nothing reads the variable SIGMATRACE_xyzzy",
    ]


def test_what_the_native_side_reads_is_known():
    """Each name in its sources, but for guards of headers and of builds."""
    sources = (path.read_text() for path in NATIVE.rglob("*.c"))
    read = {name for text in sources for name in re.findall(r'"(SIGMATRACE_[A-Z_]+)"', text)}
    assert read == set(variables.KNOWN) - {"SIGMATRACE_LIB_DIR"}
