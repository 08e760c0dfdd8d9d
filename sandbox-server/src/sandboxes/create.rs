//! Making sandboxes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::StatusCode;
use sandhold_core::{
    Attempt, CreateOptions, FindQuery, Generation, Key, Mount, Network, OnExpiry, Outcome, Owner, Result,
    SandboxSpec, Tags,
};
use sandhold_e2b::wire::codes;

use super::made::Made;
use super::notes::Notes;
use super::sandbox::{Phase, Sandbox};
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::ids;
use crate::resolve::Template;
use crate::templates::start::start;

/// How long the start command of a template may take until it is ready: a little less than clients wait.
pub(super) const START_LIMIT: Duration = Duration::from_secs(55);

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
    /// Creates with the same one are one create.
    pub(crate) idempotency_key: Option<String>,
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
    /// Makes a sandbox; with an idempotency key at most one, whatever happens, also after the end of that one.
    pub(crate) async fn create_sandbox(self: &Arc<Self>, new: NewSandbox) -> ApiResult<Arc<Sandbox>> {
        let Some(key) = &new.idempotency_key else {
            return self.make(ids::random()?, new).await;
        };
        let id = ids::from_bytes(&self.tokens.derive("idempotency", key));
        let flight = self.flights.of(&id);
        let _flight = flight.lock().await;
        match self.find_sandbox(&id).await? {
            None if self.is_spent(&id).await? => Err(ApiError::conflict(
                "the sandbox of this idempotency key has ended; take another key for a new one",
            )
            .with_error_code(codes::IDEMPOTENCY_ENDED)),
            None => {
                let sandbox = self.make(id, new).await?;
                self.spend(&sandbox.id).await?;
                Ok(sandbox)
            }
            Some(known) if known.phase() == Phase::Killing => {
                Err(ApiError::conflict("the sandbox of this idempotency key is being killed")
                    .with_error_code(codes::IDEMPOTENCY_IN_PROGRESS))
            }
            Some(known) if known.made.request == new.made.request => {
                // The server may have been killed between the sandbox and the note.
                if !self.is_spent(&id).await? {
                    self.spend(&id).await?;
                }
                Ok(known)
            }
            Some(_) => Err(ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the idempotency key was used before, with another request",
            )
            .with_error_code(codes::IDEMPOTENCY_MISMATCH)),
        }
    }

    async fn make(self: &Arc<Self>, id: String, new: NewSandbox) -> ApiResult<Arc<Sandbox>> {
        let mut spec = SandboxSpec::new(new.template.provided)
            .with_network(new.network)
            .with_lease(Duration::from_secs(new.made.timeout))
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
        let handle = match self.provider.create_opts(CreateOptions::new(spec, tags.clone())).await {
            Ok(handle) => handle,
            Err(error) => {
                let keyed = new.idempotency_key.is_some();
                let unknown = error.outcome() == Outcome::Unknown;
                if unknown && !keyed {
                    // Nobody can ask for it again: it must not live on without anybody who knows of it.
                    self.unmake(&tags).await;
                }
                let answer = ApiError::from(error);
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
                if new.idempotency_key.is_none() {
                    self.unmake(&tags).await;
                }
                return Err(error.into());
            }
        };
        let sandbox = Sandbox::new(&info, new.made, new.metadata, Notes::default(), &self.tokens);
        let sandbox = self.admit(sandbox.with_handle(Arc::clone(&handle)));
        if let Some(commands) = &new.template.start
            && let Err(why) = start(handle.as_ref(), commands, START_LIMIT).await
        {
            // Nobody asked for one that does not serve.
            self.kill(&sandbox).await?;
            return Err(ApiError::internal(format!("the template's {why}")));
        }
        Ok(sandbox)
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
