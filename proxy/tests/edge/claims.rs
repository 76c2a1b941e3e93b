//! Headers by which a client could speak for a proxy, for the router or for another key, and what of them reaches a pod.

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use segue_proxy::settings::UpstreamProtocol;
use tokio::io::AsyncReadExt;

use super::recorder::Recorder;
use crate::support::client::{Body, empty, stream};
use crate::support::pod::Speaks;
use crate::support::wire::Message;
use crate::support::{Fixture, P0, Settings};

/// Sends this head by HTTP/1.1. Returns the request that the pod gets.
async fn passed_on(fixture: &Fixture, pod: &Recorder, head: &str) -> Message {
    let text = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
    assert_eq!(fixture.ask(text).await.status, 200);
    pod.requests().await.pop().unwrap()
}

fn values(request: &Message, name: &str) -> Vec<String> {
    request.all(name).map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
}

const CLAIMS: &str = "GET / HTTP/1.1\nhost: h\nx-partition: 0\nx-forwarded-for: 1.2.3.4\nx-forwarded-proto: https\n\
    x-forwarded-host: bank\nx-forwarded-port: 443\nforwarded: for=1.2.3.4;proto=https";

#[tokio::test]
async fn a_client_does_not_say_where_it_comes_from() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let request = passed_on(&fixture, &pod, CLAIMS).await;
    assert_eq!(values(&request, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(values(&request, "x-forwarded-proto"), ["http"]);
    for dropped in ["x-forwarded-host", "x-forwarded-port", "forwarded"] {
        assert!(!request.has(dropped), "{dropped}");
    }
}

/// Answers with the headers and trailers that a pod by HTTP/2 gets.
async fn mirror(request: http::Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
    let mut answer = Response::new(empty());
    let told = |prefix: &str, from: &HeaderMap, to: &mut HeaderMap| {
        for (name, value) in from {
            to.append(HeaderName::try_from(format!("{prefix}-{name}")).unwrap(), value.clone());
        }
    };
    told("got", &head.headers, answer.headers_mut());
    told("trailer", &trailers, answer.headers_mut());
    answer
}

#[tokio::test]
async fn a_trusted_proxy_says_where_its_clients_come_from() {
    let fixture = Fixture::with(Settings::with(|settings| settings.forward.trust_forwarded = true));
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let request = passed_on(&fixture, &pod, CLAIMS).await;
    assert_eq!(values(&request, "x-forwarded-for"), ["1.2.3.4, 127.0.0.1"]);
    assert_eq!(values(&request, "x-forwarded-proto"), ["https"]);
    assert_eq!(values(&request, "x-forwarded-host"), ["bank"]);
    assert_eq!(values(&request, "forwarded"), ["for=1.2.3.4;proto=https"]);
}

#[tokio::test]
async fn an_http2_client_does_not_say_where_it_comes_from() {
    let fixture = Fixture::of_http2_pods();
    let _pod = fixture.pod(Speaks::Http2, mirror).await;
    let client = fixture.http2_client().await;
    let request = client.request("GET", "/").header("x-forwarded-for", "1.2.3.4").header("x-forwarded-proto", "https");
    let request = request.header("x-forwarded-host", "bank").header("forwarded", "for=1.2.3.4");
    let answer = client.ask(request.body(empty()).unwrap()).await;
    assert_eq!(answer.header("got-x-forwarded-for"), "127.0.0.1");
    assert_eq!(answer.header("got-x-forwarded-proto"), "http");
    assert_eq!(answer.header("got-x-forwarded-host"), "");
    assert_eq!(answer.header("got-forwarded"), "");
}

#[tokio::test]
async fn a_client_cannot_speak_for_the_router_not_even_with_underscores() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 7);
    let forged = "GET / HTTP/1.1\nhost: h\nx-partition: 0\nx-key: a\nsegue-misdirected: 1\nsegue-reason: fenced\n\
        segue_epoch: 99\nSegue_Partition: 3\nsegue-router: me\nx_forwarded_for: 1.2.3.4\nX_Forwarded-Proto: https\n\
        x_partition: 3\nx_key: b\ncontent_length: 9\ntransfer_encoding: chunked\nmy_own: kept";
    let request = passed_on(&fixture, &pod, forged).await;
    assert_eq!(values(&request, "segue-epoch"), ["7"]);
    assert_eq!(values(&request, "x-key"), ["a"]);
    assert_eq!(values(&request, "my_own"), ["kept"]);
    let names: Vec<_> = request.fields.iter().map(|(name, _)| name.as_str()).collect();
    let underscored: Vec<_> = names.iter().filter(|name| name.contains('_')).collect();
    assert_eq!(underscored, [&"my_own"]);
    assert!(!names.contains(&"segue-misdirected") && !names.contains(&"segue-reason"), "{names:?}");
}

#[tokio::test]
async fn trailers_of_a_request_neither_route_nor_speak_for_the_router() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let head = "PUT / HTTP/1.1\nhost: h\nx-partition: 0\ntransfer-encoding: chunked\n\n0\nx-partition: 3\nx-key: b\n\
        segue-misdirected: 1\nsegue-reason: fenced\nsegue_epoch: 9\nx_key: c\nforwarded: for=x\nx-forwarded-host: y\n\
        cookie: sid=1\nx-sum: 7";
    let request = passed_on(&fixture, &pod, head).await;
    assert_eq!(request.trailers, [("x-sum".to_owned(), b"7".to_vec())]);

    let fixture = Fixture::of_http2_pods();
    let _pod = fixture.pod(Speaks::Http2, mirror).await;
    let client = fixture.http2_client().await;
    let (frames, body) = stream();
    let mut trailers = HeaderMap::new();
    for name in ["x-partition", "x-key", "segue-misdirected", "segue-reason", "segue_epoch", "forwarded", "x-sum"] {
        trailers.insert(name, HeaderValue::from_static("1"));
    }
    frames.send(Some(http_body::Frame::trailers(trailers))).unwrap();
    frames.send(None).unwrap();
    let answer = client.ask(client.request("PUT", "/").body(body).unwrap()).await;
    let told: Vec<_> = answer.headers.keys().filter(|name| name.as_str().starts_with("trailer-")).collect();
    assert_eq!(told, ["trailer-x-sum"]);
}

