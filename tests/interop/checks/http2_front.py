"""The HTTP/2 front against broken peers, frame by frame with hyperframe and hpack: sections of RFC 9113 as h2spec orders
them. Each must end in the right error, and another connection must not notice.
"""

import asyncio
import struct

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame, DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, PriorityFrame, RstStreamFrame,
    SettingsFrame, WindowUpdateFrame)

from table import check

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_ERROR, PROTOCOL, INTERNAL, FLOW, TIMEOUT, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION, CONNECT, CALM = range(12)
# Where the standard has a code of its own and the front says PROTOCOL_ERROR, which stands for any (RFC 9113, 7: it is for
# when no more specific code is at hand). The h2 crate does so for frames that it cannot read.
GENERIC = PROTOCOL
# The peer has closed the connection without a word.
GONE = "gone"
OPEN = ("END_HEADERS",)


class Peer:
    """A client that says what the test says."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.encoder = Encoder()

    @classmethod
    async def connect(cls, cluster, settings=None, preface=PREFACE):
        peer = cls(*await asyncio.open_connection("127.0.0.1", cluster.port))
        peer.writer.write(preface)
        peer.send(SettingsFrame(0, settings=settings or {}))
        return peer

    def send(self, *frames):
        for frame in frames:
            self.writer.write(frame if isinstance(frame, bytes) else frame.serialize())

    def request(self, stream=1, path="/small.txt", flags=("END_HEADERS", "END_STREAM"), method="GET", more=()):
        head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "h"), ("x-partition", "0"), *more]
        return HeadersFrame(stream, data=self.encoder.encode(head), flags=flags)

    def upload(self, stream=1, more=()):
        """A request that nobody answers before its end. An answer would end the stream under the test."""
        return self.request(stream, path="/upload", flags=OPEN, method="POST", more=more)

    async def frame(self):
        head = await self.reader.readexactly(9)
        frame, length = Frame.parse_frame_header(memoryview(head))
        frame.parse_body(memoryview(await self.reader.readexactly(length)))
        return frame

    async def until(self, wanted):
        """The first frame for which `wanted` says so."""
        while True:
            frame = await self.frame()
            if wanted(frame):
                return frame

    async def error(self, stream):
        """How it is told that something was wrong: GOAWAY, or RST_STREAM of this stream."""
        try:
            frame = await self.until(lambda frame: isinstance(frame, GoAwayFrame) or (
                isinstance(frame, RstStreamFrame) and frame.stream_id == stream))
            return frame.error_code
        except (asyncio.IncompleteReadError, ConnectionError):
            return GONE

    async def answers(self, stream):
        """Waits for the head of the answer and for its end."""
        await self.until(lambda frame: frame.stream_id == stream and isinstance(frame, HeadersFrame))
        await self.until(lambda frame: frame.stream_id == stream and "END_STREAM" in frame.flags)

    def close(self):
        self.writer.close()


def section(number, what, *codes, stream=1, settings=None, server="nginx1"):
    """Registers a broken peer: what it does, and the errors of which one has to come."""

    def register(function):
        async def run(fixture):
            cluster = getattr(fixture, server)
            bystander = await Peer.connect(cluster)
            bystander.send(bystander.request(1))
            await bystander.answers(1)
            peer = await Peer.connect(cluster, settings)
            function(peer)
            code = await asyncio.wait_for(peer.error(stream), 10)
            assert code in codes, f"{code} instead of {codes}"
            peer.close()
            bystander.send(bystander.request(3))
            await asyncio.wait_for(bystander.answers(3), 10)
            bystander.close()

        check("HTTP/2", "hyperframe", "nginx, HTTP/1.1", f"{number} {what}")(run)
        return function

    return register


def raw(kind, flags, stream, body):
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def overflow(peer):
    """Far more than a stream's window of 64 KiB, and no more: asyncio forgets what it was told when it cannot write."""
    for _ in range(140):
        peer.send(DataFrame(1, bytes(16_384)))


@section("4.2", "a frame beyond SETTINGS_MAX_FRAME_SIZE", SIZE)
def too_large(peer):
    peer.send(peer.upload(), raw(0, 0, 1, bytes(16_385)))


@section("4.3", "a header block that cannot be decoded", COMPRESSION, GENERIC)
def no_hpack(peer):
    peer.send(raw(1, 0x5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))


