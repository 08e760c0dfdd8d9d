//! Where a rule plays: a fixture, names of its own, and the clean-up afterwards.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use super::matrix;
use crate::{
    Attempt, Capabilities, CreateOptions, FindQuery, Generation, Key, ListFilter, Owner, ProcessSpec,
    SandboxHandle, SandboxHandleExt, SandboxId, SandboxInfo, SandboxProvider, SandboxProviderExt,
    SandboxSpec, SnapshotId, SnapshotInfo, SnapshotOptions, Tags,
};

/// Makes the provider under test. One is made for every rule.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Returns the provider under test.
    fn provider(&self) -> Arc<dyn SandboxProvider>;

    /// Makes another provider value over the same sandboxes, as another process would; nothing may be shared with the
    /// first one in memory that processes cannot share.
    async fn fresh_provider(&self) -> Arc<dyn SandboxProvider>;

    /// Returns the spec that sandboxes are made with; default [`SandboxSpec::default`].
    fn spec(&self) -> SandboxSpec {
        SandboxSpec::default()
    }

    /// Returns a program that listens on a port of the loopback, says a line when it does, and echoes on every
    /// connection until it is killed. Default a few lines for `python3`; the rule is skipped aloud where it is not there.
    fn echo_server(&self, port: u16) -> ProcessSpec {
        let script = format!(
            "import socketserver\n\
             class Echo(socketserver.BaseRequestHandler):\n\
             \x20   def handle(self):\n\
             \x20       while data := self.request.recv(65536): self.request.sendall(data)\n\
             socketserver.ThreadingTCPServer.allow_reuse_address = True\n\
             server = socketserver.ThreadingTCPServer(('127.0.0.1', {port}), Echo)\n\
             print('listening', flush=True)\n\
             server.serve_forever()\n"
        );
        ProcessSpec::argv("python3", ["-c".to_owned(), script])
    }

    /// Says what is missing on this machine; every rule is then skipped aloud. Default nothing.
    fn lacks(&self) -> Option<String> {
        None
    }

    /// Returns how long one rule may take: a net for what hangs, not a measure. Default 60 s.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Removes what the fixture itself made; the sandboxes are destroyed before. Default nothing.
    async fn clean_up(&self) {}
}

/// What a rule gets: the provider, names that no other rule uses, and short ways to the usual steps.
pub struct Stage {
    fixture: Box<dyn Fixture>,
    provider: Arc<dyn SandboxProvider>,
    owner: Owner,
    made: Mutex<Vec<SandboxId>>,
    taken: Mutex<Vec<SnapshotId>>,
    /// What the rule needed and did not find.
    lacked: Mutex<Option<String>>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("provider", &self.provider)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl Stage {
    /// Returns what the rule needed and did not find.
    pub(super) fn lacked(&self) -> Option<String> {
        self.lacked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn new(fixture: impl Fixture) -> Self {
        let owner = Owner::new(format!("conformance-{}", Attempt::random().unwrap())).unwrap();
        let provider = fixture.provider();
        Self {
            fixture: Box::new(fixture),
            provider,
            owner,
            made: Mutex::default(),
            taken: Mutex::default(),
            lacked: Mutex::default(),
        }
    }

    /// Returns the provider under test.
    pub fn provider(&self) -> &Arc<dyn SandboxProvider> {
        &self.provider
    }

    /// Makes another provider value over the same sandboxes.
    pub async fn fresh_provider(&self) -> Arc<dyn SandboxProvider> {
        self.fixture.fresh_provider().await
    }

    /// Returns what the provider says that it can.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.provider.capabilities()
    }

    /// Returns the owner of this rule's sandboxes.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns the spec that sandboxes are made with.
    #[must_use]
    pub fn spec(&self) -> SandboxSpec {
        self.fixture.spec()
    }

    /// Returns the fixture's echo server.
    #[must_use]
    pub fn echo_server(&self, port: u16) -> ProcessSpec {
        self.fixture.echo_server(port)
    }

    /// Draws tags for a key of this rule.
    #[must_use]
    pub fn tags(&self, key: &str) -> Tags {
        Tags {
            owner: self.owner.clone(),
            key: Key::new(key).unwrap(),
            generation: Generation::random().unwrap(),
            attempt: Attempt::random().unwrap(),
        }
    }

    /// Tells whether the rule can be tried; says aloud what is missing if not.
    #[must_use]
    #[expect(clippy::print_stdout, reason = "a skipped test says so, to whoever reads the test's output")]
    pub fn needs(&self, is_there: bool, what: &str) -> bool {
        if !is_there {
            println!("skipped: needs {what}");
            *self.lacked.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_owned());
        }
        is_there
    }

    /// Tells whether a program is in the sandbox; says aloud that it is missing if not.
    pub async fn needs_program(&self, handle: &Arc<dyn SandboxHandle>, program: &str) -> bool {
        let found = handle
            .exec(ProcessSpec::argv("/bin/sh", ["-c", "command -v \"$1\"", "sh", program]))
            .await
            .is_ok_and(|output| output.exit.success());
        self.needs(found, &format!("{program} in the sandbox"))
    }

