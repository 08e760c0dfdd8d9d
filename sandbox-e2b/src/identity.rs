//! Who a sandbox belongs to, as metadata; and what its metadata and facts say.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sandhold_core::{
    Attempt, Error, Generation, Key, Owner, Result, SandboxId, SandboxInfo, SandboxState, Tags,
};

use crate::config::E2bConfig;
use crate::wire::{SandboxDetail, State};

/// What names of ours begin with.
const PREFIX: &str = "sandhold-";

pub(crate) const OWNER: &str = "sandhold-owner";
pub(crate) const KEY: &str = "sandhold-key";
pub(crate) const GENERATION: &str = "sandhold-generation";
pub(crate) const ATTEMPT: &str = "sandhold-attempt";
/// The user of commands, where it is not the usual one.
const USER: &str = "sandhold-user";
/// The template as it was asked for; E2B itself tells the base of it only.
const TEMPLATE: &str = "sandhold-template";

/// Under which name Mastra's own E2B integration stores its id of a sandbox.
pub(crate) const MASTRA_ID: &str = "mastra-sandbox-id";

/// The usual user.
pub(crate) const DEFAULT_USER: &str = "user";

/// Puts the tags beside the free pairs.
pub(crate) fn metadata(
    free: &BTreeMap<String, String>,
    tags: &Tags,
    user: &str,
    template: &str,
) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (name, value) in free {
        if name.starts_with(PREFIX) {
            return Err(Error::invalid_argument(format!(
                "the metadata name {name:?} begins with {PREFIX}, which is reserved; choose another"
            )));
        }
        all.insert(name.clone(), value.clone());
    }
    for (name, value) in [
        (OWNER, tags.owner.as_str()),
        (KEY, tags.key.as_str()),
        (GENERATION, tags.generation.as_str()),
        (ATTEMPT, tags.attempt.as_str()),
        (TEMPLATE, template),
    ] {
        all.insert(name.to_owned(), value.to_owned());
    }
    if user != DEFAULT_USER {
        all.insert(USER.to_owned(), user.to_owned());
    }
    Ok(all)
}

/// Returns the free pairs.
pub(crate) fn free(metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let pairs = metadata.iter().filter(|(name, _)| !name.starts_with(PREFIX));
    pairs.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the user that commands run as.
pub(crate) fn user(detail: &SandboxDetail) -> &str {
    text(detail, USER).unwrap_or(DEFAULT_USER)
}

/// Returns the template as it was asked for.
pub(crate) fn template(detail: &SandboxDetail) -> &str {
    text(detail, TEMPLATE).or(detail.alias.as_deref()).unwrap_or(&detail.template_id)
}

fn text<'a>(detail: &'a SandboxDetail, name: &str) -> Option<&'a str> {
    detail.metadata.as_ref()?.get(name).map(String::as_str)
}

/// Reads who a sandbox belongs to; half a set of tags is none.
pub(crate) fn tags(config: &E2bConfig, detail: &SandboxDetail) -> Option<Tags> {
    let own = || {
        Some(Tags {
            owner: Owner::new(text(detail, OWNER)?).ok()?,
            key: Key::new(text(detail, KEY)?).ok()?,
            generation: Generation::new(text(detail, GENERATION)?),
            attempt: Attempt::new(text(detail, ATTEMPT)?),
        })
    };
    // Mastra's sandboxes have no generation: the id, which is never used twice, is as good.
    let mastra = || {
        let identity = format!("mastra-{}", detail.sandbox_id);
        Some(Tags {
            owner: config.mastra_owner.clone()?,
            key: Key::new(text(detail, MASTRA_ID)?).ok()?,
            generation: Generation::new(identity.clone()),
            attempt: Attempt::new(identity),
        })
    };
    own().or_else(mastra)
}

/// Returns the facts in the words of the contract.
pub(crate) fn info(config: &E2bConfig, detail: &SandboxDetail) -> SandboxInfo {
    let state = match detail.state {
        State::Running => SandboxState::Running,
        State::Paused => SandboxState::Paused,
        State::Other => SandboxState::Transitioning,
    };
    let id = SandboxId::new(detail.sandbox_id.clone());
    let started = detail.started_at.0;
    // E2B tells the start of the present run only. An attempt says when it was drawn, by its creator's clock. That tells a
    // run that began long after the create, which is a resume, and no more: of two creates the one that was drawn first
    // may be the one that came last, and contenders must agree on which came first.
    let tags = tags(config, detail);
    let is_resumed = |drawn: &SystemTime| {
        started.duration_since(*drawn).is_ok_and(|before| before > config.longest_create())
    };
    let drawn = tags.as_ref().and_then(|tags| tags.attempt.drawn_at());
    let created = drawn.filter(is_resumed).unwrap_or(started);
    let mut info = SandboxInfo::new(id, state, template(detail), created);
    info.started_at = started;
    info.tags = tags;
    info.expires_at = expiry(detail);
    info.metadata = detail.metadata.as_ref().map(free).unwrap_or_default();
    info
}

/// A paused sandbox has no lease that ends: what E2B tells is when it was paused.
fn expiry(detail: &SandboxDetail) -> Option<SystemTime> {
    (detail.state == State::Running).then_some(detail.end_at.0)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::json;

    use super::*;

    /// A sandbox whose attempt was drawn at 1000 s, and whose run began so long after.
    fn begun_after(milliseconds: i64) -> SandboxInfo {
        let started = crate::wire::Timestamp(if milliseconds < 0 {
            UNIX_EPOCH + Duration::from_secs(1000) - Duration::from_millis(milliseconds.unsigned_abs())
        } else {
            UNIX_EPOCH + Duration::from_secs(1000) + Duration::from_millis(milliseconds.unsigned_abs())
        });
        let attempt = format!("{:012x}7{}", 1_000_000, "0".repeat(19));
        let detail = json!({
            "sandboxID": "i1", "templateID": "base", "startedAt": started, "endAt": started, "state": "running",
            "metadata": { OWNER: "o", KEY: "k", GENERATION: "g", ATTEMPT: attempt },
        });
        info(&E2bConfig::new("k"), &serde_json::from_value(detail).unwrap())
    }

    #[test]
    fn what_was_drawn_first_and_made_last_is_the_younger_one() {
        // Both were never resumed: the provider's time alone says which came first, whatever their creators' clocks say.
        for delay in [-3_600_000, 0, 7, 30_000] {
            let info = begun_after(delay);
            assert_eq!(info.created_at, info.started_at, "{delay}");
        }
    }

    #[test]
    fn a_run_that_began_long_after_the_create_is_a_resume() {
        let info = begun_after(600_000);
        assert_eq!(info.created_at, UNIX_EPOCH + Duration::from_secs(1000));
        assert!(info.started_at > info.created_at);
    }
}
