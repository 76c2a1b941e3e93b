//! Requests and responses that pass through: both versions of HTTP on either side, bodies, trailers, headers, upgrades.

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use segue_protocol::ids::PartitionId;
use segue_proxy::settings::UpstreamProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::client::{Body, data, empty, full, stream};
use crate::support::pod::{Pod, Speaks, echo_body};
use crate::support::{BOTH_VERSIONS, Fixture, GET, P0, POST, POST_THAT_EXPECTS, Settings, get_at, post, soon};

const P3: PartitionId = PartitionId::new(3);

/// Answers with the body, and describes the request in headers.
async fn echo(request: http::Request<hyper::body::Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    let body = collected.to_bytes();
    let mut answer = Response::builder()
        .status(201)
        .header("x-method", head.method.as_str())
        .header("x-target", head.uri.path_and_query().map_or("", |path| path.as_str()))
        .header("x-version", format!("{:?}", head.version))
        .header("x-length", body.len());
    if let Some(trailers) = trailers {
        answer = answer.header("x-trailer", trailers["x-sum"].clone());
    }
    for (name, value) in &head.headers {
        answer = answer.header(format!("got-{name}"), value);
    }
    answer.body(full(body)).unwrap()
}

#[tokio::test]
async fn a_get_and_a_post_pass_by_http1() {
    let fixture = Fixture::new();
    let pod = fixture.pod(Speaks::Http1, echo).await;
    let mut client = fixture.client().await;
    let answer = client.ask("GET /a?b=1 HTTP/1.1\r\nhost: here\r\nx-partition: 0\r\n\r\n").await;
    assert_eq!((answer.status, answer.header("x-method"), answer.header("x-target")), (201, "GET", "/a?b=1"));
    let answer = client.ask(POST).await;
    assert_eq!((answer.status, answer.text()), (201, "hello"));
    let chunked = "PUT / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    assert_eq!(client.ask(chunked).await.text(), "hello world");
    let answer = client.ask("HEAD / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n").await;
    assert_eq!(answer.status, 201);
    assert_eq!(pod.connections.load(std::sync::atomic::Ordering::SeqCst), 1, "the connection to the pod is kept");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn each_version_passes_to_each_version() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let _pod = fixture.pod(speaks, echo).await;
        let version = if speaks == Speaks::Http1 { "HTTP/1.1" } else { "HTTP/2.0" };

        let mut http1 = fixture.client().await;
        let answer =
            http1.ask("POST /x?y HTTP/1.1\r\nhost: here\r\nx-partition: 0\r\ncontent-length: 5\r\n\r\nhello").await;
        assert_eq!((answer.text(), answer.header("x-version")), ("hello", version));
        let answer = http1.ask("GET /x HTTP/1.1\r\nhost: here\r\nx-partition: 0\r\n\r\n").await;
        assert_eq!((answer.header("x-target"), answer.header("x-length")), ("/x", "0"));

        let http2 = fixture.http2_client().await;
        let answer = http2.post("/x?y", full("hello")).await;
        assert_eq!((answer.text(), answer.header("x-version")), ("hello", version));
        assert_eq!(answer.header("x-target"), "/x?y");
        let answer = http2.get("/").await;
        assert_eq!((answer.status, answer.header("x-length")), (201, "0"));
        if speaks == Speaks::Http1 {
            assert_eq!(answer.header("got-host"), fixture.address.to_string());
        }
        fixture.in_flight(P0, 0).await;
    }
}

#[tokio::test]
async fn bodies_stream_both_ways_at_once() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let _pod = fixture
            .pod(
                speaks,
                |request| async move { Response::new(request.into_body().map_err(std::io::Error::other).boxed()) },
            )
            .await;
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        let answer = http2.begin_post("/", body).await.unwrap();
        let mut answer = answer.into_body();
        for word in ["one", "two", "three"] {
            sender.send(data(word)).unwrap();
            let frame = soon(answer.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), word);
        }
        fixture.in_flight(P0, 1).await;
        sender.send(None).unwrap();
        assert!(soon(answer.collect()).await.unwrap().to_bytes().is_empty());
        fixture.in_flight(P0, 0).await;
    }
}