#[tokio::test]
async fn cookies_that_came_in_pieces_are_one_line_for_a_pod_by_http1() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let client = fixture.http2_client().await;
    let request = client.request("GET", "/").header("cookie", "a=1").header("x-a", "b").header("cookie", "b=2; c=3");
    assert_eq!(client.ask(request.body(empty()).unwrap()).await.status, 200);
    let request = pod.requests().await.pop().unwrap();
    assert_eq!(values(&request, "cookie"), ["a=1; b=2; c=3"]);
    let request = passed_on(&fixture, &pod, "GET / HTTP/1.1\nhost: h\nx-partition: 0\ncookie: a=1\ncookie: b=2").await;
    assert_eq!(values(&request, "cookie"), ["a=1; b=2"]);
}

/// By HTTP/2 hyper takes a quote for a part of a name. Parsers of HTTP/1.1 refuse it.
#[tokio::test]
async fn a_name_with_a_quote_reaches_no_pod() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    let client = fixture.http2_client().await;
    let quoted = HeaderName::from_lowercase(b"x-\"a").unwrap();
    let request = client.request("GET", "/").header(&quoted, "b").body(empty()).unwrap();
    assert_eq!(client.ask(request).await.status, 400);
    let (frames, body) = stream();
    let mut trailers = HeaderMap::new();
    trailers.insert(quoted, HeaderValue::from_static("1"));
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    frames.send(Some(http_body::Frame::trailers(trailers))).unwrap();
    frames.send(None).unwrap();
    assert_eq!(client.ask(client.request("PUT", "/").body(body).unwrap()).await.status, 200);
    let requests = pod.requests().await;
    let names: Vec<_> = requests.iter().flat_map(|request| &request.trailers).map(|(name, _)| name.as_str()).collect();
    assert_eq!((requests.len(), names), (1, vec!["x-sum"]));
}

#[tokio::test]
async fn a_request_by_http11_names_its_host() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    for line in ["GET / HTTP/1.1", "GET http://h/ HTTP/1.1"] {
        let answer = fixture.ask(format!("{line}\r\nx-partition: 0\r\n\r\n")).await;
        assert_eq!(answer.reason(), (400, "ambiguous"), "{line}");
    }
    assert!(pod.requests().await.is_empty());
    // HTTP/1.0 has no such rule.
    let mut client = fixture.send("GET / HTTP/1.0\r\nx-partition: 0\r\n\r\n").await;
    let mut text = String::new();
    client.stream.read_to_string(&mut text).await.unwrap();
    assert!(text.contains(" 200 "), "{text}");
}

#[tokio::test]
async fn a_connection_header_hides_nothing_that_the_request_is_routed_by() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    for option in ["x-partition", "close, X-Key", "host", "cookie", "authorization", "content-length"] {
        let head = format!("GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nx-key: a\r\nconnection: {option}\r\n\r\n");
        assert_eq!(fixture.ask(head).await.reason(), (400, "ambiguous"), "{option}");
    }
    let head = format!("GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nconnection: {}\r\n\r\n", "a,".repeat(33));
    assert_eq!(fixture.ask(head).await.reason(), (400, "malformed"));
    assert!(pod.requests().await.is_empty());
}

#[tokio::test]
async fn a_target_that_is_no_path_and_a_host_that_is_two_reach_no_pod() {
    let fixture = Fixture::new();
    let pod = Recorder::start().await;
    fixture.route(P0, pod.address, 1);
    for target in ["a", "h:80", "user@h", "*"] {
        let answer = fixture.ask(format!("GET {target} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")).await;
        assert_eq!(answer.reason(), (400, "ambiguous"), "{target}");
    }
    for target in ["http:a", "gopher:x", "javascript:1"] {
        let answer = fixture.ask(format!("GET {target} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")).await;
        assert_eq!(answer.status, 400, "{target}");
    }
    for authority in ["h,g", "user@h", "user:pass@h:80", "a@b@h", "@h"] {
        let answer =
            fixture.ask(format!("GET http://{authority}/ HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")).await;
        assert_eq!(answer.reason(), (400, "ambiguous"), "{authority}");
    }
    for host in ["h/x", "h x", "h, g", "u@h", "h\\g", "h?", "h\tg"] {
        let answer = fixture.ask(format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-partition: 0\r\n\r\n")).await;
        assert_eq!(answer.reason(), (400, "ambiguous"), "{host}");
    }
    assert!(pod.requests().await.is_empty());
    for host in ["h:80", "[::1]:80", "a_b.c-d", "xn--h", ""] {
        passed_on(&fixture, &pod, &format!("GET / HTTP/1.1\nhost: {host}\nx-partition: 0")).await;
    }
    for authority in ["g:80", "[::1]:80", "a_b.c-d"] {
        passed_on(&fixture, &pod, &format!("GET http://{authority}/ HTTP/1.1\nhost: h\nx-partition: 0")).await;
    }
    passed_on(&fixture, &pod, "OPTIONS * HTTP/1.1\nhost: h\nx-partition: 0").await;
}