@section("4.3", "another frame in the middle of a header block", PROTOCOL)
def interleaved(peer):
    peer.send(peer.request(flags=("END_STREAM",)), PriorityFrame(3, stream_weight=1))


@section("5.1", "DATA on an idle stream", PROTOCOL)
def idle_data(peer):
    peer.send(DataFrame(1, b"x"))


@section("5.1", "RST_STREAM on an idle stream", PROTOCOL)
def idle_reset(peer):
    peer.send(RstStreamFrame(1, error_code=CANCEL))


@section("5.1", "WINDOW_UPDATE on an idle stream", PROTOCOL)
def idle_window(peer):
    peer.send(WindowUpdateFrame(1, window_increment=1))


@section("5.1", "CONTINUATION on an idle stream", PROTOCOL)
def idle_continuation(peer):
    peer.send(ContinuationFrame(1, data=b"", flags=("END_HEADERS",)))


@section("5.1", "DATA after the end of a stream", CLOSED, GENERIC)
def data_after_end(peer):
    peer.send(peer.request(path="/large.bin"), DataFrame(1, b"x"))


@section("5.1", "HEADERS after the end of a stream", CLOSED, PROTOCOL)
def headers_after_end(peer):
    peer.send(peer.request(path="/large.bin"), peer.request(path="/large.bin"))


@section("5.1", "DATA after RST_STREAM, much of it", CLOSED, CALM, FLOW)
def data_after_reset(peer):
    peer.send(peer.upload(), RstStreamFrame(1, error_code=CANCEL))
    overflow(peer)


@section("5.1.1", "a stream of an even number", PROTOCOL, stream=2)
def even(peer):
    peer.send(peer.request(2))


@section("5.1.1", "a stream of a lower number than the last", PROTOCOL, CLOSED, stream=3)
def lower(peer):
    peer.send(peer.request(5), peer.request(3))


@section("5.3.1", "HEADERS that depend on themselves", PROTOCOL)
def depends_on_itself(peer):
    frame = peer.request(flags=("END_HEADERS", "END_STREAM", "PRIORITY"))
    frame.depends_on, frame.stream_weight, frame.exclusive = 1, 1, False
    peer.send(frame)


@section("6.1", "DATA on stream 0", PROTOCOL)
def data_on_0(peer):
    peer.send(raw(0, 0, 0, b"x"))


@section("6.1", "DATA with more padding than payload", PROTOCOL)
def padding(peer):
    peer.send(peer.upload(), raw(0, 0x8, 1, b"\x06data"))


@section("6.2", "HEADERS on stream 0", PROTOCOL)
def headers_on_0(peer):
    peer.send(raw(1, 0x5, 0, peer.request().data))


@section("6.4", "RST_STREAM on stream 0", PROTOCOL)
def reset_0(peer):
    peer.send(raw(3, 0, 0, bytes(4)))


@section("6.4", "RST_STREAM of a wrong length", SIZE, GENERIC)
def short_reset(peer):
    peer.send(peer.upload(), raw(3, 0, 1, bytes(3)))


@section("6.5", "SETTINGS on a stream", PROTOCOL)
def settings_on_1(peer):
    peer.send(raw(4, 0, 1, bytes(6)))


@section("6.5", "SETTINGS of a wrong length", SIZE, GENERIC)
def short_settings(peer):
    peer.send(raw(4, 0, 0, bytes(3)))


@section("6.5", "an acknowledgement of SETTINGS with a payload", SIZE, GENERIC)
def ack_with_payload(peer):
    peer.send(raw(4, 1, 0, bytes(6)))


@section("6.5.2", "SETTINGS_ENABLE_PUSH of 2", PROTOCOL, settings={SettingsFrame.ENABLE_PUSH: 2})
def push_2(_):
    pass


@section("6.5.2", "SETTINGS_INITIAL_WINDOW_SIZE beyond the most", FLOW, GENERIC,
         settings={SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 31})
def window_setting(_):
    pass


@section("6.5.2", "SETTINGS_MAX_FRAME_SIZE below the least", PROTOCOL, settings={SettingsFrame.MAX_FRAME_SIZE: 16_383})
def frame_setting(_):
    pass


