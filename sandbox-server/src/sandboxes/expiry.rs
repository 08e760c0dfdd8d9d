//! The end of a run: the provider ends it by its lease, and this server says so at that moment, not later.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sandhold_core::{Memory, PauseOptions, Result, SandboxProviderExt, SandboxState};
use sandhold_e2b::wire::PauseMode;
use tokio::time::Instant;

use super::sandbox::{Phase, Sandbox, now};
use crate::app::App;
use crate::store::Durability;

/// Pauses between two looks at a sandbox whose end is due: the first, and the longest.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// A provider that has not ended a run so long after its end is told to.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watches over the ends of one sandbox's runs until it is forgotten.
pub(crate) async fn watch(app: Weak<App>, sandbox: Weak<Sandbox>) {
    loop {
        let Some(known) = sandbox.upgrade() else { return };
        let (due, rescheduled) = (known.deadline(), Arc::clone(&known.rescheduled));
        drop(known);
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = rescheduled.notified() => continue,
        }
        let (Some(app), Some(sandbox)) = (app.upgrade(), sandbox.upgrade()) else { return };
        end(&app, &sandbox).await;
    }
}

/// Ends a run whose time is up, in a turn of its own.
async fn end(app: &Arc<App>, sandbox: &Arc<Sandbox>) {
    let _turn = sandbox.turns.next().await;
    if sandbox.ends_within(Duration::ZERO) {
        see_out(app, sandbox, Duration::MAX).await;
    }
}

/// Sees a run to the end that is due; it runs on for [`watch`] when the provider cannot tell for so long. The caller
/// holds the turn.
pub(super) async fn see_out(app: &Arc<App>, sandbox: &Arc<Sandbox>, patience: Duration) {
    let end_at = sandbox.run().end_at;
    let policy = if sandbox.made.auto_pause { "pause" } else { "kill" };
    tracing::info!(id = sandbox.id, policy, "the time of a sandbox is up");
    sandbox.set_phase(if sandbox.made.auto_pause { Phase::Pausing } else { Phase::Killing });
    let begun = Instant::now();
    let mut pause = LOOK.0;
    loop {
        match look(app, sandbox, begun.elapsed() > PATIENCE).await {
            Ok(Ended::Gone) => return app.forget(sandbox).await,
            Ok(Ended::Paused(mode)) => {
                sandbox.set_paused(end_at.min(now()), mode);
                if let Err(error) = app.note(sandbox, Durability::Machine).await {
                    tracing::warn!(%error, id = sandbox.id, "the pause of a sandbox could not be noted");
                }
                return;
            }
            Ok(Ended::Longer(end)) => {
                sandbox.set_end(end);
                return sandbox.set_phase(Phase::Running);
            }
            Ok(Ended::NotYet) => {}
            Err(error) => tracing::warn!(%error, id = sandbox.id, "how a sandbox ended is not known yet"),
        }
        if begun.elapsed() >= patience {
            return sandbox.set_phase(Phase::Running);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK.1);
    }
}

enum Ended {
    Gone,
    Paused(PauseMode),
    /// Somebody else gave it more time.
    Longer(std::time::SystemTime),
    NotYet,
}

async fn look(app: &App, sandbox: &Sandbox, late: bool) -> Result<Ended> {
    let Some(info) = app.provider.find_id(&sandbox.provided).await? else { return Ok(Ended::Gone) };
    let auto_pause = sandbox.made.auto_pause;
    let mode = if sandbox.made.auto_pause_memory { PauseMode::Full } else { PauseMode::Filesystem };
    match info.state {
        SandboxState::Paused if auto_pause => Ok(Ended::Paused(mode)),
        SandboxState::Stopped if auto_pause => Ok(Ended::Paused(PauseMode::Filesystem)),
        SandboxState::Running => match info.expires_at {
            Some(end) if end > now() + Duration::from_secs(1) => Ok(Ended::Longer(end)),
            _ if !late => Ok(Ended::NotYet),
            _ if auto_pause => {
                let options = PauseOptions::default().with_memory(Memory::Kept);
                app.provider.pause_opts(&sandbox.provided, options).await?;
                Ok(Ended::Paused(mode))
            }
            _ => {
                app.provider.destroy(&sandbox.provided).await?;
                Ok(Ended::Gone)
            }
        },
        // It was to be killed and only stopped, or was paused by somebody else.
        SandboxState::Paused | SandboxState::Stopped => {
            app.provider.destroy(&sandbox.provided).await?;
            Ok(Ended::Gone)
        }
        _ => Ok(Ended::NotYet),
    }
}
