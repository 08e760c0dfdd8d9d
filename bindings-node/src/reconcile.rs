//! What a registry remembers, and what it and a provider do not agree about.

use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::{
    Disposal, Kept, Key, OrphanReport, Owner, Phase, ReconcilePlan, ReconcilePolicy, Reconciler,
    RecordFilter, Registry, RegistryScope, Result, Step, StepOutcome,
};
use sandhold_registry::RegistryUrl;
use tokio::sync::OnceCell;

use crate::control::NativeProvider;
use crate::convert::{Options, checked, extract, one_of};
use crate::errors::{NativeFailure, invalid_argument, thrown};
use crate::runtime::{NativeCall, call};
use crate::stream::NativeRecords;
use crate::values::{self, Finding, Maybe};

/// A registry that is opened by the first call that needs it.
struct Place {
    url: RegistryUrl,
    open: OnceCell<Arc<dyn Registry>>,
}

/// A registry, for operators.
#[napi]
#[derive(Clone)]
pub struct NativeRegistry(Arc<Place>);

impl NativeRegistry {
    pub(crate) async fn open(&self) -> Result<Arc<dyn Registry>> {
        self.0.open.get_or_try_init(|| self.0.url.open()).await.cloned()
    }
}

#[napi]
impl NativeRegistry {
    #[napi(constructor)]
    pub fn new(env: &Env, url: Unknown<'_>) -> napi::Result<Self> {
        let url = extract::<String>(env, "Registry", "url", url)?;
        let url = checked(env, "url", RegistryUrl::parse(&url))?;
        Ok(Self(Arc::new(Place { url, open: OnceCell::new() })))
    }

    /// Who its leases hold between.
    #[napi]
    pub fn scope<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let registry = self.clone();
        call(env, around, async move {
            Ok(match registry.open().await?.scope() {
                RegistryScope::Process => "process",
                RegistryScope::Machine => "machine",
                _ => "cluster",
            })
        })
    }

    /// Loads the record of a key.
    #[napi]
    pub fn load<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        owner: Unknown<'_>,
        key: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Maybe<values::Record>>> {
        let registry = self.clone();
        let owner = checked(env, "owner", Owner::new(extract::<String>(env, "load", "owner", owner)?))?;
        let key = checked(env, "key", Key::new(extract::<String>(env, "load", "key", key)?))?;
        call(env, around, async move { registry.open().await?.load(&owner, &key).await.map(values::maybe) })
    }

    /// Lists records.
    #[napi]
    pub fn list<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeRecords>> {
        let (registry, filter) = (self.clone(), filter(env, options)?);
        call(env, around, async move { registry.open().await?.list(filter).await })
    }
}

fn filter(env: &Env, options: Option<Object<'_>>) -> napi::Result<RecordFilter> {
    let mut given = Options::new(env, "list", options);
    let mut filter = RecordFilter::default();
    if let Some(owner) = given.take::<String>("owner")? {
        filter.owner = Some(checked(env, "owner", Owner::new(owner))?);
    }
    filter.provider = given.take("provider")?;
    let phases =
        [Phase::Creating, Phase::Ready, Phase::Pausing, Phase::Paused, Phase::Resuming, Phase::Destroying];
    let words = phases.map(|phase| (phase.as_str(), phase));
    for phase in given.take::<Vec<String>>("phases")?.unwrap_or_default() {
        filter.phases.push(one_of(env, "phases", &phase, &words)?);
    }
    filter.min_age = given.millis("minAge")?;
    given.finish()?;
    Ok(filter)
}

/// Finds what provider and registry do not agree about.
#[napi]
pub struct NativeReconciler(Arc<Unopened>);

struct Unopened {
    provider: NativeProvider,
    registry: NativeRegistry,
    options: (Option<Owner>, Option<std::time::Duration>),
}

impl Unopened {
    async fn open(&self) -> Result<Reconciler> {
        let mut reconciler = Reconciler::new(Arc::clone(&self.provider.0), self.registry.open().await?);
        if let Some(owner) = self.options.0.clone() {
            reconciler = reconciler.with_owner(owner);
        }
        if let Some(age) = self.options.1 {
            reconciler = reconciler.with_min_age(age);
        }
        Ok(reconciler)
    }
}

#[napi]
impl NativeReconciler {
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        provider: &NativeProvider,
        registry: &NativeRegistry,
        options: Option<Object<'_>>,
    ) -> napi::Result<Self> {
        let mut given = Options::new(env, "Reconciler", options);
        let owner = match given.take::<String>("owner")? {
            Some(owner) => Some(checked(env, "owner", Owner::new(owner))?),
            None => None,
        };
        let options = (owner, given.millis("minAge")?);
        given.finish()?;
        let provider = NativeProvider(Arc::clone(&provider.0));
        Ok(Self(Arc::new(Unopened { provider, registry: registry.clone(), options })))
    }

    /// Reports; changes nothing.
    #[napi]
    pub fn orphans<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, NativeOrphanReport>> {
        let unopened = Arc::clone(&self.0);
        call(env, around, async move {
            let reconciler = unopened.open().await?;
            let report = reconciler.orphans().await?;
            Ok((reconciler, report))
        })
    }
}

