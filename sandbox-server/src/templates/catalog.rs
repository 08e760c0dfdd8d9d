//! The templates of this server, in memory and on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::Result;
use sandhold_e2b::wire::{BuildStatus, Timestamp};
use tokio::sync::RwLock;

use crate::app::blocking;
use crate::error::{ApiError, ApiResult};
use crate::store::{Durability, Store};

use super::ids;
use super::names::{DEFAULT_TAG, TemplateName};
use super::record::{BuildRecord, Built, Reason, TagRecord, TemplateRecord};

/// Directory of the documents, one a template.
const TEMPLATES: &str = "templates";
/// The name and the id of the template that is always there: the provider's own.
pub(crate) const BASE: &str = "base";
/// Builds that never got their steps are forgotten after this time.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// So many builds that no tag stands for are remembered a template.
const MAX_OLD_BUILDS: usize = 50;

/// What [`Catalog::request`] is asked for.
#[derive(Debug, Default)]
pub(crate) struct BuildRequest {
    pub(crate) tags: Vec<String>,
    pub(crate) cpu_count: Option<u32>,
    pub(crate) memory_mb: Option<u64>,
}

/// All templates. Each change is on disk before it is seen.
#[derive(Debug)]
pub(crate) struct Catalog {
    store: Arc<Store>,
    /// Whether there are templates that could not be read.
    damaged: bool,
    templates: RwLock<BTreeMap<String, TemplateRecord>>,
}

pub(crate) fn now() -> Timestamp {
    Timestamp(SystemTime::now())
}

impl Catalog {
    /// Reads all templates. Builds that ran when the server died have failed. Blocks.
    pub(crate) fn open(store: Arc<Store>) -> Result<Self> {
        store.make_dir(TEMPLATES)?;
        let (mut templates, damaged) = store.read_all::<TemplateRecord>(TEMPLATES)?;
        for (id, record) in &mut templates {
            let before = record.clone();
            for build in record.builds.iter_mut().filter(|build| build.status == BuildStatus::Building) {
                fail(
                    build,
                    Reason {
                        message: "the server was stopped during the build; build again".to_owned(),
                        step: None,
                    },
                );
            }
            let old = |build: &BuildRecord| {
                let waited = SystemTime::now().duration_since(build.created_at.0).unwrap_or_default();
                build.status == BuildStatus::Waiting && waited > MAX_WAIT
            };
            record.builds.retain(|build| !old(build));
            if *record != before {
                store.write(&format!("{TEMPLATES}/{id}"), record, Durability::Machine)?;
            }
        }
        Ok(Self { store, damaged, templates: RwLock::new(templates) })
    }

    /// Tells whether all that sandboxes may be made from is known here.
    pub(crate) fn is_whole(&self) -> bool {
        !self.damaged
    }

    /// Changes one template as a whole; nothing is changed if `change` fails.
    async fn change<T: Send>(
        &self,
        id: &str,
        change: impl FnOnce(&mut TemplateRecord) -> ApiResult<T>,
    ) -> ApiResult<T> {
        let mut templates = self.templates.write().await;
        let record = templates.get(id).ok_or_else(|| not_found(id))?;
        let mut changed = record.clone();
        let answer = change(&mut changed)?;
        changed.updated_at = now();
        self.put(&changed).await?;
        templates.insert(id.to_owned(), changed);
        Ok(answer)
    }

    async fn put(&self, record: &TemplateRecord) -> Result<()> {
        let (store, record) = (Arc::clone(&self.store), record.clone());
        blocking(move || store.write(&format!("{TEMPLATES}/{}", record.id), &record, Durability::Machine))
            .await
    }

    /// Returns a template by its name or id, whatever the tag.
    pub(crate) async fn find(&self, name: &TemplateName) -> Option<TemplateRecord> {
        if !name.is_ours() {
            return None;
        }
        let templates = self.templates.read().await;
        let by_name = templates.values().find(|record| record.name == name.name);
        by_name.or_else(|| templates.get(&name.name).filter(|_| name.namespace.is_none())).cloned()
    }

    /// Returns all templates, newest first.
    pub(crate) async fn all(&self) -> Vec<TemplateRecord> {
        let mut all: Vec<_> = self.templates.read().await.values().cloned().collect();
        all.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        all
    }

    /// Adds a build that waits for its steps, and the template if there is none of this name.
    pub(crate) async fn request(
        &self,
        name: &TemplateName,
        request: BuildRequest,
    ) -> ApiResult<(TemplateRecord, String)> {
        let mut templates = self.templates.write().await;
        let known =
            templates.values().find(|record| record.name == name.name).or_else(|| templates.get(&name.name));
        let mut record = match known {
            Some(known) => known.clone(),
            None => TemplateRecord {
                id: ids::template()?,
                name: name.name.clone(),
                public: false,
                created_at: now(),
                updated_at: now(),
                builds: Vec::new(),
                tags: BTreeMap::new(),
            },
        };
        let build = ids::build()?;
        record.updated_at = now();
        record.builds.push(BuildRecord {
            id: build.clone(),
            status: BuildStatus::Waiting,
            created_at: now(),
            updated_at: now(),
            finished_at: None,
            cpu_count: request.cpu_count,
            memory_mb: request.memory_mb,
            tags: request.tags,
            reason: None,
            built: None,
        });
        forget_old_builds(&mut record);
        self.put(&record).await?;
        templates.insert(record.id.clone(), record.clone());
        Ok((record, build))
    }

