"""The list of tracks: numbers, kinds, names and parents."""

from __future__ import annotations

import numpy as np

from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.trace_format import Layer
from tests.factories import queue_pair
from tests.perfetto_inputs import run


def paths(tracks):
    """Names of each track and of all above it, by number."""
    found = {}
    for number in range(1, tracks.free):
        names, at = [], number
        while at:
            names.append(tracks.name(at))
            at = tracks.parent(at)
        found[number] = tuple(reversed(names))
    return found


def test_all_tracks_of_a_run_with_queue_pairs():
    endpoints = [
        queue_pair(1, 4, "aa:5"),
        queue_pair(0, 9, "aa:6"),
        {"proc": 0, "object": 9, "layer": Layer.UCP, "type": "ucp_ep"},
    ]
    found = paths(Tracks.of(run(endpoints=endpoints)))
    threads = [("rank 0", "main"), ("rank 1", "main"), ("rank 1", "thread 201")]
    pairs = [("rank 0", "QPs", "QP 0x6"), ("rank 1", "QPs", "QP 0x5")]
    assert list(found.values()) == [
        *threads,
        *((*thread, "completions") for thread in threads),
        *((*thread, "regions") for thread in threads),
        ("rank 0",),
        ("rank 1",),
        ("rank 0", "QPs"),
        ("rank 1", "QPs"),
        *pairs,
        *((*pair, "requests") for pair in pairs),
        *((*pair, "arrivals") for pair in pairs),
        *((*pair, "by peers") for pair in pairs),
        ("NICs",),
        ("NICs", "aa (a)"),
        ("NICs", "aa (b)"),
    ]


def test_a_run_without_objects_has_threads_and_processes():
    tracks = Tracks.of(run())
    found = paths(tracks)
    assert list(found.values())[-1] == ("NICs",)
    assert len(found) == 3 * 3 + 2 * 2 + 1
    assert [tracks.kind(number) for number in found][9:] == [
        Track.PROCESS, Track.PROCESS, Track.QUEUE_PAIRS, Track.QUEUE_PAIRS, Track.NICS,
    ]  # fmt: skip


def test_numbers_of_many_are_those_of_each():
    tracks = Tracks.of(run())
    places = np.array([2, 0, 1], np.uint32)
    numbers = tracks.numbers(Track.REGIONS, places)
    assert numbers.dtype == np.uint32
    assert numbers.tolist() == [tracks.number(Track.REGIONS, place) for place in (2, 0, 1)]
    kinds = np.array([Track.CALLS, Track.PROCESS, Track.REGIONS])
    one_each = [tracks.number(*one) for one in zip(map(Track, kinds), (2, 0, 1), strict=True)]
    assert tracks.numbers(kinds, places).tolist() == one_each


def test_tracks_come_after_those_above_them_and_once():
    tracks = Tracks.of(run())
    regions = [tracks.number(Track.REGIONS, place) for place in (1, 2)]
    listed = list(tracks.with_parents(regions))
    names = [(tracks.kind(number).name, tracks.name(number)) for number in listed]
    assert names == [
        ("PROCESS", "rank 1"), ("CALLS", "main"), ("REGIONS", "regions"),
        ("CALLS", "thread 201"), ("REGIONS", "regions"),
    ]  # fmt: skip
