//! The writer's listener: HTTP/1.1 and HTTP/2 on one port, stopped gracefully or at once.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// A running server.
#[derive(Debug)]
pub(super) struct WriterServer {
    stop: CancellationToken,
    bound: ServerTasks,
    task: AbortOnDropHandle<()>,
    _alive: DropGuard,
}

/// The tasks that end with the server: connections and HTTP/2 streams.
#[derive(Debug, Clone)]
struct ServerTasks {
    dead: CancellationToken,
    streams: TaskTracker,
}

impl<F> Executor<F> for ServerTasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let dead = self.dead.clone();
        self.streams.spawn(async move { dead.run_until_cancelled(task).await.map(drop) });
    }
}

impl WriterServer {
    /// Serves `service` to all clients.
    pub(super) fn start<S, B>(listener: TcpListener, service: S) -> Self
    where
        S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (stop, dead) = (CancellationToken::new(), CancellationToken::new());
        let bound = ServerTasks { dead: dead.clone(), streams: TaskTracker::new() };
        let task = AbortOnDropHandle::new(tokio::spawn(accept(listener, service, stop.clone(), bound.clone())));
        WriterServer { stop, bound, task, _alive: dead.drop_guard() }
    }

    /// Accepts no more connections and finishes the requests in progress.
    pub(super) async fn stop(mut self, patience: Duration) {
        self.stop.cancel();
        let _ = tokio::time::timeout(patience, &mut self.task).await;
    }

    /// Stops at once: no connection is closed properly and no request is finished. No task is running when this
    /// returns.
    pub(super) async fn kill(mut self) {
        self.bound.dead.cancel();
        let _ = (&mut self.task).await;
        self.bound.streams.close();
        self.bound.streams.wait().await;
    }
}

async fn accept<S, B>(listener: TcpListener, service: S, stop: CancellationToken, bound: ServerTasks)
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // Dropped with this task, and with it all connections and their requests.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = bound.dead.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, service.clone(), stop.clone(), bound.clone()))),
                // For example out of file descriptors: others may be closed soon.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve<S, B>(stream: TcpStream, service: S, stop: CancellationToken, bound: ServerTasks)
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let _ = stream.set_nodelay(true);
    let dead = bound.dead.clone();
    let builder = auto::Builder::new(bound);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let gently = async {
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        // A client that disconnects is no error of the server.
        let _ = connection.await;
    };
    dead.run_until_cancelled(gently).await;
}