@section("6.7", "PING of a wrong length", SIZE, GENERIC)
def short_ping(peer):
    peer.send(raw(6, 0, 0, bytes(6)))


@section("6.7", "PING on a stream", PROTOCOL)
def ping_on_1(peer):
    peer.send(raw(6, 0, 1, bytes(8)))


@section("6.8", "GOAWAY on a stream", PROTOCOL)
def goaway_on_1(peer):
    peer.send(raw(7, 0, 1, bytes(8)))


@section("6.9", "WINDOW_UPDATE of 0 for the connection", PROTOCOL)
def no_window(peer):
    peer.send(raw(8, 0, 0, bytes(4)))


@section("6.9", "WINDOW_UPDATE of 0 for a stream", PROTOCOL)
def no_stream_window(peer):
    peer.send(peer.upload(), raw(8, 0, 1, bytes(4)))


@section("6.9.1", "a window of the connection beyond the most", FLOW)
def window_overflow(peer):
    peer.send(WindowUpdateFrame(0, window_increment=(1 << 31) - 1), WindowUpdateFrame(0, window_increment=(1 << 31) - 1))


@section("6.9.1", "a window of a stream beyond the most", FLOW)
def stream_window_overflow(peer):
    peer.send(peer.upload(), WindowUpdateFrame(1, window_increment=(1 << 31) - 1),
              WindowUpdateFrame(1, window_increment=(1 << 31) - 1))


@section("6.9.1", "more DATA than the window", FLOW)
def beyond_window(peer):
    peer.send(peer.upload())
    overflow(peer)


@section("6.10", "CONTINUATION after the end of a header block", PROTOCOL)
def continuation(peer):
    peer.send(peer.upload(), ContinuationFrame(1, data=b"", flags=("END_HEADERS",)))


@section("6.10", "CONTINUATION without end", CALM, COMPRESSION, PROTOCOL)
def continuation_flood(peer):
    peer.send(peer.request(flags=("END_STREAM",)))
    for number in range(2000):
        peer.send(ContinuationFrame(1, data=peer.encoder.encode([(f"x-{number}", "x" * 500)])))


def broken_head(number, what, *head):
    @section(number, what, PROTOCOL)
    def send(peer):
        peer.send(HeadersFrame(1, data=peer.encoder.encode(head), flags=("END_HEADERS", "END_STREAM")))


USUAL = ((":method", "GET"), (":scheme", "http"), (":path", "/small.txt"), (":authority", "h"))
broken_head("8.2.1", "a name in capitals", *USUAL, ("X-Partition", "0"))
broken_head("8.2.2", "Connection", *USUAL, ("x-partition", "0"), ("connection", "keep-alive"))
broken_head("8.2.2", "TE other than trailers", *USUAL, ("x-partition", "0"), ("te", "trailers, deflate"))
broken_head("8.3", "a pseudo-header after the others", ("x-partition", "0"), *USUAL)
broken_head("8.3", "a pseudo-header that is none", *USUAL, (":test", "x"), ("x-partition", "0"))
broken_head("8.3", "a pseudo-header of answers", *USUAL, (":status", "200"), ("x-partition", "0"))
broken_head("8.3.1", "no method", *USUAL[1:], ("x-partition", "0"))
broken_head("8.3.1", "two paths", *USUAL, (":path", "/"), ("x-partition", "0"))
broken_head("8.3.1", "an empty path", *USUAL[:2], (":path", ""), USUAL[3], ("x-partition", "0"))


@section("8.1.1", "a length that is not that of the body", PROTOCOL)
def wrong_length(peer):
    peer.send(peer.upload(more=(("content-length", "5"),)),
              DataFrame(1, b"four", flags=("END_STREAM",)))


@section("8.1", "a second head that does not end the stream", PROTOCOL)
def second_head(peer):
    peer.send(peer.upload())
    peer.send(HeadersFrame(1, data=peer.encoder.encode([("x-more", "1")]), flags=("END_HEADERS",)))


def goes_on(number, what):
    def register(function):
        async def run(fixture):
            peer = await Peer.connect(fixture.nginx1)
            await asyncio.wait_for(function(peer), 20)
            peer.close()

        check("HTTP/2", "hyperframe", "nginx, HTTP/1.1", f"{number} {what}")(run)
        return function

    return register


