//! `GET /sandhold/ports/{port}`: a byte stream to a port inside the sandbox, over an upgraded connection.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::daemon::http::{Body, empty, json, json_error};
use crate::daemon::serve::{Orders, ended};
use crate::daemon::state::State;

/// Where the port stands in the path.
pub(crate) const PREFIX: &str = "/sandhold/ports/";

pub(crate) async fn answer(
    state: &State,
    mut request: Request<Incoming>,
    orders: watch::Receiver<Orders>,
) -> Response<Body> {
    let text = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let port = match text.parse::<u16>() {
        Ok(port) if port != 0 => port,
        _ => return json_error(StatusCode::BAD_REQUEST, &format!("{text:?} is not a port")),
    };
    if !wants_upgrade(request.headers()) {
        let mut response = json_error(
            StatusCode::UPGRADE_REQUIRED,
            "a port is reached by `Connection: Upgrade`, `Upgrade: tcp`",
        );
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static("tcp"));
        return response;
    }
    let mut port_side = match dial(port).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(port, %error, "nothing listens");
            return not_open(state, port);
        }
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let copied = async {
            let mut client_side = TokioIo::new(upgrade.await.map_err(io::Error::other)?);
            tokio::io::copy_bidirectional(&mut client_side, &mut port_side).await
        };
        tokio::select! {
            copied = copied => {
                if let Err(error) = copied {
                    tracing::debug!(port, %error, "a tunnel ended early");
                }
            }
            () = ended(orders) => {}
        }
    });
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static("tcp"));
    response
}

/// Programs listen on either loopback address, and many on one of them only.
async fn dial(port: u16) -> io::Result<TcpStream> {
    let stream = match TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
        Ok(stream) => stream,
        Err(_) => TcpStream::connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    let has = |name, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|part| part.trim().eq_ignore_ascii_case(token))
    };
    has(CONNECTION, "upgrade") && has(UPGRADE, "tcp")
}

/// The answer that E2B's proxy gives; its clients know it by its text.
fn not_open(state: &State, port: u16) -> Response<Body> {
    let sandbox = state.session(|session| {
        let id = session.envs.get("SANDHOLD_SANDBOX_ID").or_else(|| session.envs.get("E2B_SANDBOX_ID"));
        id.cloned().unwrap_or_default()
    });
    let body = serde_json::json!({
        "sandboxId": sandbox,
        "message": "The sandbox is running but port is not open",
        "port": port,
        "code": StatusCode::BAD_GATEWAY.as_u16(),
    });
    json(StatusCode::BAD_GATEWAY, &body)
}
