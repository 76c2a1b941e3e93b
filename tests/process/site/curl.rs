//! curl, as a client that speaks HTTP/1.1, HTTP/2 and gRPC.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// A way to send a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    /// HTTP/2, with the headers of a gRPC call.
    Grpc,
}

/// A response as curl prints it.
#[derive(Debug)]
pub(crate) struct CurlOutput {
    /// Its head and its body.
    pub(crate) text: String,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Protocol::Http1, Protocol::Http2, Protocol::Grpc];

    /// Returns the response to a `POST` of this body, with `more` arguments of curl.
    pub(crate) fn post(self, url: &str, more: &[&str], body: &[u8]) -> CurlOutput {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--include", "--max-time", "60"]);
        curl.arg(match self {
            Protocol::Http1 => "--http1.1",
            _ if url.starts_with("https:") => "--http2",
            _ => "--http2-prior-knowledge",
        });
        if self == Protocol::Grpc {
            curl.args(["--header", "content-type: application/grpc", "--header", "te: trailers"]);
        }
        curl.args(more).args(["--data-binary", "@-", url]).stdin(Stdio::piped());
        let mut running = curl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        running.stdin.take().unwrap().write_all(body).unwrap();
        let output = running.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{self:?} {url} {more:?}: {stderr}{text}");
        CurlOutput { text }
    }
}

impl CurlOutput {
    /// Returns the body.
    pub(crate) fn body(&self) -> &str {
        self.text.rsplit("\r\n\r\n").next().unwrap_or_default()
    }

    /// Returns whether it is that of a service which says `grpc-status`.
    pub(crate) fn is_served(&self) -> bool {
        self.text.contains("grpc-status: 0") && !self.text.contains("segue-reason")
    }
}
