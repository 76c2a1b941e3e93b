//! Fuzzes the router's reader of pods' HTTP/1.1 responses with arbitrary bytes in arbitrary pieces. The outcome does
//! not depend on the pieces, and a body is no longer than declared. A complete response is also complete for hyper's
//! client, which reads the same response.

use http::Method;
use segue_proxy::fuzzing::{End, FuzzNoResponse, ParsedResponse, read_response};

use crate::Outcome;
use crate::support::{hyper_client, pieces};

pub fn run(data: &[u8]) -> Outcome {
    let Some((how, pieces)) = pieces::cut(data) else { return Outcome::NoInput };
    let method = if how % 16 == 7 { Method::HEAD } else { Method::GET };
    check(&data[1..], &pieces, &method);
    Outcome::Checked
}

fn check(bytes: &[u8], pieces: &[&[u8]], method: &Method) {
    let whole = read_response(&[bytes], method);
    assert_eq!(whole, read_response(pieces, method), "the same bytes, cut differently");
    let Ok(answer) = whole else { return };
    limits(&answer, bytes, method);
    if answer.end != End::Whole || answer.status == 101 {
        return;
    }
    // A connection with bytes behind the response is not used again, so they are never read as another response.
    assert!(!answer.reusable || answer.left.is_empty());
    cut_off(bytes, &answer, method);
    match hyper_client::read(bytes, method) {
        Some(hyper) => {
            assert_eq!(answer.status, hyper.status, "the status");
            assert_eq!(answer.body, hyper.body, "the body");
            let trailers = answer.trailers.unwrap_or_default();
            assert_eq!(trailers, hyper.trailers.unwrap_or_default(), "the trailers");
        }
        None => panic!("hyper's client sees no whole answer, Segue sees {answer:?}"),
    }
}

fn limits(answer: &ParsedResponse, bytes: &[u8], method: &Method) {
    assert!(answer.body.len() + answer.left.len() <= bytes.len());
    let lengths: Vec<_> = answer.headers.get_all("content-length").iter().collect();
    let bodiless = *method == Method::HEAD || matches!(answer.status, 101 | 204 | 304);
    if bodiless {
        assert!(answer.body.is_empty() && answer.trailers.is_none());
    } else if let [length] = lengths[..] {
        let length: usize = length.to_str().expect("digits").parse().unwrap_or(usize::MAX);
        assert!(answer.body.len() <= length, "more body than was declared");
        assert_eq!(answer.end == End::Whole, answer.body.len() == length);
        assert!(!answer.headers.contains_key("transfer-encoding"), "two framings");
    }
    assert!(lengths.len() <= 1, "two lengths reach the client");
}

/// An answer that has an end of its own is none without its last byte.
fn cut_off(bytes: &[u8], answer: &ParsedResponse, method: &Method) {
    let used = bytes.len() - answer.left.len();
    if answer.left.is_empty() && !answer.reusable {
        // A response that ends with its connection may end anywhere.
        return;
    }
    match read_response(&[&bytes[..used - 1]], method) {
        Ok(shorter) => assert_ne!(shorter.end, End::Whole, "a shorter answer that looks whole"),
        Err(FuzzNoResponse::Unfinished) => {}
        Err(FuzzNoResponse::Refused) => panic!("refused without its last byte"),
    }
}
