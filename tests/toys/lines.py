"""A format of text files with a record per line, as `name=value` words; a file does not list its columns."""

import pyarrow as pa

from dpscale.records.files import OpenFile, RecordFormat


class Lines(OpenFile):
    names = ()

    def __init__(self, path):
        self.path = path

    def batches(self, columns, row_groups=(), ids="", domain=None):
        with open(self.path) as file:
            rows = [dict(word.split("=") for word in line.split()) for line in file]
        texts = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in columns or ("any",)}
        yield pa.RecordBatch.from_pydict(texts)


class LinesFormat(RecordFormat):
    name = "lines"
    title = "name=value"
    suffixes = (".lines",)
    typed = False
    lists_columns = False

    def open(self, path, dialect):
        return Lines(path)


LINES = LinesFormat()


def write_lines(path, frame):
    """Write a frame; a null is a name without a word."""
    records = frame.to_dict("records")
    lines = (" ".join(f"{name}={value}" for name, value in one.items() if value == value) for one in records)
    path.write_text("\n".join(lines) + "\n")
