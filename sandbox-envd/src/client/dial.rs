//! Byte streams to ports inside the sandbox.

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use sandhold_core::{DAEMON_PORT, Error, ErrorKind, PortStream, Result};

use crate::client::connection::{Fault, FaultKind, RequestBody};
use crate::client::fault::Effect;
use crate::client::handle::EnvdHandle;
use crate::client::request::MAX_JSON;

impl EnvdHandle {
    pub(crate) async fn dial_port(&self, port: u16) -> Result<Box<dyn PortStream>> {
        if port == 0 {
            return Err(Error::invalid_argument("0 is not a port; give 1 to 65535"));
        }
        let dialed = if self.client().has_own_daemon() {
            let dialed = self.try_dial(port).await;
            self.explained(dialed).await
        } else {
            self.relay_to_port(port).await
        };
        match dialed {
            Err(error) if error.reason() == Some("port_closed") => Err(self
                .call("dial", Effect::None)
                .error(ErrorKind::NotFound, "nothing listens on the port")
                .with_reason("port_closed")
                .with_context("port", port)),
            dialed => dialed,
        }
    }

    async fn try_dial(&self, port: u16) -> Result<Box<dyn PortStream>> {
        let call = self.call("dial", Effect::None);
        let client = self.client();
        if port == DAEMON_PORT {
            // Not through the inside, where a program of the sandbox may have the port.
            return client.pool().raw().await.map_err(|fault| call.fault(fault));
        }
        let path = format!("/sandhold/ports/{port}");
        let mut request = client.request(Method::GET, &path, RequestBody::Whole(None))?;
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers_mut().insert(UPGRADE, HeaderValue::from_static("tcp"));
        let answered = client.pool().upgrade(request, client.config().answer_timeout).await;
        let response = answered.map_err(|fault| call.fault(fault))?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(response).await;
            let upgraded = upgraded.map_err(|error| call.fault(Fault::new(FaultKind::Lost, error)))?;
            return Ok(Box::new(TokioIo::new(upgraded)));
        }
        let (head, body) = response.into_parts();
        // What the status says holds even when its body is cut off or too large.
        let body =
            Limited::new(body, MAX_JSON).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Err(call.http(head.status, &head.headers, &body))
    }
}
