"""What the scheduler's messages weigh."""

from __future__ import annotations

from distributed.comm import tcp


def weigh_messages(monkeypatch):
    """A list that gets the bytes of every message that this process's scheduler and client get or send."""
    sizes, from_frames, to_frames = [], tcp.from_frames, tcp.to_frames

    def weighed(frames):
        sizes.append(sum(memoryview(frame).nbytes for frame in frames))
        return frames

    async def coming(frames, *arguments, **options):
        return await from_frames(weighed(frames), *arguments, **options)

    async def going(*arguments, **options):
        return weighed(await to_frames(*arguments, **options))

    monkeypatch.setattr(tcp, "from_frames", coming)
    monkeypatch.setattr(tcp, "to_frames", going)
    return sizes
