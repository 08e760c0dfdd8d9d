//! New sandboxes from the present state of another.

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{ForkOptions, Outcome, SandboxInfo};

use super::create::tags;
use super::sandbox::Sandbox;
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
        let paused = |id: &str| ApiError::conflict(format!("Sandbox {id} is paused"));
        let _turn = source.transition().await?;
        source.must_run(paused)?;
        let mut made = Vec::with_capacity(count);
        for _ in 0..count {
            let fork = self.fork_once(source, timeout).await;
            if fork.is_err() && made.is_empty() {
                // A source that is no more is no failure of one fork.
                self.settle_after(source).await;
                source.must_run(paused)?;
            }
            made.push(fork);
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
