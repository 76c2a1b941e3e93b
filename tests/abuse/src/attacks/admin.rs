//! Attacks on the admin endpoint: more requests and connections than it is made for.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use segue_tests::http;
use serde_json::Value;

use super::{Got, LASTS, Target};
use crate::wire::Raw;

const READERS: usize = 200;
/// More than there are places.
const IDLE: usize = 100;
/// How long a connection may be idle there, and some.
const IDLE_AT_MOST: Duration = Duration::from_secs(8);

/// The router's registration, which its lease keeps alive; gone, it would register anew.
async fn incarnation(target: &Target) -> anyhow::Result<Value> {
    let (admin, begun) = (target.admin, Instant::now());
    loop {
        let asked = tokio::task::spawn_blocking(move || http::get(admin, "/status")).await?;
        if let Some((200, body)) = asked {
            let incarnation = serde_json::from_str::<Value>(&body)?["router"]["incarnation"].take();
            ensure!(!incarnation.is_null(), "it is not registered");
            return Ok(incarnation);
        }
        ensure!(begun.elapsed() < IDLE_AT_MOST, "its status cannot be had");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Everything it says, by many at once and again and again; then connections that say nothing.
pub(super) async fn flood(target: Target) -> anyhow::Result<Got> {
    let before = incarnation(&target).await?;
    let until = Instant::now() + LASTS;
    let one = async |number: usize| {
        let path = if number.is_multiple_of(2) { "/status" } else { "/metrics" };
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let (mut served, mut refused) = (0, 0);
        while Instant::now() < until {
            let Ok(mut raw) = Raw::connect(target.admin).await else { continue };
            match raw.ask(&request, Duration::from_secs(2)).await.statuses()[..] {
                [200] => served += 1,
                _ => refused += 1,
            }
        }
        (served, refused)
    };
    let asked: Vec<(usize, usize)> = join_all((0..READERS).map(one)).await;
    let (served, refused) = asked.iter().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    // After the readers: while these hold every connection, no other client is served.
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(Raw::connect(target.admin).await.context("connect")?);
    }
    tokio::time::sleep(IDLE_AT_MOST).await;
    let mut open = 0;
    for raw in &mut idle {
        open += usize::from(!raw.read(Duration::from_millis(1), 1 << 10).await.closed);
    }
    let after = incarnation(&target).await?;
    let what = format!(
        "{READERS} readers got {served} pages and {refused} refusals; {open}/{IDLE} idle connections are open after \
         {} s; the registration is {}",
        IDLE_AT_MOST.as_secs(),
        if before == after { "the same" } else { "another" }
    );
    Ok(Got::new(before == after && open == 0 && served > 0, what))
}
