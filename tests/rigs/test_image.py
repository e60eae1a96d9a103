"""What the virtual machines boot: where it cannot be had, that is said; kernels are unpacked."""

import gzip
import lzma
import struct

import pytest

from tests.rigs import image
from tests.rigs.errors import RigUnavailableError

ELF = b"\x7fELF" + bytes(range(256)) * 20


def packed(payload: bytes) -> bytes:
    """A bzImage with three setup sectors and the payload 100 bytes behind them."""
    head = bytearray(4 * 512 + 100)
    head[0x1F1] = 3
    struct.pack_into("<II", head, 0x248, 100, len(payload))
    return bytes(head) + payload + b"behind"


def test_kernels_are_unpacked() -> None:
    size = struct.pack("<I", len(ELF))  # the kernel's build appends it to what xz wrote
    assert image.unpacked_kernel(packed(lzma.compress(ELF) + size)) == ELF
    assert image.unpacked_kernel(packed(gzip.compress(ELF))) == ELF
    assert image.unpacked_kernel(packed(b"of a kind that is not known")) is None


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "TOOLS", ("cpio", "no-such-tool"))
    with pytest.raises(RigUnavailableError, match=r"not installed: no-such-tool \(scripts/setup"):
        image.prepare()


def test_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(RigUnavailableError, match="not on aarch64"):
        image.prepare()
