//! Fuzzes the router's real server with the bytes of an HTTP/2 client, after the preface. The pod uses either version.
//!
//! # Invariants
//!
//! * Each request that reaches the pod was sent whole on a stream of its own, is well-formed, and has the router's own
//!   stamps.
//! * The connection ends with its input and leaves nothing in flight.
//! * The client gets frames on streams that it opened.
//! * If a client sends only plain requests, the pod answers all of them.
//!
//! # Input
//!
//! The first byte tells how to read the rest. Bit 0 selects raw bytes or parts to build frames from, bit 1 the version
//! of the pod, bit 2 whether the client closes at once or leaves time for responses. The second byte tells where the
//! bytes are cut ([`pieces::cut`]). So a seed is two digits, followed by the bytes themselves.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use segue_proxy::settings::UpstreamProtocol;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::Outcome;
use crate::support::frames::{self, ACK, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, SETTINGS, Sent};
use crate::support::pieces;
use crate::support::router::{Ending, Router, Served};
use crate::support::wire::Message;

/// More turns than a request to the pod and its response take.
const TURNS: usize = 50;
/// `:status: 200` in HPACK's static table.
const STATUS_200: u8 = 0x88;

thread_local! {
    static ROUTERS: (LocalRuntime, [Router; 2]) = {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
        let routers = runtime.block_on(async {
            [Router::new(UpstreamProtocol::Http1).await, Router::new(UpstreamProtocol::Http2).await]
        });
        (runtime, routers)
    };
}

pub fn run(data: &[u8]) -> Outcome {
    let [how, cut, rest @ ..] = data else { return Outcome::NoInput };
    let mut bytes = vec![*cut];
    bytes.extend_from_slice(frames::PREFACE);
    let mut plain = None;
    if how & 1 == 0 {
        bytes.extend_from_slice(rest);
    } else {
        let Ok(parts) = Vec::<Part<'_>>::arbitrary_take_rest(Unstructured::new(rest)) else { return Outcome::NoInput };
        Client::default().write_all(&parts, &mut bytes);
        plain = parts.iter().all(Part::is_plain).then_some(parts.len());
    }
    let Some((_, pieces)) = pieces::cut(&bytes) else { return Outcome::NoInput };
    let ending = match plain {
        Some(streams) => Ending::Answered { streams },
        None => Ending::Close { turns: if how & 4 == 0 { TURNS } else { 0 } },
    };
    ROUTERS.with(|(runtime, routers)| {
        let served = runtime.block_on(routers[usize::from(how >> 1 & 1)].serve(&pieces, ending));
        let Served { answers, seen, late } = served;
        check(&bytes[1..], &answers, &seen, plain);
        for client in late {
            let sent = behind_preface(&client.sent);
            check_requests(&sent, &frames::streams(&sent), &client.seen);
        }
    });
    Outcome::Checked
}

/// Returns the frames that a client has sent.
fn behind_preface(sent: &[u8]) -> Vec<Frame<'_>> {
    frames::read(sent.get(frames::PREFACE.len()..).unwrap_or_default())
}

/// Checks the invariants. `plain` is the number of requests if all of them are plain and the client sends nothing else.
fn check(sent: &[u8], answers: &[u8], seen: &[Message], plain: Option<usize>) {
    let sent = behind_preface(sent);
    let streams = frames::streams(&sent);
    check_requests(&sent, &streams, seen);
    check_answers(answers, &streams, seen.len(), plain);
}

