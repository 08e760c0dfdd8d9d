//! Signed URLs of files that name no sandbox: the signature tells whose they are.

use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use sandhold_core::DAEMON_PORT;
use sandhold_envd::FileAccess;

use super::access::operation;
use super::target::Target;
use crate::app::App;

/// So many signatures are computed without giving way to other requests: about a millisecond.
const STRIDE: usize = 500;

/// Tells whether a request is one for a file by a signed URL alone.
pub(crate) fn is_signed(uri: &Uri, headers: &HeaderMap) -> bool {
    uri.path() == "/files"
        && !headers.contains_key("x-api-key")
        && FileAccess::from_query(uri.query().unwrap_or_default()).is_signed()
}

/// Finds the sandbox with whose token a request was signed, expired or not.
pub(crate) async fn owner_of(app: &Arc<App>, method: &Method, uri: &Uri) -> Option<Target> {
    let access = FileAccess::from_query(uri.query().unwrap_or_default());
    let operation = operation(method);
    for sandboxes in app.sandboxes.all().chunks(STRIDE) {
        let signer = sandboxes.iter().find(|sandbox| {
            sandbox.access_token.as_deref().is_some_and(|token| access.is_signed_by(token, operation))
        });
        if let Some(signer) = signer {
            return Some(Target { id: signer.id.clone(), port: DAEMON_PORT });
        }
        tokio::task::yield_now().await;
    }
    None
}
