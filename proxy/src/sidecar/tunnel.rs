//! Joins a router's and the service's side of a connection that has switched protocols.
//!
//! # Invariants
//!
//! * The exchange counts until the service has closed its side, or its bound has passed since the router closed.

use std::pin::pin;

use futures_util::future::select;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use super::upstream::Upstream;

/// Copies bytes both ways until the service closes its side. When the router closes, so does this side of the connection to
/// the service, which then has its bound to end what it has begun.
pub(super) async fn join(router: OnUpgrade, service: OnUpgrade, upstream: &Upstream) {
    let Ok(service) = service.await else { return };
    let (mut from_service, mut to_service) = tokio::io::split(TokioIo::new(service));
    let (mut from_router, mut to_router) = match router.await {
        Ok(router) => {
            let (read, write) = tokio::io::split(TokioIo::new(router));
            (Some(read), Some(write))
        }
        Err(_) => (None, None),
    };
    let up = async {
        if let Some(from_router) = &mut from_router {
            let _ = tokio::io::copy(from_router, &mut to_service).await;
        }
        let _ = to_service.shutdown().await;
        match upstream.work_ends_within {
            Some(bound) => sleep(bound).await,
            None => std::future::pending().await,
        }
    };
    let down = async {
        if let Some(to_router) = &mut to_router {
            let _ = tokio::io::copy(&mut from_service, to_router).await;
            let _ = to_router.shutdown().await;
        }
        // Bytes that the router no longer takes are read and dropped.
        let _ = tokio::io::copy(&mut from_service, &mut tokio::io::sink()).await;
    };
    // Nobody reads what the router sends after the service has closed.
    select(pin!(up), pin!(down)).await;
}
