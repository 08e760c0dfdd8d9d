//! New sandboxes from the present state of another.

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{ForkOptions, Outcome, SandboxInfo};

use super::create::tags;
use super::sandbox::Sandbox;
use super::start::lease;
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
        let turn = source.transition().await?;
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
        drop(turn);
        let starts: Vec<_> =
            made.into_iter().map(|fork| tokio::spawn(Arc::clone(self).serving(fork, timeout))).collect();
        let mut served = Vec::with_capacity(count);
        for start in starts {
            served.push(
                start.await.unwrap_or_else(|_| Err(ApiError::internal("the start of a fork broke off"))),
            );
        }
        Ok(served)
    }

    /// Starts in a fork what its template starts: it has the files of its source and none of its processes.
    async fn serving(
        self: Arc<Self>,
        fork: ApiResult<Arc<Sandbox>>,
        timeout: Duration,
    ) -> ApiResult<Arc<Sandbox>> {
        let fork = fork?;
        self.start_new(&fork, timeout).await?;
        Ok(fork)
    }

    async fn fork_once(
        self: &Arc<Self>,
        source: &Arc<Sandbox>,
        timeout: Duration,
    ) -> ApiResult<Arc<Sandbox>> {
        let tags = tags(&ids::random()?)?;
        let options = ForkOptions::new(tags.clone()).with_lease(lease(timeout, source.made.start.as_ref()));
        let handle = match self.provider.fork(&source.provided, options).await {
            Ok(handle) => handle,
            Err(error) => {
                if error.outcome() == Outcome::Unknown {
                    self.unmake(&tags).await;
                }
                return Err(self.said(error));
            }
        };
        let info: SandboxInfo = handle.info().await?;
        let sandbox = self.adopt(&info).await?;
        sandbox.pool.set_handle(handle);
        Ok(sandbox)
    }
}
