//! New sandboxes from the present state of another.

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{ForkOptions, Outcome, SandboxInfo};

use super::create::tags;
use super::index::not_found;
use super::sandbox::{Phase, Sandbox};
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::ids;

impl App {
    /// Makes so many forks, each with an outcome of its own. The source keeps its id and its end.
    pub(crate) async fn fork(
        self: &Arc<Self>,
        source: &Arc<Sandbox>,
        count: usize,
        timeout: Duration,
    ) -> ApiResult<Vec<ApiResult<Arc<Sandbox>>>> {
        let _turn = source.turn_now()?;
        match source.phase() {
            Phase::Running => {}
            Phase::Killing => return Err(not_found(&source.id)),
            _ => return Err(ApiError::conflict(format!("Sandbox {} is paused", source.id))),
        }
        let mut made = Vec::with_capacity(count);
        for _ in 0..count {
            made.push(self.fork_once(source, timeout).await);
        }
        Ok(made)
    }

    async fn fork_once(
        self: &Arc<Self>,
        source: &Arc<Sandbox>,
        timeout: Duration,
    ) -> ApiResult<Arc<Sandbox>> {
        let tags = tags(&ids::random()?)?;
        let options = ForkOptions::new(tags.clone()).with_lease(timeout);
        let handle = match self.provider.fork(&source.provided, options).await {
            Ok(handle) => handle,
            Err(error) => {
                if error.outcome() == Outcome::Unknown {
                    self.unmake(&tags).await;
                }
                return Err(error.into());
            }
        };
        let info: SandboxInfo = handle.info().await?;
        let sandbox = self.adopt(&info).await?;
        sandbox.pool.set_handle(handle);
        Ok(sandbox)
    }
}
