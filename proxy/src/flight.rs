//! An exchange with a pod as it is counted: from its beginning until the pod is done, whoever is still interested.
//!
//! What must stay true: an exchange that its client has left goes on, and counts, until the pod is done, its time is
//! up or its partition is severed.

use std::rc::Rc;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::forward::Shared;
use crate::table::Pod;
use crate::ticket::Pass;
use crate::upstream::{Answer, AnswerStream, InFlight};

/// A pass, and the books that are kept about it. It goes from hand to hand, hence in a box.
pub(crate) struct Flight {
    pass: Option<Pass>,
    shared: Rc<Shared>,
    started: Instant,
    deadline: Option<Instant>,
}

impl Flight {
    /// `started`: when the request arrived; `deadline`: until when its client wants to have all of the answer.
    pub(crate) fn begin(pass: Pass, shared: &Rc<Shared>, started: Instant, deadline: Option<Instant>) -> Self {
        shared.metrics.begins();
        shared.load.begin(pass.pod().slot);
        Flight { pass: Some(pass), shared: shared.clone(), started, deadline }
    }

    fn pass(&self) -> &Pass {
        // Taken only by `undo`, which consumes the flight.
        self.pass.as_ref().expect("a flight that was not undone")
    }

    pub(crate) fn pod(&self) -> &Arc<Pod> {
        self.pass().pod()
    }

    pub(crate) fn partition(&self) -> u32 {
        self.pass().partition()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.pass().epoch()
    }

    /// Until when its client wants to have all of the answer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether that is over.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    pub(crate) fn may_still_go(&self) -> bool {
        self.pass().may_still_go()
    }

    pub(crate) fn sever_token(&self) -> CancellationToken {
        self.pass().sever_token()
    }

    pub(crate) fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    /// The outcome is definite.
    pub(crate) fn delivered(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.delivered();
        }
    }

    /// It has not taken place.
    #[expect(clippy::boxed_local, reason = "so that nobody takes it out of its box for this")]
    pub(crate) fn undo(mut self: Box<Self>) -> Pass {
        let pass = self.pass.take().expect("a flight that was not undone");
        self.shared.metrics.ends();
        self.shared.load.end(pass.pod().slot);
        pass
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(pass) = &self.pass {
            self.shared.metrics.ends();
            self.shared.load.end(pass.pod().slot);
            self.shared.metrics.took(self.started.elapsed());
        }
    }
}

/// Sees an exchange through whose client has hung up before the answer began.
pub(crate) fn see_through(mut exchange: InFlight, mut flight: Box<Flight>) {
    let (shared, deadline) = (flight.shared.clone(), flight.deadline);
    bounded(&shared, flight.sever_token(), deadline, async move {
        let answer = std::future::poll_fn(|context| exchange.poll_answer(context, &mut |_| {})).await;
        flight.delivered();
        if let Ok(Answer::Response(response)) = answer {
            read_to_end(response.into_body()).await;
        }
        drop(flight);
    });
}

/// Sees an exchange through whose client has hung up in the middle of the answer.
pub(crate) fn see_rest_through(stream: AnswerStream, flight: Box<Flight>) {
    let (shared, deadline) = (flight.shared.clone(), flight.deadline);
    bounded(&shared, flight.sever_token(), deadline, async move {
        read_to_end(stream).await;
        drop(flight);
    });
}

async fn read_to_end(mut stream: AnswerStream) {
    while let Some(Ok(_)) = std::future::poll_fn(|context| stream.poll_frame(context)).await {}
}

fn bounded(
    shared: &Rc<Shared>,
    severed: CancellationToken,
    deadline: Option<Instant>,
    rest: impl Future<Output = ()> + 'static,
) {
    let limit = Instant::now() + shared.request_timeout;
    let limit = deadline.map_or(limit, |deadline| deadline.min(limit));
    shared.background.run(async move {
        tokio::select! {
            () = rest => {}
            () = tokio::time::sleep_until(limit) => {}
            () = severed.cancelled() => {}
        }
    });
}