#[tokio::test]
async fn large_bodies_arrive_whole() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let _pod = fixture.pod(speaks, echo_body).await;
        let bytes: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
        let http2 = fixture.http2_client().await;
        let answer = http2.post("/", full(bytes.clone())).await;
        assert!(answer.body == bytes);
        let mut http1 = fixture.send(post(&format!("content-length: {}", bytes.len()), "")).await;
        http1.write(&bytes).await;
        assert!(http1.answer().await.body == bytes);
    }
}

#[tokio::test]
async fn large_frames_of_a_body_without_length_arrive_whole() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let _pod = fixture.pod(Speaks::Http1, echo).await;
    let http2 = fixture.http2_client().await;
    let (sender, body) = stream();
    let mut sent = Vec::new();
    for bytes in [1, 4096, 4097, 16384, 3, 100_000, 0, 5] {
        let frame: Vec<u8> = (0..bytes as u32).map(|index| (index % 251) as u8).collect();
        sent.extend_from_slice(&frame);
        sender.send(Some(Frame::data(frame.into()))).unwrap();
    }
    sender
        .send(Some(Frame::trailers([("x-sum".parse().unwrap(), "9".parse().unwrap())].into_iter().collect())))
        .unwrap();
    sender.send(None).unwrap();
    let answer = http2.ask(http2.request("POST", "/").header("trailer", "x-sum").body(body).unwrap()).await;
    assert!(answer.body == sent);
    assert_eq!(answer.header("x-trailer"), "9");
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let _pod = fixture
            .pod(speaks, |request| async move {
                let takes = request.headers().get("te").cloned();
                let collected = request.into_body().collect().await.unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("x-sum", collected.trailers().unwrap()["x-sum"].clone());
                let (sender, body) = stream();
                sender.send(data("hello")).unwrap();
                sender.send(Some(Frame::trailers(trailers))).unwrap();
                sender.send(None).unwrap();
                let answer = Response::builder().header("trailer", "x-sum");
                answer.header("x-te", takes.unwrap()).body(body).unwrap()
            })
            .await;
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "7".parse().unwrap());
        sender.send(data("body")).unwrap();
        sender.send(Some(Frame::trailers(trailers))).unwrap();
        sender.send(None).unwrap();
        let request = http2.request("POST", "/").header("te", "trailers").header("trailer", "x-sum");
        let answer = http2.ask(request.body(body).unwrap()).await;
        assert_eq!((answer.text(), answer.trailers["x-sum"].to_str().unwrap()), ("hello", "7"));
        assert_eq!(answer.header("x-te"), "trailers");

        let mut http1 = fixture.client().await;
        let answer = http1
            .ask(post(
                "te: trailers\r\nconnection: te\r\ntrailer: x-sum\r\ntransfer-encoding: chunked",
                "4\r\nbody\r\n0\r\nx-sum: 8\r\n\r\n",
            ))
            .await;
        assert_eq!((answer.text(), answer.trailers["x-sum"].to_str().unwrap()), ("hello", "8"));
    }
}

#[tokio::test]
async fn a_grpc_call_passes_with_its_status_in_the_trailers() {
    let fixture = Fixture::new();
    let _pod = fixture
        .pod(Speaks::Http2, |request| async move {
            assert_eq!(request.headers()["te"], "trailers");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (sender, answer) = stream();
            sender.send(Some(Frame::data(body))).unwrap();
            let trailers = [("grpc-status".parse().unwrap(), "0".parse().unwrap())];
            sender.send(Some(Frame::trailers(trailers.into_iter().collect()))).unwrap();
            sender.send(None).unwrap();
            Response::builder().header("content-type", "application/grpc").body(answer).unwrap()
        })
        .await;
    let http2 = fixture.http2_client().await;
    let call = http2.request("POST", "/svc/Do").header("content-type", "application/grpc").header("te", "trailers");
    let answer = http2.ask(call.body(full(Bytes::from_static(b"\0\0\0\0\x02hi"))).unwrap()).await;
    assert_eq!(answer.body, b"\0\0\0\0\x02hi");
    assert_eq!(answer.trailers["grpc-status"], "0");
}

