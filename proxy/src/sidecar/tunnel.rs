//! Joins a router's and the service's side of a connection that has switched protocols.
//!
//! # Invariants
//!
//! * The exchange counts until the service has closed its side, or a second has passed since the router closed and the service
//!   was told. A bound of the service's work is waited for as well.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep};

use super::service_side::{ServiceSide, UNREAD_TIMEOUT};
use super::upstream::Upstream;

/// Copies bytes both ways until the service closes its side. When the router closes, so does this side of the connection to
/// the service. `until` is when the service stops being waited for, if its router had gone before.
pub(super) async fn join(
    router: OnUpgrade,
    service: OnUpgrade,
    side: ServiceSide,
    upstream: &Upstream,
    mut until: Option<Instant>,
) {
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
        until = until.or_else(|| upstream.work_ends_within.map(|bound| Instant::now() + bound));
        sleep(UNREAD_TIMEOUT).await;
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
    let goes_on = tokio::select! {
        () = down => false,
        () = up => true,
    };
    if goes_on {
        // A service that overlooks the end of one side would keep its partition for as long as it likes.
        side.reset((from_service, to_service), upstream, until).await;
    }
}
