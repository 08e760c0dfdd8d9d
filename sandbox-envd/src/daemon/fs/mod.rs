//! The filesystem service.

use std::sync::Arc;

use crate::daemon::state::State;

/// Adds the `filesystem.Filesystem` service to the router.
pub(crate) fn register(_state: &Arc<State>, router: connectrpc::Router) -> connectrpc::Router {
    // A service is a type that implements the generated trait and holds the state:
    //   impl messages::filesystem::Filesystem for FilesystemService { async fn stat(&self, ctx, request) ... }
    //   router.add_service(Arc::new(FilesystemService { state: Arc::clone(state) }))
    // The user comes from `auth::basic_user(ctx.headers())`, pings from `keepalive::{interval, KeepAlive}`.
    router
}