/// Checks that each request at the pod was sent, on a stream of its own.
fn check_requests(sent: &[Frame<'_>], streams: &BTreeMap<u32, Sent>, seen: &[Message]) {
    let mut left: Vec<&Sent> = streams.values().collect();
    // A body is whole once it has its declared length, whether the client then ends the stream or sends more. A
    // declared length of zero is not always passed on.
    let is_sized = |request: &&Message| {
        let length = request.body.len().to_string();
        let mut lengths = request.all("content-length").peekable();
        let is_none = request.body.is_empty() && request.all("transfer-encoding").next().is_none();
        (lengths.peek().is_none() && is_none) || lengths.any(|stated| stated == length.as_bytes())
    };
    let (sized, others): (Vec<&Message>, Vec<&Message>) = seen.iter().partition(is_sized);
    let take = |request: &Message, index: Option<usize>, left: &mut Vec<&Sent>| {
        left.swap_remove(index.unwrap_or_else(|| panic!("the client did not send {request:?}: {sent:?}")));
    };
    for request in others {
        let index = left.iter().position(|of| of.ended && of.body == request.body);
        take(request, index, &mut left);
    }
    for request in sized {
        let begins = |of: &&&Sent| of.body.starts_with(&request.body);
        let open = left.iter().position(|of| !of.ended && begins(&of));
        let index = open.or_else(|| left.iter().position(|of| begins(&of)));
        take(request, index, &mut left);
    }
}

/// Checks that the client gets answers to what it has sent. `seen`: how many requests the pod has got.
fn check_answers(answers: &[u8], streams: &BTreeMap<u32, Sent>, seen: usize, plain: Option<usize>) {
    let answers = frames::read(answers);
    let first = answers.first().is_none_or(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0);
    assert!(first, "the first frame is {:?}", answers[0]);
    let (mut ended, mut served) = (Vec::new(), 0);
    for frame in answers.iter().filter(|frame| matches!(frame.kind, DATA | HEADERS)) {
        assert!(streams.contains_key(&frame.stream), "an answer to nothing: {frame:?}");
        assert!(!ended.contains(&frame.stream), "behind the end of an answer: {frame:?}");
        if frame.flags & END_STREAM != 0 {
            ended.push(frame.stream);
        }
        served += usize::from(frame.kind == HEADERS && frame.payload.first() == Some(&STATUS_200));
    }
    if let Some(requests) = plain {
        assert_eq!((seen, served), (requests, requests), "requests that the pod got, and that were answered");
    }
}

#[derive(Debug, Arbitrary)]
enum Part<'a> {
    /// A whole request on a stream of its own.
    Request {
        head: Head<'a>,
        body: Option<&'a [u8]>,
        trailers: Option<Vec<Field<'a>>>,
    },
    /// The head of a request whose rest may follow.
    Open(Head<'a>),
    Data {
        stream: u8,
        bytes: &'a [u8],
        ended: bool,
        padding: Option<u8>,
    },
    Trailers {
        stream: u8,
        fields: Vec<Field<'a>>,
    },
    Settings {
        name: u8,
        value: u32,
    },
    Ping,
    Window {
        stream: u8,
        by: u32,
    },
    Reset {
        stream: u8,
        why: u8,
    },
    Priority {
        stream: u8,
        above: u32,
    },
    GoAway,
    Frame {
        kind: u8,
        flags: u8,
        stream: u8,
        payload: &'a [u8],
    },
    Bytes(&'a [u8]),
}

impl Part<'_> {
    /// Returns whether this is a whole request that the router must send to the pod.
    fn is_plain(&self) -> bool {
        let Part::Request { head, trailers: None, .. } = self else { return false };
        head.odd.is_none() && head.fields.is_empty() && head.method() != b"CONNECT"
    }
}

#[derive(Debug, Arbitrary)]
struct Head<'a> {
    method: u8,
    /// A pseudo-header with another value than usual. `None` in place of the value leaves it out.
    odd: Option<(u8, Option<&'a [u8]>)>,
    fields: Vec<Field<'a>>,
    /// The position at which the head continues in another frame.
    split: Option<u8>,
}

#[derive(Debug, Arbitrary)]
enum Field<'a> {
    Known(u8, u8),
    Named(u8, &'a [u8]),
    Free(&'a [u8], &'a [u8]),
}

const METHODS: [&[u8]; 6] = [b"GET", b"POST", b"HEAD", b"PUT", b"CONNECT", b"OPTIONS"];
const NAMES: [&[u8]; 26] = [
    b"segue-partition",
    b"segue-epoch",
    b"segue-router",
    b"segue-keyspace",
    b"Segue-Epoch",
    b"x-partition",
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"connection",
    b"keep-alive",
    b"upgrade",
    b"te",
    b"trailer",
    b"expect",
    b"x-forwarded-for",
    b"via",
    b"grpc-timeout",
    b"content-type",
    b"cookie",
    b"proxy-connection",
    b":path",
    b":protocol",
    b":status",
    b"http2-settings",
    b"x-a",
];
const VALUES: [&[u8]; 16] = [
    b"0",
    b"1",
    b"2",
    b"9",
    b"r",
    b"k",
    b"h",
    b"",
    b"trailers",
    b"chunked",
    b"close",
    b"100-continue",
    b"websocket",
    b"segue-epoch",
    b"application/grpc",
    b"1\r\nsegue-epoch: 9",
];

impl Field<'_> {
    fn write(&self, to: &mut Vec<u8>) {
        let name = |index: u8| NAMES[usize::from(index) % NAMES.len()];
        match self {
            Field::Known(index, value) => frames::field(to, name(*index), VALUES[usize::from(*value) % VALUES.len()]),
            Field::Named(index, value) => frames::field(to, name(*index), value),
            Field::Free(name, value) => frames::field(to, name, value),
        }
    }
}

