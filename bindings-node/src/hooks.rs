//! Hooks that are functions of JavaScript.
//!
//! They run on the thread of their environment, which goes on meanwhile, and may call the sandbox that they get. A hook never
//! keeps the process alive: the call that it belongs to does.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use napi::bindgen_prelude::{FnArgs, Object, Unknown};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;
use sandhold_core as core;
use sandhold_core::{Error, ErrorKind, FreshFile, HookScope, Memory, REASON_HOOK, Result};
use tokio::sync::oneshot;

use crate::convert::Options;
use crate::errors::{NativeFailure, from_javascript, type_error};
use crate::process::bytes;
use crate::runtime::NativeScope;
use crate::sandbox::{NativeSandbox, Taken};
use crate::values::{self, Event, Facts, Maybe};

/// A call of a hook, or none where the one of that number is not waited for any more.
type Told = FnArgs<(Maybe<NativeHookCall>, u32)>;
type Function = ThreadsafeFunction<Told, Unknown<'static>, Told, Status, false, true>;
type Listener = ThreadsafeFunction<Event, Unknown<'static>, Event, Status, false, true>;

/// What a hook is told.
enum Occasion {
    Start(core::Start),
    Resume(core::Sandbox, Memory),
    Other(core::Sandbox),
}

/// One call of a hook, which JavaScript answers.
#[napi]
pub struct NativeHookCall {
    name: &'static str,
    occasion: Occasion,
    scope: HookScope,
    answer: Mutex<Option<oneshot::Sender<Result<Vec<FreshFile>>>>>,
}

#[napi]
impl NativeHookCall {
    /// The sandbox that it is about.
    #[napi(getter)]
    pub fn sandbox(&self) -> NativeSandbox {
        let sandbox = match &self.occasion {
            Occasion::Start(start) => &start.sandbox,
            Occasion::Resume(sandbox, _) | Occasion::Other(sandbox) => sandbox,
        };
        Taken { sandbox: sandbox.clone(), came: None }.into()
    }

    /// Whether this acquire made it, for a start hook.
    #[napi(getter)]
    pub fn outcome(&self) -> Option<&'static str> {
        self.start().map(|start| start.outcome.as_str())
    }

    /// Whether the setup is needed, for a start hook.
    #[napi(getter)]
    pub fn setup(&self) -> Option<&'static str> {
        self.start().map(|start| values::setup(start.setup))
    }

    /// How it came, for a start hook.
    #[napi(getter)]
    pub fn facts(&self) -> Option<Facts> {
        self.start().map(|start| (&start.facts).into())
    }

    /// What became of its memory, for a resume hook.
    #[napi(getter)]
    pub fn memory(&self) -> Option<&'static str> {
        match &self.occasion {
            Occasion::Resume(_, memory) => Some(memory.as_str()),
            _ => None,
        }
    }

    /// The hooks that calls from here come from.
    #[napi(getter)]
    pub fn scope(&self) -> NativeScope {
        NativeScope(self.scope.clone())
    }

    /// Says that it is done; a resume hook may have fresh files.
    #[napi]
    pub fn resolve(&self, env: &Env, files: Option<Vec<Object<'_>>>) -> napi::Result<()> {
        let files: napi::Result<Vec<_>> =
            files.unwrap_or_default().into_iter().map(|file| fresh(env, self.name, file)).collect();
        self.settle(Ok(files?));
        Ok(())
    }

    /// Says that it threw. `origin` is the failure of ours that it let through.
    #[napi]
    pub fn reject(&self, thrown: Unknown<'_>, origin: Option<&NativeFailure>) {
        self.settle(Err(from_javascript(
            thrown,
            origin,
            &format!("the hook {}", self.name),
            Some(REASON_HOOK),
        )));
    }
}

impl NativeHookCall {
    fn start(&self) -> Option<&core::Start> {
        match &self.occasion {
            Occasion::Start(start) => Some(start),
            _ => None,
        }
    }

    fn settle(&self, answer: Result<Vec<FreshFile>>) {
        if let Some(waiting) = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // One that is past its deadline has nobody who waits.
            let _ = waiting.send(answer);
        }
    }
}

fn fresh(env: &Env, hook: &'static str, file: Object<'_>) -> napi::Result<FreshFile> {
    let call = if hook == "secrets" { hook } else { "onResume" };
    let mut given = Options::new(env, call, Some(file));
    let wrong = || type_error(env, &format!("{call}() returns files: give each {{ path, content }}"));
    let path = given.take::<String>("path")?.ok_or_else(wrong)?;
    let content = bytes(env, call, "content", given.any("content")?.ok_or_else(wrong)?)?;
    let mut file = FreshFile::new(path, content);
    if let Some(mode) = given.count("mode")? {
        file.mode = mode;
    }
    file.owner = given.take("owner")?;
    given.finish()?;
    Ok(file)
}