    /// Creates a sandbox under a key of this rule.
    pub async fn create(&self, key: &str) -> Arc<dyn SandboxHandle> {
        self.create_with(CreateOptions::new(self.spec(), self.tags(key))).await
    }

    /// Creates a sandbox.
    pub async fn create_with(&self, options: CreateOptions) -> Arc<dyn SandboxHandle> {
        let handle = self.provider.create_opts(options).await.unwrap();
        self.own(handle.id());
        handle
    }

    /// Has a sandbox destroyed when the rule has ended.
    pub fn own(&self, id: &SandboxId) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
    }

    /// Takes a snapshot, which is deleted when the rule has ended.
    pub async fn snapshot(&self, id: &SandboxId) -> SnapshotInfo {
        let snapshot = self.provider.snapshot(id, SnapshotOptions::default()).await.unwrap();
        self.own_snapshot(&snapshot.id);
        snapshot
    }

    /// Has a snapshot deleted when the rule has ended, after the sandboxes.
    pub fn own_snapshot(&self, id: &SnapshotId) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
    }

    /// Asks for the facts of a sandbox that must exist.
    pub async fn info(&self, id: &SandboxId) -> SandboxInfo {
        self.provider.find_id(id).await.unwrap().expect("the sandbox exists")
    }

    /// Lists this rule's sandboxes of one key.
    pub async fn find_key(&self, key: &str) -> Vec<SandboxInfo> {
        let query = FindQuery::Key { owner: self.owner.clone(), key: Key::new(key).unwrap(), attempt: None };
        self.provider.find(query).await.unwrap()
    }

    /// Lists this rule's sandboxes until there are so many: listings may lag behind creates.
    pub async fn listed(&self, count: usize) -> Vec<SandboxInfo> {
        eventually("the listing shows every sandbox", || async {
            let filter = ListFilter::default().with_owner(self.owner.clone());
            let listed = self.provider.list_all(filter).await.unwrap();
            (listed.len() == count).then_some(listed)
        })
        .await
    }

    async fn destroy_all(&self) -> Result<(), String> {
        let mut made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        if self.capabilities().tags {
            let filter = ListFilter::default().with_owner(self.owner.clone());
            let listed = self.provider.list_all(filter).await;
            made.extend(listed.map_err(|error| format!("list: {error}"))?.into_iter().map(|info| info.id));
        }
        let mut failed = Vec::new();
        for id in made {
            if let Err(error) = self.provider.destroy(&id).await {
                failed.push(format!("destroy {id}: {error}"));
            }
        }
        let taken = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        for id in taken {
            if let Err(error) = self.provider.delete_snapshot(&id).await {
                failed.push(format!("delete {id}: {error}"));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }
}

/// Asks again and again until there is an answer. The bound is a net for what never comes.
///
/// # Panics
/// When no answer comes within 30 s; `what` says what was waited for.
pub async fn eventually<T, F: Future<Output = Option<T>> + Send>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    within(what, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// Waits for something that must end by itself. The bound is a net for what hangs.
///
/// # Panics
/// When it does not end within 30 s; `what` says what was waited for.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(Duration::from_secs(30), future).await {
        Ok(value) => value,
        Err(_) => panic!("this did not happen within 30 s: {what}"),
    }
}

/// Runs one rule on a fixture and cleans up, whatever the rule did.
///
/// # Panics
/// When the rule is broken, does not end, or leaves something that cannot be destroyed.
pub async fn run<R, F>(name: &str, fixture: impl Fixture, rule: R)
where
    R: FnOnce(Arc<Stage>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let lacks = fixture.lacks();
    let stage = Arc::new(Stage::new(fixture));
    if let Some(what) = lacks {
        let _ = stage.needs(false, &what);
        matrix::note(name, &stage, None);
        return;
    }
    let patience = stage.fixture.patience();
    // In a task of its own, so that a panic does not skip the clean-up.
    let outcome = tokio::spawn(timeout(patience, rule(Arc::clone(&stage)))).await;
    let cleaned = timeout(patience, stage.destroy_all()).await;
    stage.fixture.clean_up().await;
    let broken = match (&outcome, &cleaned) {
        (Err(_), _) => Some("broken"),
        (Ok(Err(_)), _) => Some("did not end"),
        (_, Err(_) | Ok(Err(_))) => Some("could not be cleaned up"),
        _ => None,
    };
    matrix::note(name, &stage, broken);
    match outcome {
        Err(error) => resume_unwind(error.into_panic()),
        Ok(Err(_)) => panic!("{name} did not end within {patience:?}"),
        Ok(Ok(())) => {}
    }
    match cleaned {
        Err(_) => panic!("the clean-up after {name} did not end within {patience:?}"),
        Ok(Err(error)) => panic!("the clean-up after {name} failed: {error}"),
        Ok(Ok(())) => {}
    }
}
