//! The proxy: it accepts, asks the script, passes on and writes down.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::body::{Side, Watched};
use super::exchange::{Exchange, Route, hide_secrets};
use super::line::{Line, Reset};
use super::{Answer, Fault, Rule};

type Answered = Response<UnsyncBoxBody<Bytes, io::Error>>;

const NEXT_TOKEN: &str = "x-next-token";

/// A recording proxy with scripted faults in front of an HTTP/1.1 server without TLS, or alone.
///
/// It listens on a free port of the loopback until it is dropped; then its connections are closed.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<Option<SocketAddr>>,
    rules: Mutex<Vec<Rule>>,
    records: Arc<Records>,
    connections: Mutex<JoinSet<()>>,
}

/// What passed, in the order of arrival.
#[derive(Debug)]
pub(super) struct Records {
    exchanges: Mutex<Vec<Exchange>>,
    changes: watch::Sender<u64>,
}

impl Records {
    pub(super) fn change(&self, number: usize, change: impl FnOnce(&mut Exchange)) {
        if let Some(exchange) = locked(&self.exchanges).get_mut(number) {
            change(exchange);
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn add(&self, exchange: Exchange) -> usize {
        let mut exchanges = locked(&self.exchanges);
        exchanges.push(exchange);
        let number = exchanges.len() - 1;
        drop(exchanges);
        self.changes.send_modify(|changes| *changes += 1);
        number
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Starts a proxy in front of a server.
    ///
    /// # Errors
    /// When the loopback cannot be listened on.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::listen(Some(upstream)).await
    }

    /// Starts a proxy with no server behind it: a connection is reset by what no rule answers.
    ///
    /// # Errors
    /// When the loopback cannot be listened on.
    pub async fn alone() -> io::Result<Self> {
        Self::listen(None).await
    }

    async fn listen(upstream: Option<SocketAddr>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let records = Records { exchanges: Mutex::default(), changes: watch::Sender::new(0) };
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            rules: Mutex::default(),
            records: Arc::new(records),
            connections: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns where it listens, as a base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Passes requests on to another server from now on, such as the same one after its restart.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *locked(&self.shared.upstream) = Some(upstream);
    }

    /// Adds a rule behind those that are there.
    pub fn add(&self, rule: Rule) {
        locked(&self.shared.rules).push(rule);
    }

    /// Removes all rules: everything passes.
    pub fn clear_rules(&self) {
        locked(&self.shared.rules).clear();
    }

    /// Ends every connection that is open now, as a broken network does.
    pub fn cut_connections(&self) {
        locked(&self.shared.connections).abort_all();
    }

    /// Returns all that passed, in the order of arrival.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        locked(&self.shared.records.exchanges).clone()
    }

    /// Counts the requests of a route, whatever became of them.
    #[must_use]
    pub fn asked(&self, route: Route) -> usize {
        self.count(|exchange| exchange.route == route)
    }

    /// Counts the requests of a route that the server was given.
    #[must_use]
    pub fn forwarded(&self, route: Route) -> usize {
        self.count(|exchange| exchange.route == route && exchange.forwarded)
    }

    /// Counts the exchanges of which this is true.
    pub fn count(&self, is_meant: impl Fn(&Exchange) -> bool) -> usize {
        locked(&self.shared.records.exchanges).iter().filter(|exchange| is_meant(exchange)).count()
    }

    /// Waits until this is true of so many exchanges.
    pub async fn until(&self, count: usize, is_meant: impl Fn(&Exchange) -> bool) {
        let mut changes = self.shared.records.changes.subscribe();
        // The sender lives in `self`, so that waiting cannot fail.
        while self.count(&is_meant) < count && changes.changed().await.is_ok() {}
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_connections();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut number = 0;
    loop {
        // Accepting fails for what a client did, or for want of descriptors: the next client may have more luck.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Small writes would wait for acknowledgements otherwise.
        let _ = stream.set_nodelay(true);
        let connection = Connection { number, reset: Reset::default(), shared: Arc::clone(&shared) };
        number += 1;
        let mut connections = locked(&shared.connections);
        while connections.try_join_next().is_some() {}
        connections.spawn(connection.serve(stream));
    }
}

/// One connection of a client.
#[derive(Clone, Debug)]
struct Connection {
    number: usize,
    reset: Reset,
    shared: Arc<Shared>,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let line = TokioIo::new(Line::new(stream, self.reset.clone()));
        let service = service_fn(move |request| {
            let connection = self.clone();
            async move { connection.answer(request).await }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .preserve_header_case(true)
            .serve_connection(line, service)
            .with_upgrades();
        // How a connection ended is seen in the exchanges.
        let _ = served.await;
    }

    async fn answer(self, request: Request<Incoming>) -> io::Result<Answered> {
        let route = Route::of(request.method(), request.uri().path(), request.headers());
        let mut headers = request.headers().clone();
        hide_secrets(&mut headers);
        let records = Arc::clone(&self.shared.records);
        let number = records.add(Exchange {
            connection: self.number,
            route,
            method: request.method().clone(),
            target: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
            headers,
            body: Bytes::new(),
            sent: 0,
            forwarded: false,
            status: None,
            answer_headers: HeaderMap::new(),
            answer_body: Bytes::new(),
            received: 0,
            complete: false,
        });
        let taken = self.rule(route, request.method(), request.uri().path());
        let exchange = Passing { number, connection: self };
        match taken {
            None => exchange.pass(request, None).await,
            Some((index, fault)) => exchange.broken(request, index, fault).await,
        }
    }

    fn rule(&self, route: Route, method: &Method, path: &str) -> Option<(usize, Fault)> {
        let mut rules = locked(&self.shared.rules);
        let mut numbered = rules.iter_mut().enumerate();
        numbered.find_map(|(at, rule)| rule.takes(route, method, path).then(|| (at, rule.fault.clone())))
    }
}

/// Carries bytes both ways until both sides have ended, or one has broken it off.
async fn tunnel(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = (client.await, server.await) {
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

/// One exchange on its way.
#[derive(Clone, Debug)]
struct Passing {
    number: usize,
    connection: Connection,
}

impl Passing {
    async fn broken(self, request: Request<Incoming>, rule: usize, fault: Fault) -> io::Result<Answered> {
        match fault {
            Fault::Pass => self.pass(request, None).await,
            Fault::Truncate(bytes) => self.pass(request, Some(bytes)).await,
            Fault::Delay(time) => {
                sleep(time).await;
                self.pass(request, None).await
            }
            Fault::HoldBefore(gate) => {
                gate.pass().await;
                self.pass(request, None).await
            }
            Fault::ResetBefore => Err(self.give_up(io::Error::other("the script resets the connection"))),
            Fault::HangBefore => std::future::pending().await,
            Fault::Answer(answer) => {
                // A client that is still writing would see a reset instead of the answer.
                let body = self.watched(request.into_body(), Side::Request);
                body.collect().await?;
                Ok(self.said(answer))
            }
            Fault::DelayAnswer(time) => {
                let answer = self.committed(request).await?;
                sleep(time).await;
                Ok(self.tell(answer))
            }
            Fault::HoldAfter(gate) => {
                let answer = self.committed(request).await?;
                gate.pass().await;
                Ok(self.tell(answer))
            }
            Fault::AnswerAfter(answer) => {
                self.committed(request).await?;
                Ok(self.said(answer))
            }
            Fault::LoseAnswer => {
                self.committed(request).await?;
                Err(self.give_up(io::Error::other("the script resets the connection")))
            }
            Fault::HangAfter => {
                self.committed(request).await?;
                std::future::pending().await
            }
            Fault::RepeatedCursor => {
                let mut answer = self.committed(request).await?;
                if let Some(cursor) = self.first_cursor(rule, answer.headers().get(NEXT_TOKEN)) {
                    answer.headers_mut().insert(NEXT_TOKEN, cursor);
                }
                Ok(self.tell(answer))
            }
        }
    }

    /// Passes the request on, and its answer back while it comes.
    async fn pass(self, mut request: Request<Incoming>, cut: Option<u64>) -> io::Result<Answered> {
        let upgrades = request.headers().contains_key(header::UPGRADE) || request.method() == Method::CONNECT;
        let connects = request.method() == Method::CONNECT;
        let client = upgrades.then(|| hyper::upgrade::on(&mut request));
        let mut answer = self.forward(request).await?;
        let agreed =
            answer.status() == StatusCode::SWITCHING_PROTOCOLS || (connects && answer.status().is_success());
        if let Some(client) = client.filter(|_| agreed) {
            let server = hyper::upgrade::on(&mut answer);
            locked(&self.connection.shared.connections).spawn(tunnel(client, server));
        }
        self.record(&answer, answer.body().is_end_stream());
        Ok(answer.map(|body| {
            let body = self.watched(body, Side::Answer);
            match cut {
                None => body.boxed_unsync(),
                Some(bytes) => body.cut_after(bytes).boxed_unsync(),
            }
        }))
    }

    /// Has the server carry the request out, also when the client goes away, and returns the whole answer.
    async fn committed(&self, request: Request<Incoming>) -> io::Result<Response<Bytes>> {
        let passing = self.clone();
        let whole = tokio::spawn(async move {
            let (head, body) = passing.forward(request).await?.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            Ok::<_, io::Error>(Response::from_parts(head, body))
        });
        whole.await?
    }

    async fn forward(&self, request: Request<Incoming>) -> io::Result<Response<Incoming>> {
        let upstream = *locked(&self.connection.shared.upstream);
        let Some(upstream) = upstream else {
            return Err(self.give_up(io::Error::other("no server is behind this proxy, and no rule answers")));
        };
        let request = request.map(|body| self.watched(body, Side::Request));
        let asked = async {
            let stream = TcpStream::connect(upstream).await?;
            stream.set_nodelay(true)?;
            let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
                .preserve_header_case(true)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)?;
            // It ends with the exchange: with the end of the answer, or when that is dropped.
            tokio::spawn(connection.with_upgrades());
            self.connection.shared.records.change(self.number, |exchange| exchange.forwarded = true);
            sender.send_request(request).await.map_err(io::Error::other)
        };
        asked.await.map_err(|error| self.give_up(error))
    }

    fn watched<B>(&self, body: B, side: Side) -> Watched<B> {
        Watched::new(body, side, self.number, Arc::clone(&self.connection.shared.records))
    }

    /// Says a made-up answer.
    fn said(&self, answer: Answer) -> Answered {
        let mut response = Response::new(answer.body);
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        self.tell(response)
    }

    /// Says an answer that is there as a whole.
    fn tell(&self, answer: Response<Bytes>) -> Answered {
        self.record(&answer, answer.body().is_empty());
        answer.map(|body| {
            let body = Full::new(body).map_err(|never: Infallible| match never {});
            self.watched(body, Side::Answer).boxed_unsync()
        })
    }

    fn record<B>(&self, answer: &Response<B>, is_empty: bool) {
        self.connection.shared.records.change(self.number, |exchange| {
            exchange.status = Some(answer.status());
            exchange.answer_headers = answer.headers().clone();
            exchange.complete = is_empty;
        });
    }

    /// Resets the connection in place of an answer.
    fn give_up(&self, why: io::Error) -> io::Error {
        self.connection.reset.ask();
        why
    }

    fn first_cursor(&self, rule: usize, seen: Option<&HeaderValue>) -> Option<HeaderValue> {
        let mut rules = locked(&self.connection.shared.rules);
        let cursor = &mut rules.get_mut(rule)?.cursor;
        if cursor.is_none() {
            *cursor = seen.cloned();
        }
        cursor.clone()
    }
}
