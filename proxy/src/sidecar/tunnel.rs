//! A connection that has switched protocols, as bytes both ways.

use std::pin::pin;

use futures_util::future::select;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use super::upstream::Upstream;

/// Passes bytes both ways until the service has ended. It is told when the router has, and has its bound from then on: what
/// it has begun it may end, but nobody will ever speak to it again here.
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
        // What comes when the router takes no more has no reader.
        let _ = tokio::io::copy(&mut from_service, &mut tokio::io::sink()).await;
    };
    // The service's end is the end: what the router still sends has no reader.
    select(pin!(up), pin!(down)).await;
}