impl Head<'_> {
    fn method(&self) -> &'static [u8] {
        METHODS[usize::from(self.method) % METHODS.len()]
    }

    fn block(&self) -> Vec<u8> {
        let mut block = Vec::new();
        let usual: [(&[u8], &[u8]); 4] =
            [(b":method", self.method()), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"h")];
        for (index, (name, value)) in usual.into_iter().enumerate() {
            match &self.odd {
                Some((which, odd)) if usize::from(which % 4) == index => {
                    odd.iter().for_each(|value| frames::field(&mut block, name, value));
                }
                _ => frames::field(&mut block, name, value),
            }
        }
        frames::field(&mut block, b"x-partition", b"0");
        self.fields.iter().for_each(|field| field.write(&mut block));
        block
    }
}

/// Builds frames. Streams are numbered as a client must number them.
#[derive(Default)]
struct Client {
    opened: u32,
}

impl Client {
    fn write_all(&mut self, parts: &[Part<'_>], to: &mut Vec<u8>) {
        frames::write(to, SETTINGS, 0, 0, &[]);
        parts.iter().for_each(|part| self.write(part, to));
    }

    fn write(&mut self, part: &Part<'_>, to: &mut Vec<u8>) {
        let stream = |index: u8| 2 * (u32::from(index) % (self.opened + 1)) + 1;
        match part {
            Part::Request { head, body, trailers } => {
                let stream = self.open(head, body.is_none() && trailers.is_none(), to);
                if let Some(body) = body {
                    frames::write(to, DATA, if trailers.is_none() { END_STREAM } else { 0 }, stream, body);
                }
                if let Some(fields) = trailers {
                    write_trailers(to, stream, fields);
                }
            }
            Part::Open(head) => drop(self.open(head, false, to)),
            Part::Data { stream: index, bytes, ended, padding } => {
                let mut payload: Vec<u8> = padding.iter().copied().chain(bytes.iter().copied()).collect();
                payload.resize(payload.len() + usize::from(padding.unwrap_or(0)), 0);
                let padded = if padding.is_some() { frames::PADDED } else { 0 };
                frames::write(to, DATA, (u8::from(*ended) * END_STREAM) | padded, stream(*index), &payload);
            }
            Part::Trailers { stream: index, fields } => write_trailers(to, stream(*index), fields),
            Part::Settings { name, value } => {
                let mut payload = vec![0, name % 10];
                payload.extend_from_slice(&value.to_be_bytes());
                frames::write(to, SETTINGS, 0, 0, &payload);
            }
            Part::Ping => frames::write(to, frames::PING, 0, 0, b"12345678"),
            Part::Window { stream: index, by } => {
                let stream = if *index == 0 { 0 } else { stream(*index) };
                frames::write(to, frames::WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
            }
            Part::Reset { stream: index, why } => {
                frames::write(to, frames::RST_STREAM, 0, stream(*index), &u32::from(*why).to_be_bytes());
            }
            Part::Priority { stream: index, above } => {
                let mut payload = above.to_be_bytes().to_vec();
                payload.push(7);
                frames::write(to, frames::PRIORITY, 0, stream(*index), &payload);
            }
            Part::GoAway => frames::write(to, frames::GOAWAY, 0, 0, &[0; 8]),
            Part::Frame { kind, flags, stream, payload } => {
                frames::write(to, kind % 12, *flags, u32::from(*stream), payload);
            }
            Part::Bytes(bytes) => to.extend_from_slice(bytes),
        }
    }

    /// Opens a stream and returns its number.
    fn open(&mut self, head: &Head<'_>, ended: bool, to: &mut Vec<u8>) -> u32 {
        let stream = 2 * self.opened + 1;
        self.opened += 1;
        let block = head.block();
        let at = head.split.map_or(block.len(), |at| usize::from(at).min(block.len()));
        let all = if at == block.len() { END_HEADERS } else { 0 };
        frames::write(to, HEADERS, (u8::from(ended) * END_STREAM) | all, stream, &block[..at]);
        if at < block.len() {
            frames::write(to, frames::CONTINUATION, END_HEADERS, stream, &block[at..]);
        }
        stream
    }
}

fn write_trailers(to: &mut Vec<u8>, stream: u32, fields: &[Field<'_>]) {
    let mut block = Vec::new();
    fields.iter().for_each(|field| field.write(&mut block));
    frames::write(to, HEADERS, END_STREAM | END_HEADERS, stream, &block);
}