@goes_on("3.4", "SETTINGS are sent first, and acknowledged")
async def settings(peer):
    first = await peer.frame()
    assert isinstance(first, SettingsFrame) and "ACK" not in first.flags, first
    await peer.until(lambda frame: isinstance(frame, SettingsFrame) and "ACK" in frame.flags)


@goes_on("4.1, 5.5", "unknown frames, flags and settings are ignored")
async def unknown(peer):
    peer.send(raw(0xbe, 0xff, 0, b"unknown"), raw(4, 0, 0, struct.pack(">HI", 0xff, 1)), peer.request(1))
    await peer.answers(1)


@goes_on("6.3", "PRIORITY is allowed at any time")
async def priority(peer):
    peer.send(PriorityFrame(7, depends_on=0, stream_weight=5), peer.request(1))
    await peer.answers(1)
    peer.send(PriorityFrame(1, depends_on=0, stream_weight=5), peer.request(3))
    await peer.answers(3)


@goes_on("6.7", "PING is answered with what it said")
async def ping(peer):
    peer.send(PingFrame(0, opaque_data=b"as it is"))
    answer = await peer.until(lambda frame: isinstance(frame, PingFrame))
    assert "ACK" in answer.flags and answer.opaque_data == b"as it is", answer


@goes_on("6.9", "an answer never exceeds the window of its stream")
async def window(peer):
    peer.send(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 4}), peer.request(1))
    data = b""
    while data != b"small file\n":
        frame = await peer.until(lambda frame: isinstance(frame, DataFrame))
        assert len(frame.data) <= 4, frame
        data += frame.data
        if "END_STREAM" in frame.flags:
            break
        peer.send(WindowUpdateFrame(1, window_increment=4))
    assert data == b"small file\n", data


@goes_on("6.10", "a head in CONTINUATION frames")
async def continued(peer):
    block = peer.request(more=tuple((f"x-{number}", "x" * 400) for number in range(20))).data
    peer.send(HeadersFrame(1, data=block[:10], flags=("END_STREAM",)))
    # Few and large, as clients send them: more of them than a full head needs are taken for a flood.
    each = len(block) // 4
    pieces = [block[at:at + each] for at in range(10, len(block), each)]
    for number, piece in enumerate(pieces):
        peer.send(ContinuationFrame(1, data=piece, flags=("END_HEADERS",) if number == len(pieces) - 1 else ()))
    await peer.answers(1)


@goes_on("5.1.2", "as many streams at once as are allowed, and one more is refused alone")
async def streams(peer):
    first = await peer.frame()
    most = first.settings[SettingsFrame.MAX_CONCURRENT_STREAMS]
    for number in range(most + 1):
        peer.send(peer.upload(2 * number + 1))
    last = 2 * most + 1
    reset = await peer.until(lambda frame: isinstance(frame, (RstStreamFrame, GoAwayFrame)) and frame.stream_id in (0, last))
    assert isinstance(reset, RstStreamFrame) and reset.error_code == REFUSED, reset
    peer.send(PingFrame(0, opaque_data=b"still up"))
    await peer.until(lambda frame: isinstance(frame, PingFrame) and frame.opaque_data == b"still up")


@check("HTTP/2", "socket", "nginx, HTTP/1.1", "3.4 a preface that is wrong at its end")
async def wrong_preface(fixture):
    peer = await Peer.connect(fixture.nginx1, preface=PREFACE[:-2] + b"XX")
    rest = await asyncio.wait_for(peer.reader.read(), 10)
    assert rest == b"" or rest.startswith(b"HTTP/1.1 4"), rest
    peer.close()


@check("HTTP/2", "hyperframe", "nginx, HTTP/1.1", "rapid reset: 5,000 requests taken back at once; others go on")
async def rapid_reset(fixture):
    bystander = await Peer.connect(fixture.nginx1)
    peer = await Peer.connect(fixture.nginx1)
    for number in range(5000):
        peer.send(peer.request(2 * number + 1), RstStreamFrame(2 * number + 1, error_code=CANCEL))
    try:
        await peer.writer.drain()
    except ConnectionError:
        pass
    for number in range(20):
        bystander.send(bystander.request(2 * number + 1))
        await asyncio.wait_for(bystander.answers(2 * number + 1), 5)
    peer.close()
    bystander.close()
