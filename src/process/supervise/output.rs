//! The lines that a supervised service writes, for a sidecar that shows them in its own way.
//!
//! # Invariants
//!
//! * A line that is longer than [`MAX_LINE`] comes in pieces. Nothing else is kept.
//! * Each stream has a thread, which may wait for whoever reads what is shown. Then the service waits as well.

use std::fmt::Debug;
use std::io::{self, BufRead as _, BufReader, Read};
use std::process::Child;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Most bytes that are shown as one line.
const MAX_LINE: u64 = 16 << 10;
/// How long the end of a service waits for its last lines to be shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// A stream that a service writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What a service's lines go to.
pub(crate) trait ServiceOutput: Debug + Send + Sync {
    /// Takes a line, without its end. May block.
    fn line(&self, stream: OutputStream, line: &[u8]);
}

/// The threads that read a service's output.
#[derive(Debug)]
pub(super) struct OutputReaders(Vec<oneshot::Receiver<()>>);

impl OutputReaders {
    /// Reads the streams of this process that are pipes.
    pub(super) fn start(process: &mut Child, output: &Arc<dyn ServiceOutput>) -> io::Result<Self> {
        let out = process.stdout.take().map(|out| read(out, OutputStream::Out, output.clone()));
        let err = process.stderr.take().map(|err| read(err, OutputStream::Err, output.clone()));
        Ok(OutputReaders(out.into_iter().chain(err).collect::<io::Result<_>>()?))
    }

    /// Returns the readers of nothing.
    pub(super) fn none() -> Self {
        OutputReaders(Vec::new())
    }

    /// Returns once everything has been shown, or nobody reads it. To be called when all who write are dead.
    pub(super) async fn ended(self) {
        let _ = timeout(PATIENCE, join_all(self.0)).await;
    }
}

fn read(
    source: impl Read + Send + 'static,
    stream: OutputStream,
    output: Arc<dyn ServiceOutput>,
) -> io::Result<oneshot::Receiver<()>> {
    let (done, ended) = oneshot::channel();
    thread::Builder::new().name("service-output".to_owned()).spawn(move || {
        lines(source, |line| output.line(stream, line));
        let _ = done.send(());
    })?;
    Ok(ended)
}

/// Calls `of` with each line, until the end or an error.
fn lines(source: impl Read, mut of: impl FnMut(&[u8])) {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        match source.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => of(line.strip_suffix(b"\n").unwrap_or(&line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_and_a_long_one_in_pieces() {
        let long = vec![b'x'; MAX_LINE as usize + 1];
        let text = [b"a\n\nb\r\n", &long[..], b"\nlast"].concat();
        let mut found = Vec::new();
        lines(&text[..], |line| found.push(line.to_vec()));
        let (piece, rest) = long.split_at(MAX_LINE as usize);
        assert_eq!(found, [b"a", &b""[..], b"b\r", piece, rest, b"last"]);
    }
}
