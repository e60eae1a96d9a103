"""What dftracer-utils can do of it: load without an index, and the matrix. FOLDER has *.pfw.gz."""

from __future__ import annotations

import json
import sys

from dftracer.utils import TraceViewer


def main() -> None:
    grouped = TraceViewer(sys.argv[1]).group_by("name", "args.src", "args.dst")
    matrix = grouped.agg("count", "sum:args.size").collect().to_dict()
    sent = [name == "send" for name in matrix["name"]]
    sizes = zip(sent, matrix["sum_args.size"], strict=True)
    total = sum(int(size) for is_send, size in sizes if is_send)
    print(json.dumps({"events": sum(matrix["count"]), "bytes": total}))


if __name__ == "__main__":
    main()
