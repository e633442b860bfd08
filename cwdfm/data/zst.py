"""Zstandard files as a stream of bytes."""

import io
from typing import Any, BinaryIO

from cwdfm.errors import load_extra

_CHUNK = 1 << 17


class ZstReader(io.RawIOBase):
    """Decompresses frame after frame; a file that breaks off is an EOFError.

    The package's own `stream_reader` takes a file that was cut short for a whole one.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._zstandard = load_extra("zstandard", "text")
        self._raw = raw
        self._frame = self._new()
        self._started = False  # inside a frame
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._started = self._new(), False
            data = data or self._raw.read(_CHUNK)
            if not data:
                if self._started:
                    raise EOFError("the file ends within a frame")
                return 0
            self._started = True
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._zstandard.ZstdError as error:
                raise EOFError(str(error)) from error
        out = memoryview(buffer)
        size = min(len(out), len(self._ready))
        out[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _new(self) -> Any:
        return self._zstandard.ZstdDecompressor().decompressobj()
