"""A rank file with every kind of item."""

from __future__ import annotations

import pytest
from capture_cases import small_channels, small_records

from sigmatrace.testing.write import RankFile
from sigmatrace.trace_format import Schema


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a rank file with every kind of item."""
    folder = tmp_path_factory.mktemp("small")
    with RankFile(folder, rank=3, world=8, schemas=None) as file:
        file.object("ofi_endpoint", prov="tcp", ep_type="rdm", av=2, local=bytes(16))
        file.object("ofi_av", prov="tcp")
        file.clock(100, 10**18)
        file.chunk(Schema.CHANNEL, 7, small_channels())
        for at, (schema, chunk) in enumerate(small_records()):
            file.chunk(schema, 7 + at % 2, chunk)
            if at == 2:
                file.object("name", 9, name="loop")
        file.clock(900, 10**18 + 800)
        file.end(900, lost={"objects": 2})
    return file.path.read_bytes()