struct Callback {
    name: &'static str,
    function: Arc<Function>,
}

/// Tells JavaScript that nobody waits for a call any more.
struct Waiting<'a> {
    function: &'a Function,
    number: u32,
    answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let told = (Maybe::B(napi::bindgen_prelude::Null), self.number).into();
            self.function.call(told, ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

impl Callback {
    fn take(given: &mut Options<'_>, option: &'static str, name: &'static str) -> napi::Result<Option<Self>> {
        let function = given.function::<Function>(option)?;
        Ok(function.map(|function| Self { name, function: Arc::new(function) }))
    }

    /// Has JavaScript run it, and waits for the answer.
    async fn call(&self, occasion: Occasion) -> Result<Vec<FreshFile>> {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let call = NativeHookCall {
            name: self.name,
            occasion,
            scope: HookScope::current(),
            answer: Mutex::new(Some(sender)),
        };
        let told = (Maybe::A(call), number).into();
        if self.function.call(told, ThreadsafeFunctionCallMode::NonBlocking) != Status::Ok {
            let error = Error::new(ErrorKind::Cancelled, "the environment of the hook ended");
            return Err(error.with_context("hook", self.name));
        }
        let mut waiting = Waiting { function: &self.function, number, answered: false };
        let answer = receiver.await;
        waiting.answered = true;
        let collected = || {
            Error::new(
                ErrorKind::Unexpected,
                format!("the hook {} can never end: its promise is gone", self.name),
            )
            .with_reason(REASON_HOOK)
        };
        answer.unwrap_or_else(|_| Err(collected())).map_err(|error| error.with_context("hook", self.name))
    }
}

/// The hooks of a host or of an acquire.
pub(crate) struct NodeHooks {
    secrets: Option<Callback>,
    on_start: Option<Callback>,
    on_resume: Option<Callback>,
    on_stop: Option<Callback>,
    on_destroy: Option<Callback>,
    on_event: Option<Listener>,
    setup_version: u64,
    every_start: bool,
}

impl NodeHooks {
    /// Takes the hooks out of options; `None` where there are none.
    pub(crate) fn take(given: &mut Options<'_>) -> napi::Result<Option<Arc<Self>>> {
        let secrets = Callback::take(given, "secrets", "secrets")?;
        let on_start = Callback::take(given, "onStart", "on_start")?;
        let on_resume = Callback::take(given, "onResume", "on_resume")?;
        let on_stop = Callback::take(given, "onStop", "on_stop")?;
        let on_destroy = Callback::take(given, "onDestroy", "on_destroy")?;
        let on_event = given.function::<Listener>("onEvent")?;
        let setup_version = given.count("setupVersion")?.unwrap_or(1);
        let every_start = given.take("runsOnEveryStart")?.unwrap_or(false);
        let any = [&secrets, &on_start, &on_resume, &on_stop, &on_destroy].into_iter().any(Option::is_some);
        if !any && on_event.is_none() {
            return Ok(None);
        }
        let hooks =
            Self { secrets, on_start, on_resume, on_stop, on_destroy, on_event, setup_version, every_start };
        Ok(Some(Arc::new(hooks)))
    }
}

impl fmt::Debug for NodeHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHooks").finish_non_exhaustive()
    }
}

#[async_trait]
impl core::Hooks for NodeHooks {
    fn setup_version(&self) -> u64 {
        self.setup_version
    }

    fn runs_on_every_start(&self) -> bool {
        self.every_start
    }

    async fn secrets(&self, sandbox: &core::Sandbox) -> Result<Vec<FreshFile>> {
        let Some(callback) = &self.secrets else { return Ok(Vec::new()) };
        callback.call(Occasion::Other(sandbox.clone())).await
    }

    async fn on_start(&self, start: core::Start) -> Result<()> {
        let Some(callback) = &self.on_start else { return Ok(()) };
        callback.call(Occasion::Start(start)).await.map(drop)
    }

    async fn on_resume(&self, sandbox: &core::Sandbox, memory: Memory) -> Result<Vec<FreshFile>> {
        let Some(callback) = &self.on_resume else { return Ok(Vec::new()) };
        callback.call(Occasion::Resume(sandbox.clone(), memory)).await
    }

    async fn on_stop(&self, sandbox: &core::Sandbox) -> Result<()> {
        let Some(callback) = &self.on_stop else { return Ok(()) };
        callback.call(Occasion::Other(sandbox.clone())).await.map(drop)
    }

    async fn on_destroy(&self, sandbox: &core::Sandbox) -> Result<()> {
        let Some(callback) = &self.on_destroy else { return Ok(()) };
        callback.call(Occasion::Other(sandbox.clone())).await.map(drop)
    }

    fn on_event(&self, event: &core::Event) {
        if let Some(listener) = &self.on_event {
            // An environment that ends hears nothing any more.
            listener.call(event.into(), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}
