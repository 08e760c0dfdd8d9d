//! Making sandboxes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::StatusCode;
use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, FindQuery, Generation, Key, Mount, Network, OnExpiry, Outcome,
    Owner, Result, SandboxSpec, Tags,
};
use sandhold_e2b::wire::codes;

use super::made::Made;
use super::notes::Notes;
use super::sandbox::{Phase, Sandbox};
use super::start::lease;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::holds::Hold;
use crate::ids;
use crate::resolve::Template;

/// The owner of every sandbox that this server makes.
const OWNER: &str = "sandhold-server";

pub(crate) fn owner() -> Result<Owner> {
    Owner::new(OWNER)
}

/// The tags of the sandbox that clients know by this id: it is the key, and the one create that can make it.
pub(crate) fn tags(id: &str) -> Result<Tags> {
    Ok(Tags {
        owner: owner()?,
        key: Key::new(id)?,
        generation: Generation::new(id),
        attempt: Attempt::new(id),
    })
}

/// A create whose request was checked.
#[derive(Debug)]
pub(crate) struct NewSandbox {
    pub(crate) template: Template,
    pub(crate) made: Made,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) network: Network,
    pub(crate) mounts: Vec<Mount>,
    /// Keep the template and the volumes until the sandbox is listed.
    pub(crate) holds: Vec<Hold>,
}

/// What tells that two creates are one: the key that clients give it, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) key: String,
    pub(crate) request: String,
}

/// Creates by idempotency key that are under way.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Flights {
    /// The lock of one id: whoever holds it is its only creator.
    fn of(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if let Some(flight) = flights.get(id).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::new(tokio::sync::Mutex::new(()));
        flights.insert(id.to_owned(), Arc::downgrade(&flight));
        flight
    }
}

impl App {
    /// Makes a sandbox; with an idempotency key at most one, whatever happens, also after the end of that one. What it
    /// is made from is looked for only if one is to be made.
    pub(crate) async fn create_sandbox(
        self: &Arc<Self>,
        identity: Option<Identity>,
        checked: impl Future<Output = ApiResult<NewSandbox>> + Send,
    ) -> ApiResult<Arc<Sandbox>> {
        let Some(Identity { key, request }) = identity else {
            let sandbox = self.make(ids::random()?, checked.await?).await?;
            return self.started(sandbox).await;
        };
        let id = ids::from_bytes(&self.tokens.derive("idempotency", &key));
        let flight = self.flights.of(&id);
        let _flight = flight.lock().await;
        let sandbox = match self.find_sandbox(&id).await? {
            None if self.is_spent(&id).await? => return Err(key_has_ended()),
            None => self.make(id, checked.await?).await?,
            Some(known) if known.phase() == Phase::Killing => {
                return Err(ApiError::conflict("the sandbox of this idempotency key is being killed")
                    .with_error_code(codes::IDEMPOTENCY_IN_PROGRESS));
            }
            Some(known) if known.made.request.as_ref() == Some(&request) => known,
            Some(_) => {
                return Err(ApiError::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "the idempotency key was used before, with another request",
                )
                .with_error_code(codes::IDEMPOTENCY_MISMATCH));
            }
        };
        // Before what may last, and again by a copy: the server may be killed between the sandbox and the note.
        if !self.is_spent(&sandbox.id).await? {
            self.spend(&sandbox.id).await?;
        }
        // One that was paused meanwhile goes on with its start when it is woken.
        if sandbox.phase() == Phase::Running { self.started(sandbox).await } else { Ok(sandbox) }
    }

    async fn started(self: &Arc<Self>, sandbox: Arc<Sandbox>) -> ApiResult<Arc<Sandbox>> {
        self.start_new(&sandbox, Duration::from_secs(sandbox.made.timeout)).await?;
        Ok(sandbox)
    }

    /// Makes the sandbox itself, in which nothing is started yet.
    async fn make(self: &Arc<Self>, id: String, new: NewSandbox) -> ApiResult<Arc<Sandbox>> {
        let timeout = Duration::from_secs(new.made.timeout);
        let mut spec = SandboxSpec::new(new.template.provided)
            .with_network(new.network)
            .with_lease(lease(timeout, new.made.start.as_ref()))
            .with_on_expiry(if new.made.auto_pause { OnExpiry::Pause } else { OnExpiry::Kill });
        let context = new.template.context;
        spec.user = context.user;
        spec.workdir = context.workdir;
        spec.mounts = new.mounts;
        spec.env = context.env;
        spec.env.insert("E2B_TEMPLATE_ID".to_owned(), new.made.template.clone());
        spec.env.extend(new.env);
        spec.metadata = new.metadata.clone();
        new.made.put(&mut spec.metadata)?;
        let tags = tags(&id)?;
        let keyed = new.made.request.is_some();
        let handle = match self.provider.create_opts(CreateOptions::new(spec, tags.clone())).await {
            Ok(handle) => handle,
            // It was made, and ended before that was noted.
            Err(error) if keyed && error.kind() == ErrorKind::Gone => return Err(key_has_ended()),
            Err(error) => {
                let unknown = error.outcome() == Outcome::Unknown;
                if unknown && !keyed {
                    // Nobody can ask for it again: it must not live on without anybody who knows of it.
                    self.unmake(&tags).await;
                }
                if unknown
                    && keyed
                    && let Err(error) = self.find_sandbox(&id).await
                {
                    // Listed if it is there, so that it keeps what it stands on.
                    tracing::warn!(%error, id, "whether a create has made its sandbox is not known");
                }
                let answer = self.said(error);
                return Err(if unknown && keyed {
                    answer.with_error_code(codes::IDEMPOTENCY_UNKNOWN)
                } else {
                    answer
                });
            }
        };
        let info = match handle.info().await {
            Ok(info) => info,
            Err(error) => {
                if !keyed {
                    self.unmake(&tags).await;
                }
                return Err(self.said(error));
            }
        };
        let sandbox = Sandbox::new(&info, new.made, new.metadata, Notes::default(), &self.tokens);
        let sandbox = self.admit(sandbox.with_handle(handle));
        drop(new.holds);
        Ok(sandbox)
    }

    /// Answers what a provider could not do, without telling where this server keeps things.
    pub(super) fn said(&self, error: Error) -> ApiError {
        let home = self.config.home.display().to_string();
        let answer = ApiError::from(error);
        ApiError { message: answer.message.replace(&home, "HOME").into(), ..answer }
    }

    /// Destroys what a create whose end is not known may have made.
    pub(crate) async fn unmake(&self, tags: &Tags) {
        let query = FindQuery::Key {
            owner: tags.owner.clone(),
            key: tags.key.clone(),
            attempt: Some(tags.attempt.clone()),
        };
        let found = match self.provider.find(query).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, key = %tags.key, "a sandbox may be left by a create that failed");
                return;
            }
        };
        for info in found {
            if let Err(error) = self.provider.destroy(&info.id).await {
                tracing::warn!(%error, id = %info.id, "a sandbox is left by a create that failed");
            }
        }
    }
}

fn key_has_ended() -> ApiError {
    ApiError::conflict("the sandbox of this idempotency key has ended; take another key for a new one")
        .with_error_code(codes::IDEMPOTENCY_ENDED)
}
