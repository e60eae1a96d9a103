"""``sigmatrace-query``: SQL over a run, or over a trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sigmatrace import left_out, perfetto_wheel
from sigmatrace.capture.arguments import Parser, exit_code
from sigmatrace.errors import ConfigError, RunNotFoundError
from sigmatrace.query import shipped
from sigmatrace.query.rows import FORMATS, Counting, Table, Writer

NAME = "sigmatrace-query"
_EPILOG = """\
RUN is a run whose pipeline had export=parquet, or that output. Each of its tables is a view by its
name (ops, traffic, processes, ...); codes are words: where op = 'send'. label(src_proc) is the
label of a process. TRACE is a trace.pftrace, or an output that has one. What is installed is
enough: nothing is downloaded.

  sigmatrace-query RUN "select op, count(*) from ops group by all"
  sigmatrace-query RUN --name matrix level=node
  sigmatrace-query --perfetto TRACE --name latency --format csv
  sigmatrace-query --perfetto TRACE "select name, dur from slice order by dur desc limit 5"

exit codes: 0 done, 1 own bug or nobody read the output to its end, 2 option, 3 no run or trace,
4 no trace that Perfetto knows, 11 the query was refused, 12 a package is not installed,
130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return exit_code(NAME, words, lambda: _run(parser().parse_intermixed_args(words)))


def parser() -> Parser:
    """Return the parser of the words after the command's name; it raises ``ConfigError``."""
    made = Parser(
        NAME,
        'RUN "SQL" | --perfetto TRACE "SQL" | --name NAME [KEY=VALUE ...]',
        "Asks a run in SQL, by DuckDB, or a trace in PerfettoSQL.",
        _EPILOG,
    )
    made.add_argument("words", metavar="RUN", nargs="*", help="the run, or the trace; then the SQL")
    made.add_argument("--perfetto", action="store_true", help="RUN is a trace; SQL is PerfettoSQL")
    what = made.add_mutually_exclusive_group()
    what.add_argument("-f", "--file", metavar="FILE", help="the SQL is in a file (-: stdin)")
    what.add_argument("--name", metavar="NAME", help="run a query that comes with SigmaTrace")
    what.add_argument("--list", action="store_true", help="list these queries")
    what.add_argument("--show", metavar="NAME", help="print the SQL of one of them")
    what.add_argument("--tables", action="store_true", help="list tables and columns of RUN")
    made.add_argument(
        "--format", choices=FORMATS, default="table", help="of the answer (default: table)"
    )
    made.add_debug_and_version()
    return made


def _run(options: argparse.Namespace) -> None:
    words: list[str] = options.words
    if options.list:
        _nothing_more(words)
        _list()
    elif options.show is not None:
        _nothing_more(words)
        sys.stdout.write(shipped.named(options.show).sql(perfetto=options.perfetto))
    else:
        place, sql = _asked(options, words)
        writer = Counting(FORMATS[options.format](sys.stdout))
        if options.perfetto:
            _ask_trace(place, sql, writer)
        else:
            _ask_run(place, sql, writer)
        if options.name is not None and not writer.rows:
            query = shipped.named(options.name)
            _attention(f"{query.name} found nothing: it looks at {query.looks_at}")


def _asked(options: argparse.Namespace, words: list[str]) -> tuple[Path, str | None]:
    """Return the run or trace, and the SQL; None: what tables there are."""
    if not words:
        raise ConfigError("no run is named", f"see {NAME} --help")
    place, more = Path(words[0]), words[1:]
    if options.name is not None:
        query = shipped.named(options.name)
        return place, query.filled(_parameters(more), perfetto=options.perfetto)
    if options.tables:
        _nothing_more(more)
        return place, None
    if options.file is not None:
        _nothing_more(more)
        more = [_read(options.file)]
    if not "".join(more).strip():
        raise ConfigError("no query is given", f"see {NAME} --help, or --list")
    _nothing_more(more[1:])
    try:
        more[0].encode()
    except UnicodeEncodeError:
        raise ConfigError("the query is not in UTF-8", "both engines know nothing else") from None
    return place, more[0]


def _ask_run(place: Path, sql: str | None, writer: Writer) -> None:
    perfetto_wheel.require("duckdb")
    from sigmatrace.query import parquet  # its package may be missing

    with parquet.opened(place) as tables:
        if sql is not None:
            tables.stream(sql, writer.take)
        else:
            rows = [(name, *column) for name in tables.names for column in tables.columns(name)]
            writer.take(("table", "column", "type"), rows)
        writer.end()


def _ask_trace(place: Path, sql: str | None, writer: Writer) -> None:
    from sigmatrace.query import trace

    with trace.opened(place) as loaded:
        if sql is not None:
            _attention(*left_out.attention(trace.find(place)))
        loaded.stream(_TRACE_TABLES if sql is None else sql, writer.take)
        writer.end()


_TRACE_TABLES = f"""
include perfetto module {shipped.MODULE};
select m.name as "table", c.name as "column", lower(c.type) as type
from sqlite_master m, pragma_table_info(m.name) c
where m.name glob '{shipped.PACKAGE}_*' order by m.name, c.cid
"""


def _attention(*texts: str) -> None:
    """Say what must be known of an answer, beside it."""
    for text in texts:
        print(f"{NAME}: attention: {text}", file=sys.stderr)


def _list() -> None:
    rows = []
    for query in shipped.all_queries().values():
        parameters = (f"{key}={'|'.join(values)}" for key, (values, _) in query.parameters.items())
        rows.append((query.name, query.text, " ".join(parameters)))
    table = Table(sys.stdout)
    table.take(("query", "what it tells", "parameters"), rows)
    table.end()


def _parameters(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, given, value = word.partition("=")
        if not given:
            raise ConfigError(f"{word}: no parameter", "parameters are written KEY=VALUE")
        found[key] = value
    return found


def _nothing_more(words: Sequence[str]) -> None:
    if words:
        raise ConfigError(f"{words[0]}: one word too many", "put the SQL into quotes")


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no text ({error})"
        raise RunNotFoundError(f"{name}: {why}") from None