#[tokio::test]
async fn the_pod_gets_the_routers_stamps_and_not_the_clients() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let pod = Pod::start(speaks, echo).await;
        fixture.route(P3, pod.address, 42);
        let mut client = fixture.client().await;
        let answer = client
            .ask(
                "GET / HTTP/1.1\r\nhost: here.example\r\nx-partition: 3\r\nsegue-partition: 9\r\nsegue-epoch: 99\r\n\
                 segue-router: me\r\nsegue-keyspace: mine\r\nx-forwarded-for: 10.1.1.1\r\nvia: 1.0 earlier\r\n\
                 connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authorization: secret\r\n\
                 x-end: 1\r\n\r\n",
            )
            .await;
        for (name, value) in [
            ("got-segue-partition", "3"),
            ("got-segue-epoch", "42"),
            ("got-segue-router", "router-0"),
            ("got-segue-keyspace", "default"),
            ("got-x-forwarded-for", "127.0.0.1"),
            ("got-x-forwarded-proto", "http"),
            ("got-via", "1.0 earlier, 1.1 segue"),
            ("got-x-end", "1"),
            ("got-x-hop", ""),
            ("got-keep-alive", ""),
            ("got-proxy-authorization", ""),
        ] {
            assert_eq!(answer.header(name), value, "{name}");
        }
        if speaks == Speaks::Http1 {
            assert_eq!(answer.header("got-host"), "here.example");
        }
    }
}

#[tokio::test]
async fn the_client_gets_the_pods_answer_without_what_was_about_its_connection() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 299 Fine Indeed\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nsegue-reason: fenced\r\nx-end: 1\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text(), answer.header("x-end")), (299, "ok", "1"));
    for name in ["x-hop", "keep-alive", "segue-reason", "connection"] {
        assert_eq!(answer.header(name), "", "{name}");
    }
    // The pod said close; the next request goes over another connection.
    let mut connection = pod.accept_from(&mut client, GET).await;
    connection.write("HTTP/1.0 200 OK\r\n\r\nuntil the close").await;
    drop(connection);
    assert_eq!(client.answer().await.text(), "until the close");
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_does_not_stop_the_request() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("content-length: 10", "12345")).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nea").await;
    assert_eq!(client.head().await.status, 200);
    client.write("67890").await;
    assert_eq!(connection.exactly(5).await, "67890");
    connection.write("ly").await;
    assert_eq!(client.exactly(4).await, b"ealy");
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_told_to_go_on_by_the_pod() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send(POST_THAT_EXPECTS).await;
    let mut connection = pod.accept().await;
    assert!(connection.head().await.contains("expect: 100-continue\r\n"));
    connection.continue_and_answer(&mut client).await;
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_can_be_refused() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, POST_THAT_EXPECTS).await;
    connection.write("HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 417);
    assert_eq!(connection.rest().await, "", "no body was made up");
}

