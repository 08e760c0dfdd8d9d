//! Requests that turn their connection into another protocol, such as WebSocket.

use std::sync::Arc;

use axum::body::Body;
use http::header::{self, HeaderMap};
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::forward;
use super::reply::Refusal;
use crate::app::App;
use crate::connection::Connection;
use crate::inflow::Inflow;
use crate::sandboxes::Sandbox;

/// Bytes on their way, each direction.
const BUFFER: usize = 32 * 1024;

/// Tells whether a request asks for another protocol.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    headers.contains_key(header::UPGRADE)
        && connection
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
}

/// Sends the request on; if the other side agrees, its connection and the client's are one from then on.
pub(super) async fn open(
    app: &Arc<App>,
    sandbox: &Arc<Sandbox>,
    port: u16,
    mut request: Request<Inflow>,
    connection: &Connection,
) -> Result<Response<Body>, Refusal> {
    forward::prepare(&mut request, sandbox, port);
    let client = hyper::upgrade::on(&mut request);
    let asked = async {
        let mut sender = sandbox.pool.connect(app, sandbox, port).await?;
        match sender.request.send_request(request).await {
            // The connection stays only as long as somebody could send on it.
            Ok(response) => Ok((response, sender)),
            Err(error) => {
                tracing::debug!(%error, id = sandbox.id, port, "a request was cut off");
                Err(forward::cut_off(app, sandbox).await)
            }
        }
    };
    let (mut response, _sender) = sandbox.lines.while_open(asked).await??;
    let line = sandbox.lines.enter(connection)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(forward::answer(response, sandbox, None, line));
    }
    let inside = hyper::upgrade::on(&mut response);
    let connection = connection.clone();
    tokio::spawn(async move {
        // Counts as a use of the sandbox until it ends.
        let _line = line;
        let carry = async {
            let (Ok(client), Ok(inside)) = (client.await, inside.await) else { return };
            let (mut client, mut inside) = (TokioIo::new(client), TokioIo::new(inside));
            let carried =
                tokio::io::copy_bidirectional_with_sizes(&mut client, &mut inside, BUFFER, BUFFER).await;
            if let Err(error) = carried {
                tracing::debug!(%error, "a tunnel into a sandbox ended early");
            }
        };
        tokio::select! {
            () = carry => {}
            () = connection.aborted() => {}
        }
    });
    Ok(response.map(|_| Body::empty()))
}
