//! The server: where it listens, and the way of a request through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use http::{Method, Request, Response, StatusCode};
use sandhold_core::{Error, ErrorKind, Result, SandboxProvider};
use tokio::net::TcpListener;
use tower_service::Service;

use crate::app::App;
use crate::config::ServerConfig;
use crate::connection::{self, Connection};
use crate::error::ApiError;
use crate::inflow::Inflow;
use crate::proxy::Target;
use crate::{api, guard, proxy};

/// An E2B-compatible server over a provider.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Opens the server's home and begins to listen; nothing is answered before [`serve`](Self::serve).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when it would be open to other machines without an API key;
    /// [`ErrorKind::Conflict`] when another server uses the home; [`ErrorKind::Unavailable`] when the address or the home
    /// cannot be used.
    pub async fn start(provider: Arc<dyn SandboxProvider>, config: ServerConfig) -> Result<Self> {
        if !config.listen.ip().is_loopback() && config.api_key.is_none() {
            return Err(Error::invalid_argument(format!(
                "{} can be reached from other machines; give an API key (--api-key or SANDHOLD_API_KEY), or listen on \
                 127.0.0.1",
                config.listen
            )));
        }
        let unusable = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("cannot listen on {}: {error}", config.listen))
                .with_source(error)
        };
        let listener = TcpListener::bind(config.listen).await.map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        let app = App::open(provider, config).await?;
        Ok(Self { app, listener, address })
    }

    /// Returns the address that clients connect to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop`; requests in flight may end within five seconds. Sandboxes live on.
    ///
    /// # Cancellation
    /// Dropping the future closes the listener; connections go on until they end by themselves.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self { app, listener, .. } = self;
        let router = api::router(Arc::clone(&app));
        let handle = move |request: Request<Inflow>, connection: Connection| {
            logged(Arc::clone(&app), router.clone(), request, connection)
        };
        connection::serve(listener, handle, stop).await;
    }
}

/// Where a request is to go.
enum Way {
    /// Into a sandbox.
    Inside(Target),
    /// To the control plane.
    Control,
    /// Nowhere.
    Refused(Response<Body>),
}

/// Answers a request, and writes one line about it. Without its query, which may hold a signature.
async fn logged(
    app: Arc<App>,
    mut router: Router,
    request: Request<Inflow>,
    connection: Connection,
) -> Response<Body> {
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut sandbox = None;
    let response = match find_way(&app, &request, &connection).await {
        Way::Inside(target) => {
            sandbox = Some(format!("{}:{}", target.id, target.port));
            proxy::answer(&app, target, request, &connection).await
        }
        Way::Control => match router.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        Way::Refused(response) => response,
    };
    let (status, ms) = (response.status().as_u16(), begun.elapsed().as_secs_f64() * 1e3);
    tracing::info!(%method, path, sandbox, status, ms = format_args!("{ms:.1}"), "request");
    response
}

async fn find_way(app: &Arc<App>, request: &Request<Inflow>, connection: &Connection) -> Way {
    let (uri, headers) = (request.uri(), request.headers());
    let Some(host) = guard::host_of(uri, headers) else {
        let error = ApiError::bad_request("the header Host is missing, not valid, or there twice");
        return Way::Refused(error.into_response());
    };
    // A host that names a sandbox leads into it by any domain, and nowhere else.
    if let Some(named) = proxy::named_by_host(&host) {
        return inside(named);
    }
    if let Some(refusal) = app.guard.host_refusal(&host, connection.local) {
        return Way::Refused(refusal);
    }
    if let Some(named) = proxy::named_by_headers(headers) {
        return inside(named);
    }
    if proxy::is_signed(uri, headers) {
        if request.method() == Method::OPTIONS {
            return Way::Refused(proxy::preflight(headers));
        }
        return match proxy::owner_of(app, request.method(), uri).await {
            Some(target) => Way::Inside(target),
            None => {
                let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid signature");
                Way::Refused(error.into_response())
            }
        };
    }
    app.guard.origin_refusal(headers, connection.local).map_or(Way::Control, Way::Refused)
}

fn inside(named: Result<Target, &'static str>) -> Way {
    match named {
        Ok(target) => Way::Inside(target),
        Err(message) => Way::Refused(proxy::bad_target(message)),
    }
}
