//! For operators: what provider and registry do not agree about, and what may be done about it.

use std::sync::Arc;

use pyo3::exceptions::{PyBaseException, PyTypeError};
use pyo3::prelude::*;
use sandhold_core as core;
use sandhold_core::{Disposal, Owner, ReconcilePolicy, Result, SandboxProvider};

use crate::convert::{checked, one_of, seconds};
use crate::errors::raised;
use crate::provider::provider;
use crate::registry::{Place, Record};
use crate::twins::twins;
use crate::values::{SandboxInfo, values};

values! {
    /// Something that provider and registry do not agree about, or that nobody has finished.
    Finding {
        /// What is wrong, such as `unrecorded`, `duplicate` or `missing`.
        kind: &'static str,
        /// The namespace of the key.
        owner: Option<String>,
        /// The key.
        key: Option<String>,
        /// The sandbox that it is about, where the provider has one.
        info: Option<SandboxInfo>,
        /// The record that it is about, where the registry's side is what is wrong.
        record: Option<Record>,
        /// The sandbox that the key keeps, of a duplicate.
        keeps: Option<String>,
        /// The sandbox of the attempt, of an open create.
        made: Option<String>,
    }

    /// Something that a plan leaves alone.
    Kept {
        /// What it is.
        finding: Finding,
        /// Why: `policy`, `not_ours`, `too_young` or `acquire`.
        why: &'static str,
    }
}

impl From<&core::Finding> for Finding {
    fn from(finding: &core::Finding) -> Self {
        let (keeps, made) = match finding {
            core::Finding::Duplicate { keeps, .. } => (Some(keeps.to_string()), None),
            core::Finding::OpenCreate { made, .. } => (None, made.as_ref().map(ToString::to_string)),
            _ => (None, None),
        };
        Self {
            kind: finding.as_str(),
            owner: finding.name().map(|(owner, _)| owner.to_string()),
            key: finding.name().map(|(_, key)| key.to_string()),
            info: finding.info().cloned().map(Into::into),
            record: finding.record().cloned().map(Into::into),
            keeps,
            made,
        }
    }
}

/// What was found, and how much was looked at.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct OrphanReport(core::OrphanReport);

impl From<core::OrphanReport> for OrphanReport {
    fn from(report: core::OrphanReport) -> Self {
        Self(report)
    }
}

#[pymethods]
impl OrphanReport {
    /// What provider and registry do not agree about.
    #[getter]
    fn findings(&self) -> Vec<Finding> {
        self.0.findings.iter().map(Into::into).collect()
    }

    /// How many sandboxes the provider listed.
    #[getter]
    fn sandboxes(&self) -> usize {
        self.0.sandboxes
    }

    /// How many records the registry listed.
    #[getter]
    fn records(&self) -> usize {
        self.0.records
    }

    fn __repr__(&self) -> String {
        let found: Vec<_> = self.0.findings.iter().map(core::Finding::as_str).collect();
        format!(
            "OrphanReport(findings={found:?}, sandboxes={}, records={})",
            self.0.sandboxes, self.0.records
        )
    }
}

/// One thing to do. Only a plan makes it.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Step(core::Step);

#[pymethods]
impl Step {
    /// What it is about.
    #[getter]
    fn finding(&self) -> Finding {
        self.0.finding().into()
    }

    /// The sandbox that is destroyed; None when only a record is forgotten.
    #[getter]
    fn destroys(&self) -> Option<&str> {
        self.0.destroys().map(AsRef::as_ref)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Step({:?})", self.0.to_string())
    }
}

/// What is to be done about a report, and what is left alone and why. Nothing has been done yet.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct ReconcilePlan(core::ReconcilePlan);

#[pymethods]
impl ReconcilePlan {
    /// What is to be done, in order.
    #[getter]
    fn steps(&self) -> Vec<Step> {
        self.0.steps().iter().cloned().map(Step).collect()
    }

    /// What is left alone, and why.
    #[getter]
    fn kept(&self) -> Vec<Kept> {
        let kept = |(finding, why): &(core::Finding, core::Kept)| Kept {
            finding: finding.into(),
            why: match why {
                core::Kept::Policy => "policy",
                core::Kept::NotOurs => "not_ours",
                core::Kept::TooYoung => "too_young",
                _ => "acquire",
            },
        };
        self.0.kept().iter().map(kept).collect()
    }

    /// Returns a plan without the steps for which `keep` says no.
    fn retain(&self, keep: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !keep.is_callable() {
            return Err(PyTypeError::new_err(format!(
                "retain() argument 'keep': {} is not callable",
                keep.repr()?
            )));
        }
        let mut failed = None;
        let retained = self.0.clone().retain(|step| {
            match keep.call1((Step(step.clone()),)).and_then(|answer| answer.is_truthy()) {
                Ok(answer) => answer,
                Err(error) => {
                    failed = failed.take().or(Some(error));
                    false
                }
            }
        });
        failed.map_or_else(|| Ok(Self(retained)), Err)
    }

