//! The part of a [`Permit`] that concerns exchanges which last: the token that severs them, and whether they are streams.
//!
//! Not here: the list of them (`routing::table`).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{ArrivingRequest, Permit};
use crate::routing::request_summary::RequestSummary;

impl Permit {
    /// Returns the token that is cancelled when the exchange is severed. An exchange that asks for it lasts.
    pub fn sever_token(&self) -> CancellationToken {
        self.lasts(|| None)
    }

    /// As [`sever_token`](Self::sever_token). `summary` is called if the exchange has not asked before.
    pub(crate) fn lasts(&self, summary: impl FnOnce() -> Option<Arc<RequestSummary>>) -> CancellationToken {
        let request = self.request();
        let (table, worker, partition) = (request.table(), request.worker.inner.index, request.partition);
        if let Some(token) = self.lasting.get().and_then(|id| table.lasting_token(worker, partition, id)) {
            return token;
        }
        let (id, token) = table.list_lasting(worker, partition, self.route.severs, self.is_stream.get(), summary());
        self.lasting.set(Some(id));
        token
    }

    /// Records that the exchange has become a stream, which may be without an end.
    pub fn streams(&self) {
        self.is_stream.set(true);
        if let Some(id) = self.lasting.get() {
            let request = self.request();
            request.table().lasting_streams(request.worker.inner.index, request.partition, id);
        }
    }

    /// Takes the exchange off the list of those that last.
    pub(super) fn unlist(&self, request: &ArrivingRequest) {
        if let Some(id) = self.lasting.take() {
            request.table().lasting_ended(request.worker.inner.index, request.partition, id);
        }
    }
}