#[tokio::test]
async fn an_upgraded_connection_passes_bytes_both_ways_and_counts_until_it_ends() {
    let fixture = Fixture::new();
    let _pod = fixture
        .pod(Speaks::Http1, |mut request| async move {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = hyper_util::rt::TokioIo::new(upgrade.await.unwrap());
                let mut buffer = [0; 64];
                while let Ok(read @ 1..) = io.read(&mut buffer).await {
                    io.write_all(&buffer[..read]).await.unwrap();
                }
            });
            let answer = Response::builder().status(101).header("connection", "upgrade");
            answer.header("upgrade", request.headers()["upgrade"].clone()).body(empty()).unwrap()
        })
        .await;
    let mut client = fixture.send(get_at(P0, "connection: Upgrade\r\nupgrade: websocket\r\n")).await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("upgrade"), head.header("connection")), (101, "websocket", "upgrade"));
    for word in ["one", "two"] {
        client.write(word).await;
        assert_eq!(client.exactly(3).await, word.as_bytes());
    }
    fixture.in_flight(P0, 1).await;
    drop(client);
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn an_upgrade_that_the_pod_declines_is_an_ordinary_answer() {
    let fixture = Fixture::new();
    let _pod = fixture.pod(Speaks::Http1, echo).await;
    let mut client = fixture.client().await;
    let upgrade = get_at(P0, "connection: Upgrade\r\nupgrade: h2c\r\n");
    assert_eq!(client.ask(upgrade).await.status, 201);
    assert_eq!(client.ask(GET).await.status, 201);
}

#[tokio::test]
async fn what_a_pod_says_before_its_answer_is_passed_on_before_it() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.client().await;
    for round in 0..3 {
        let mut connection = pod.accept_from(&mut client, GET).await;
        connection
            .write("HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n")
            .await;
        let hints = client.head().await;
        assert_eq!(
            (hints.status, hints.header("link"), hints.header("x-hop")),
            (103, "</style.css>", ""),
            "round {round}"
        );
        // Several in one piece are told apart.
        connection.write("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
        assert_eq!(client.head().await.status, 102);
        assert_eq!(client.head().await.header("link"), "</b>");
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text()), (200, "ok"));
    }
}

#[tokio::test]
async fn clients_that_cannot_take_interim_answers_get_none() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1));
    let pod = fixture.scripted_pod().await;
    let (hints, ok) =
        ("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let (mut old, mut connection) =
        fixture.exchange(&pod, "GET /a HTTP/1.0\r\nhost: h\r\nx-partition: 0\r\n\r\n").await;
    connection.write([hints, ok].concat()).await;
    assert_eq!(old.answer().await.status, 200);
    let http2 = fixture.http2_client().await;
    let asked = http2.spawn_ask(http2.request("GET", "/b").body(empty()).unwrap());
    connection.head().await;
    connection.write([hints, ok].concat()).await;
    assert_eq!(asked.await.unwrap().text(), "ok");
}

/// Only `100` asks for the body.
#[tokio::test]
async fn a_body_that_waits_for_its_pod_goes_on_waiting_after_hints() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, POST_THAT_EXPECTS).await;
    connection.write("HTTP/1.1 103 Early Hints\r\n\r\n").await;
    assert_eq!(client.head().await.status, 103);
    connection.continue_and_answer(&mut client).await;
}

/// A pod whose server takes no trailers of that size closes the connection behind its response, which would break off the next
/// client's request.
#[tokio::test]
async fn a_connection_on_which_trailers_were_sent_carries_no_other_clients_request() {
    for (trailers, connections) in [("", 1), ("x-sum: 7\r\n", 3)] {
        let fixture = Fixture::new();
        let pod = fixture.pod(Speaks::Http1, echo_body).await;
        let upload = format!(
            "POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailers}\r\n"
        );
        for _ in 0..3 {
            assert_eq!(fixture.ask(&upload).await.text(), "hello");
        }
        assert_eq!(pod.connections.load(std::sync::atomic::Ordering::SeqCst), connections, "{trailers:?}");
    }
}

/// Servers such as uvicorn close a connection behind an exception, without announcing it.
#[tokio::test]
async fn a_connection_behind_an_error_of_the_pod_carries_no_other_request() {
    for (status, connections) in [(404, 1), (503, 1), (500, 3)] {
        let fixture = Fixture::new();
        let respond = move |_| async move { Response::builder().status(status).body(empty()).unwrap() };
        let pod = fixture.pod(Speaks::Http1, respond).await;
        for _ in 0..3 {
            assert_eq!(fixture.ask(GET).await.status, status);
        }
        assert_eq!(pod.connections.load(std::sync::atomic::Ordering::SeqCst), connections, "{status}");
    }
}