/// What was found, and how much was looked at.
#[napi]
pub struct NativeOrphanReport {
    reconciler: Reconciler,
    report: OrphanReport,
}

impl From<(Reconciler, OrphanReport)> for NativeOrphanReport {
    fn from((reconciler, report): (Reconciler, OrphanReport)) -> Self {
        Self { reconciler, report }
    }
}

#[napi]
impl NativeOrphanReport {
    /// What provider and registry do not agree about, or that nobody has finished.
    #[napi(getter)]
    pub fn findings(&self) -> Vec<Finding> {
        self.report.findings.iter().map(Into::into).collect()
    }

    /// How many sandboxes the provider listed.
    #[napi(getter)]
    pub fn sandboxes(&self) -> f64 {
        self.report.sandboxes as f64
    }

    /// How many records the registry listed.
    #[napi(getter)]
    pub fn records(&self) -> f64 {
        self.report.records as f64
    }

    /// Plans what the policy allows; changes nothing.
    #[napi]
    pub fn plan(&self, env: &Env, policy: Option<Object<'_>>) -> napi::Result<NativeReconcilePlan> {
        let mut given = Options::new(env, "plan", policy);
        let mut policy = ReconcilePolicy::default();
        for (name, field) in [
            ("unrecorded", &mut policy.unrecorded),
            ("duplicates", &mut policy.duplicates),
            ("missing", &mut policy.missing),
        ] {
            let words = [("keep", Disposal::Keep), ("remove", Disposal::Remove)];
            if let Some(disposal) = given.word(name, &words)? {
                *field = disposal;
            }
        }
        given.finish()?;
        let plan = self.reconciler.plan(&self.report, &policy).map_err(|error| thrown(env, error))?;
        Ok(NativeReconcilePlan { reconciler: self.reconciler.clone(), plan })
    }
}

/// What is to be done about a report. Nothing has been done yet.
#[napi]
pub struct NativeReconcilePlan {
    reconciler: Reconciler,
    plan: ReconcilePlan,
}

/// One thing to do.
#[napi(object, object_from_js = false, use_nullable = true)]
pub struct PlannedStep {
    pub finding: Finding,
    pub destroys: Option<String>,
    pub text: String,
}

/// What is left alone, and why.
#[napi(object, object_from_js = false)]
pub struct KeptFinding {
    pub finding: Finding,
    pub why: &'static str,
}

/// What became of a step.
#[napi]
pub struct NativeStepOutcome(Step, StepOutcome);

#[napi]
impl NativeStepOutcome {
    /// What was to be done.
    #[napi(getter)]
    pub fn step(&self) -> PlannedStep {
        (&self.0).into()
    }

    /// What became of it.
    #[napi(getter)]
    pub fn outcome(&self) -> &'static str {
        match self.1 {
            StepOutcome::Done => "done",
            StepOutcome::Held => "held",
            StepOutcome::Changed => "changed",
            _ => "failed",
        }
    }

    /// Why it failed.
    #[napi(getter)]
    pub fn error(&self) -> Option<NativeFailure> {
        match &self.1 {
            StepOutcome::Failed(error) => Some(NativeFailure(error.clone())),
            _ => None,
        }
    }
}

impl From<&Step> for PlannedStep {
    fn from(step: &Step) -> Self {
        Self {
            finding: step.finding().into(),
            destroys: step.destroys().map(ToString::to_string),
            text: step.to_string(),
        }
    }
}

impl From<(Step, StepOutcome)> for NativeStepOutcome {
    fn from((step, outcome): (Step, StepOutcome)) -> Self {
        Self(step, outcome)
    }
}

#[napi]
impl NativeReconcilePlan {
    /// What is to be done, in order.
    #[napi(getter)]
    pub fn steps(&self) -> Vec<PlannedStep> {
        self.plan.steps().iter().map(Into::into).collect()
    }

    /// What is left alone, and why.
    #[napi(getter)]
    pub fn kept(&self) -> Vec<KeptFinding> {
        let why = |why: &Kept| match why {
            Kept::Policy => "policy",
            Kept::NotOurs => "not_ours",
            Kept::TooYoung => "too_young",
            _ => "acquire",
        };
        self.plan
            .kept()
            .iter()
            .map(|(finding, kept)| KeptFinding { finding: finding.into(), why: why(kept) })
            .collect()
    }

    /// Leaves out the steps whose place in the list says no.
    #[napi]
    pub fn retain(&self, env: &Env, keep: Vec<bool>) -> napi::Result<Self> {
        if keep.len() != self.plan.steps().len() {
            return Err(invalid_argument(env, "keep", "says something else than one word for each step"));
        }
        let mut keep = keep.into_iter();
        let plan = self.plan.clone().retain(|_| keep.next().unwrap_or(false));
        Ok(Self { reconciler: self.reconciler.clone(), plan })
    }

    /// Does it.
    #[napi]
    pub fn apply<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Vec<NativeStepOutcome>>> {
        let (reconciler, plan) = (self.reconciler.clone(), self.plan.clone());
        call(env, around, async move { Ok(values::all(reconciler.apply(plan).await)) })
    }
}
