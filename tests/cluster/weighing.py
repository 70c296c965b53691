"""Sizes of the messages of a scheduler."""

from __future__ import annotations

from distributed.comm import tcp


def record_message_sizes(monkeypatch):
    """Return a list that collects the size of each message received or sent by scheduler and client."""
    sizes, from_frames, to_frames = [], tcp.from_frames, tcp.to_frames

    def record_size(frames):
        sizes.append(sum(memoryview(frame).nbytes for frame in frames))
        return frames

    async def receive(frames, *arguments, **options):
        return await from_frames(record_size(frames), *arguments, **options)

    async def send(*arguments, **options):
        return record_size(await to_frames(*arguments, **options))

    monkeypatch.setattr(tcp, "from_frames", receive)
    monkeypatch.setattr(tcp, "to_frames", send)
    return sizes