    fn __repr__(&self) -> String {
        let steps: Vec<_> = self.0.steps().iter().map(ToString::to_string).collect();
        format!("ReconcilePlan(steps={steps:?}, kept={})", self.0.kept().len())
    }
}

/// A reconciler whose registry is opened by its first call.
struct Desk {
    provider: Arc<dyn SandboxProvider>,
    registry: Arc<Place>,
    owner: Option<Owner>,
    min_age: Option<std::time::Duration>,
}

impl Desk {
    fn new(
        call: &'static str,
        at: &Bound<'_, PyAny>,
        registry: &Bound<'_, PyAny>,
        owner: Option<String>,
        min_age: Option<f64>,
    ) -> PyResult<Arc<Self>> {
        let py = at.py();
        Ok(Arc::new(Self {
            provider: provider(call, at)?,
            registry: Place::read(call, registry)?,
            owner: owner.map(|owner| checked(py, "owner", Owner::new(owner))).transpose()?,
            min_age: min_age.map(|age| seconds(py, "min_age", age)).transpose()?,
        }))
    }

    async fn open(&self) -> Result<core::Reconciler> {
        let mut reconciler = core::Reconciler::new(Arc::clone(&self.provider), self.registry.open().await?);
        if let Some(owner) = &self.owner {
            reconciler = reconciler.with_owner(owner.clone());
        }
        if let Some(age) = self.min_age {
            reconciler = reconciler.with_min_age(age);
        }
        Ok(reconciler)
    }
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(Arc<Desk>);

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = (provider, registry, *, owner = None, min_age = None))]
            fn new(
                provider: &Bound<'_, PyAny>,
                registry: &Bound<'_, PyAny>,
                owner: Option<String>,
                min_age: Option<f64>,
            ) -> PyResult<Self> {
                Desk::new(stringify!($name), provider, registry, owner, min_age).map(Self)
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

faces! {
    /// Compares what a provider has with what a registry knows, plans what may be done, and does it when it is told to.
    Reconciler
    /// Compares what a provider has with what a registry knows, for event loops.
    AsyncReconciler
}

const DISPOSALS: [(&str, Disposal); 2] = [("keep", Disposal::Keep), ("remove", Disposal::Remove)];

twins! {
    impl Reconciler, AsyncReconciler;

    /// Reports what the provider has and the registry has not, and the reverse. Changes nothing.
    fn orphans(py, this) -> OrphanReport, OrphanReport {
        let _ = py;
        let desk = Arc::clone(&this.0);
        async move { desk.open().await?.orphans().await }
    }

    /// Plans what this policy allows: `keep` or `remove` for each kind of finding. Changes nothing, and asks nobody.
    #[pyo3(signature = (report, *, unrecorded = "keep", duplicates = "keep", missing = "keep"))]
    fn plan(py, this, report: Py<OrphanReport>, unrecorded: &str, duplicates: &str, missing: &str)
        -> ReconcilePlan, ReconcilePlan
    {
        let policy = ReconcilePolicy::default()
            .with_unrecorded(one_of(py, "unrecorded", unrecorded, &DISPOSALS)?)
            .with_duplicates(one_of(py, "duplicates", duplicates, &DISPOSALS)?)
            .with_missing(one_of(py, "missing", missing, &DISPOSALS)?);
        let desk = Arc::clone(&this.0);
        async move { desk.open().await?.plan(&report.get().0, &policy).map(ReconcilePlan) }
    }

    /// Does what was planned and is still true, each step under the lease of its key.
    fn apply(py, this, plan: Py<ReconcilePlan>) -> Vec<StepOutcome>, Vec<StepOutcome> {
        let _ = py;
        let desk = Arc::clone(&this.0);
        async move {
            let outcomes = desk.open().await?.apply(plan.get().0.clone()).await;
            Ok(outcomes.into_iter().map(told).collect::<Vec<_>>())
        }
    }
}

/// What became of a step.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct StepOutcome {
    step: core::Step,
    outcome: &'static str,
    failure: Option<core::Error>,
}

#[pymethods]
impl StepOutcome {
    /// The step.
    #[getter]
    fn step(&self) -> Step {
        Step(self.step.clone())
    }

    /// `done`, `held` (somebody is at work on its key), `changed` (it is not true any more) or `failed`.
    #[getter]
    fn outcome(&self) -> &'static str {
        self.outcome
    }

    /// Why it failed.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyBaseException>> {
        self.failure.as_ref().map(|error| raised(py, error).into_value(py))
    }

    fn __repr__(&self) -> String {
        format!("StepOutcome(step={:?}, outcome={:?})", self.step.to_string(), self.outcome)
    }
}

fn told((step, outcome): (core::Step, core::StepOutcome)) -> StepOutcome {
    let (outcome, failure) = match outcome {
        core::StepOutcome::Done => ("done", None),
        core::StepOutcome::Held => ("held", None),
        core::StepOutcome::Changed => ("changed", None),
        core::StepOutcome::Failed(error) => ("failed", Some(error)),
        _ => ("failed", None),
    };
    StepOutcome { step, outcome, failure }
}
