//! The writer over HTTP: converts requests to reads and writes, and results to responses.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use rand::RngExt;
use segue_protocol::ids::{Epoch, PartitionId};

use super::super::clock;
use super::{KeyEntry, KeyWrite, Writer};

/// The largest accepted value.
const MAX_VALUE: usize = 64 << 10;

/// The names of the headers that clients and writers exchange.
pub mod names {
    use http::HeaderName;
    use segue_protocol::headers;

    /// The number of a request.
    pub const REQUEST: HeaderName = HeaderName::from_static("x-request-id");
    /// The client's sequence number of a key's writes; in a response, the highest that the pod knows.
    pub const SEQUENCE: HeaderName = HeaderName::from_static("x-sequence");
    /// The pod that responded.
    pub const WRITER: HeaderName = HeaderName::from_static("x-writer");
    /// The epoch of the response.
    pub const EPOCH: HeaderName = HeaderName::from_static("x-epoch");
    /// The partition. Routers route by it.
    pub const PARTITION: HeaderName = HeaderName::from_static("x-partition");
    /// The key. Routers keep the order of its requests.
    pub const KEY: HeaderName = HeaderName::from_static("x-key");
    /// Stamped by routers.
    pub const SEGUE_PARTITION: HeaderName = HeaderName::from_static(headers::SEGUE_PARTITION);
    /// Stamped by routers.
    pub const SEGUE_EPOCH: HeaderName = HeaderName::from_static(headers::SEGUE_EPOCH);
    /// The reason, on every local reply of a router.
    pub const SEGUE_REASON: HeaderName = HeaderName::from_static(headers::SEGUE_REASON);
}

/// The writer as a tower service.
#[derive(Debug, Clone)]
pub struct WriterService {
    writer: Writer,
}

impl WriterService {
    /// Returns a service for `writer`.
    pub fn new(writer: Writer) -> Self {
        WriterService { writer }
    }
}

type Answer = Response<Full<Bytes>>;

impl<B> tower::Service<Request<B>> for WriterService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let writer = self.writer.clone();
        Box::pin(async move { Ok(handle(&writer, request).await) })
    }
}

async fn handle<B>(writer: &Writer, request: Request<B>) -> Answer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let Some(key) = head.uri.path().strip_prefix("/keys/").filter(|key| !key.is_empty()) else {
        return plain(StatusCode::NOT_FOUND, "the writer has /keys/{key}");
    };
    let (Some(partition), Some(epoch)) =
        (number(&head.headers, &names::SEGUE_PARTITION), number(&head.headers, &names::SEGUE_EPOCH))
    else {
        return plain(StatusCode::BAD_REQUEST, "not stamped with partition and epoch: it came by no router");
    };
    if let Err(error) = writer.claim(partition, epoch) {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("the log failed: {error}"));
    }
    // The time is taken after the claim: before it, an earlier epoch may still write.
    let accepted_at = clock::now();
    match head.method {
        Method::GET => {
            work(writer).await;
            let Ok(entry) = writer.read(partition, key) else { return no_state(partition) };
            stamped(writer, epoch, entry.as_ref().map_or(0, |entry| entry.highest), entry.as_ref())
        }
        Method::PUT | Method::POST => {
            let (Some(request), Some(sequence)) =
                (number(&head.headers, &names::REQUEST), number(&head.headers, &names::SEQUENCE))
            else {
                return plain(StatusCode::BAD_REQUEST, "a write has x-request-id and x-sequence");
            };
            let Ok(body) = Limited::new(body, MAX_VALUE).collect().await else {
                return plain(StatusCode::BAD_REQUEST, "the value is too large, or did not arrive whole");
            };
            let value = String::from_utf8_lossy(&body.to_bytes()).into();
            let write = KeyWrite { partition, epoch, request, key: key.into(), sequence, value, accepted_at };
            // Half of the work comes before the write and half after it, so that a pod that is cut off leaves both
            // kinds of doubt.
            work(writer).await;
            let answer = put(writer, write);
            work(writer).await;
            answer
        }
        _ => plain(StatusCode::METHOD_NOT_ALLOWED, "GET, PUT or POST"),
    }
}

fn put(writer: &Writer, write: KeyWrite) -> Answer {
    let (partition, epoch, sequence) = (write.partition, write.epoch, write.sequence);
    match writer.write(write) {
        Ok(Some(_)) => stamped(writer, epoch, sequence, None),
        Ok(None) => no_state(partition),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("the log failed: {error}")),
    }
}

/// Waits for about half of the service time.
async fn work(writer: &Writer) {
    let half = writer.settings().service_time / 2;
    if !half.is_zero() {
        let share = rand::rng().random_range(0.5..1.5);
        tokio::time::sleep(half.mul_f64(share)).await;
    }
}

fn number<N: FromStr>(headers: &HeaderMap, name: &HeaderName) -> Option<N> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Returns a response with the epoch, the highest sequence number of the key, and the value if there is one.
fn stamped(writer: &Writer, epoch: Epoch, highest: u64, entry: Option<&KeyEntry>) -> Answer {
    let body = entry.map_or_else(String::new, |entry| entry.value.to_string());
    let mut answer = Response::new(Full::from(body));
    let headers = answer.headers_mut();
    headers.insert(names::EPOCH, epoch.get().into());
    headers.insert(names::SEQUENCE, highest.into());
    // The name is that of a registration, which is visible ASCII.
    headers.extend(HeaderValue::from_str(writer.name()).ok().map(|name| (names::WRITER, name)));
    answer
}

/// Returns the response if the ownership layer admits a request by mistake: this pod has no state of the partition.
fn no_state(partition: PartitionId) -> Answer {
    tracing::error!(partition = partition.get(), "a request was let in and there is no state");
    plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("no state of partition {partition}"))
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::from(format!("{text}\n")));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::{HandoffId, Revision};
    use tower::ServiceExt;

    use super::super::super::log::Log;
    use super::super::WriterSettings;
    use super::*;

    const H9: HandoffId = HandoffId::created_at(Revision::new(9));
    const P7: PartitionId = PartitionId::new(7);

    async fn ask(
        service: &WriterService,
        method: Method,
        headers: &[(HeaderName, u64)],
        body: &str,
    ) -> (StatusCode, String, u64) {
        let mut request = Request::new(Full::from(body.to_owned()));
        *request.uri_mut() = "/keys/k".parse().unwrap();
        *request.method_mut() = method;
        request.headers_mut().extend(headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from(*value))));
        let answer = service.clone().oneshot(request).await.unwrap();
        let (status, seen) = (answer.status(), number(answer.headers(), &names::SEQUENCE).unwrap_or(0));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into(), seen)
    }

    #[tokio::test]
    async fn a_write_is_read_back_with_its_sequence() {
        let writer = Writer::new("w", Log::in_memory(), WriterSettings::default());
        writer.warm(P7, H9, None).unwrap();
        let service = WriterService::new(writer);
        let stamps = [(names::SEGUE_PARTITION, 7), (names::SEGUE_EPOCH, 2)];
        let all = [stamps[0].clone(), stamps[1].clone(), (names::REQUEST, 1), (names::SEQUENCE, 5)];
        assert_eq!(ask(&service, Method::PUT, &all, "hello").await, (StatusCode::OK, String::new(), 5));
        assert_eq!(ask(&service, Method::GET, &stamps, "").await, (StatusCode::OK, "hello".into(), 5));
        assert_eq!(ask(&service, Method::PUT, &stamps, "").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(ask(&service, Method::GET, &[], "").await.0, StatusCode::BAD_REQUEST);
    }
}