    /// Marks a waiting build as running.
    pub(crate) async fn start(&self, template: &str, build: &str) -> ApiResult<()> {
        self.change(template, |record| {
            let build = record.build_mut(build).ok_or_else(|| unknown_build(build))?;
            if build.status != BuildStatus::Waiting {
                return Err(ApiError::bad_request(format!(
                    "build {} does not wait for its steps: it is {}",
                    build.id,
                    status_word(build.status)
                )));
            }
            build.status = BuildStatus::Building;
            build.updated_at = now();
            Ok(())
        })
        .await
    }

    /// Ends a running build; one that is ready gets its tags.
    pub(crate) async fn finish(
        &self,
        template: &str,
        id: &str,
        outcome: Result<Built, Reason>,
    ) -> ApiResult<()> {
        self.change(template, |record| {
            let build = record.build_mut(id).ok_or_else(|| unknown_build(id))?;
            let built = match outcome {
                Ok(built) => built,
                Err(reason) => {
                    fail(build, reason);
                    return Ok(());
                }
            };
            build.status = BuildStatus::Ready;
            build.updated_at = now();
            build.finished_at = Some(build.updated_at);
            build.built = Some(built);
            let (since, tags) = (build.created_at, build.tags.clone());
            for tag in tags {
                if record.tags.get(&tag).is_none_or(|present| present.since <= since) {
                    record.tags.insert(tag, TagRecord { build: id.to_owned(), since });
                }
            }
            Ok(())
        })
        .await
    }

    /// Gives a build more tags.
    pub(crate) async fn assign(&self, template: &str, build: &str, tags: &[String]) -> ApiResult<()> {
        self.change(template, |record| {
            for tag in tags {
                record.tags.insert(tag.clone(), TagRecord { build: build.to_owned(), since: now() });
            }
            Ok(())
        })
        .await
    }

    /// Takes tags away; those that are not there are no error.
    pub(crate) async fn unassign(&self, template: &str, tags: &[String]) -> ApiResult<()> {
        self.change(template, |record| {
            record.tags.retain(|tag, _| !tags.contains(tag));
            forget_old_builds(record);
            Ok(())
        })
        .await
    }

    /// Says whether others may use a template; for one team it is only kept.
    pub(crate) async fn set_public(&self, template: &str, public: bool) -> ApiResult<()> {
        self.change(template, |record| {
            record.public = public;
            Ok(())
        })
        .await
    }

    /// Forgets a template, unless it is used; that is asked while nobody can find it.
    pub(crate) async fn remove(
        &self,
        template: &str,
        used: impl FnOnce() -> Option<ApiError>,
    ) -> ApiResult<()> {
        let mut templates = self.templates.write().await;
        if !templates.contains_key(template) {
            return Err(not_found(template));
        }
        if let Some(refusal) = used() {
            return Err(refusal);
        }
        let (store, name) = (Arc::clone(&self.store), format!("{TEMPLATES}/{template}"));
        blocking(move || store.remove(&name)).await?;
        templates.remove(template);
        Ok(())
    }

    /// Returns every snapshot that a build made.
    pub(crate) async fn snapshots(&self) -> Vec<String> {
        let templates = self.templates.read().await;
        let builds = templates.values().flat_map(|record| &record.builds);
        builds.filter_map(|build| build.built.as_ref()?.layer.snapshot.clone()).collect()
    }
}

/// Says that there is no such template, in E2B's words.
pub(crate) fn not_found(name: &str) -> ApiError {
    let shown: String = name.chars().take(256).collect();
    ApiError::not_found(format!("template '{shown}' not found"))
}

/// Says that there is no such build, with E2B's status.
pub(crate) fn unknown_build(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::bad_request(format!("build '{shown}' not found"))
}

pub(crate) fn status_word(status: BuildStatus) -> &'static str {
    match status {
        BuildStatus::Waiting => "waiting",
        BuildStatus::Building => "building",
        BuildStatus::Ready => "ready",
        _ => "error",
    }
}

fn fail(build: &mut BuildRecord, reason: Reason) {
    build.status = BuildStatus::Error;
    build.updated_at = now();
    build.finished_at = Some(build.updated_at);
    build.reason = Some(reason);
}

/// Forgets the oldest builds that have ended and that no tag stands for.
fn forget_old_builds(record: &mut TemplateRecord) {
    let tagged: Vec<_> = record.tags.values().map(|tag| tag.build.clone()).collect();
    let old = |build: &BuildRecord| build.status.is_terminal() && !tagged.contains(&build.id);
    let mut surplus = record.builds.iter().filter(|build| old(build)).count().saturating_sub(MAX_OLD_BUILDS);
    record.builds.retain(|build| {
        let goes = surplus > 0 && old(build);
        surplus -= usize::from(goes);
        !goes
    });
}

/// Returns the tags that a request means: none is the default one.
pub(crate) fn or_default(tags: Vec<String>) -> Vec<String> {
    if tags.is_empty() { vec![DEFAULT_TAG.to_owned()] } else { tags }
}
