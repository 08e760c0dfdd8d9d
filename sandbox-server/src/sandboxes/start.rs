//! What a template starts in its sandboxes: once in each memory, whoever asks, and whatever happens to this server.

use std::sync::Arc;
use std::time::Duration;

use super::changes::Nearer;
use super::notes::Start;
use super::sandbox::{Phase, Sandbox};
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::templates::StartCommands;
use crate::templates::start::{begin, until_ready};

/// How long the start command of a template may take until it is ready: a little less than clients wait.
const START_LIMIT: Duration = Duration::from_secs(55);

/// Why what a template starts does not serve.
enum Unready {
    /// It failed; the sandbox runs.
    Failed(String),
    /// The sandbox ceased to run before it was ready.
    Ended,
}

/// What a sandbox is where the start fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    /// Nobody asked for one that does not serve: it is killed.
    Nothing,
    /// It has work of its owner: it is kept, and open, and not tried again.
    ItsFiles,
}

/// How long a run lasts that is to last so long once it serves.
pub(super) fn lease(timeout: Duration, commands: Option<&StartCommands>) -> Duration {
    // The end of a run must not come before its begin: the time counts from the answer.
    if commands.is_some() { timeout + START_LIMIT } else { timeout }
}

impl App {
    /// Starts what the template starts, or waits for whoever does; then the run lasts so long from now.
    async fn start_up(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
        worth: Worth,
    ) -> Result<(), Unready> {
        let Some(commands) = &sandbox.made.start else { return Ok(()) };
        if sandbox.run().start == Start::Done {
            return Ok(());
        }
        let _alone = sandbox.starting.lock().await;
        let run = sandbox.run();
        if run.phase != Phase::Running {
            return Err(Unready::Ended);
        }
        let mut outcome = Ok(());
        let mut nearer = Nearer::Never;
        if run.start != Start::Done {
            outcome = match sandbox.lines.while_open(self.start_in(sandbox, commands)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(why)) if !matches!(self.check(sandbox).await, Ok(false)) => Err(Unready::Failed(why)),
                _ => Err(Unready::Ended),
            };
            if matches!(outcome, Err(Unready::Ended)) || sandbox.phase() != Phase::Running {
                return Err(Unready::Ended);
            }
            if sandbox.run().end_at == run.end_at {
                // Nobody gave it another end meanwhile: the time for the start is taken back.
                nearer = Nearer::Too;
            }
        }
        let turn = sandbox.turns.next().await;
        if sandbox.run().started_at != run.started_at {
            // It was paused and woken just now: what was started is of another run.
            return Err(Unready::Ended);
        }
        if let Err(error) = self.set_timeout_now(&turn, sandbox, timeout, nearer).await {
            return Err(match sandbox.phase() {
                Phase::Running => Unready::Failed(format!("time cannot be set: {}", error.message)),
                _ => Unready::Ended,
            });
        }
        // Noted last: whoever goes on after the death of this server sets the time, too.
        if outcome.is_ok() || worth == Worth::ItsFiles {
            sandbox.set_start(Start::Done);
            self.note_or_warn(sandbox).await;
        }
        outcome
    }

    async fn start_in(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        commands: &StartCommands,
    ) -> Result<(), String> {
        let handle = sandbox.pool.handle(self, sandbox).await.map_err(|error| error.message().to_owned())?;
        if sandbox.run().start == Start::Pending {
            begin(handle.as_ref(), commands).await?;
            // In a turn: a note of another's must not be replaced by an older one.
            let _turn = sandbox.turns.next().await;
            sandbox.set_start(Start::Begun);
            self.note_or_warn(sandbox).await;
        }
        until_ready(handle.as_ref(), commands, START_LIMIT).await
    }

    /// Starts what the template starts in a new sandbox, which is killed where that fails.
    pub(super) async fn start_new(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
    ) -> ApiResult<()> {
        match self.start_up(sandbox, timeout, Worth::Nothing).await {
            Ok(()) => Ok(()),
            Err(Unready::Ended) => Err(ended(sandbox)),
            Err(Unready::Failed(why)) => {
                if let Err(error) = self.kill(sandbox).await
                    && sandbox.phase() != Phase::Killing
                {
                    return Err(error);
                }
                Err(ApiError::internal(format!("the template's {why}")))
            }
        }
    }

    /// Starts what the template starts in a sandbox that has work of its owner, and is kept where that fails.
    pub(super) async fn start_again(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        timeout: Duration,
    ) -> ApiResult<()> {
        match self.start_up(sandbox, timeout, Worth::ItsFiles).await {
            Ok(()) => Ok(()),
            Err(Unready::Ended) => {
                sandbox.must_be_there()?;
                Err(ended(sandbox))
            }
            Err(Unready::Failed(why)) => {
                tracing::warn!(why, id = sandbox.id, "a sandbox runs without what its template starts");
                Ok(())
            }
        }
    }
}

/// Says that it ceased to run. Not as 404: clients of a create take that for a template that is not there.
fn ended(sandbox: &Sandbox) -> ApiError {
    ApiError::conflict(format!(
        "Sandbox {} ceased to run before what its template starts was ready",
        sandbox.id
    ))
}
