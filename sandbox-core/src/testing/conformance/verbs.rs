//! Rules about the provider's verbs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Stage, eventually};
use crate::{
    ConnectOptions, CreateOptions, DestroyOutcome, ErrorKind, FindQuery, Generation, Key, Kind, ListFilter,
    LogOptions, Memory, Mount, Outcome, Owner, ProcessSelector, ProcessSpec, SandboxHandle, SandboxHandleExt,
    SandboxId, SandboxInfo, SandboxProviderExt, SandboxState,
};

/// How far the clocks of provider and test may be apart.
const CLOCK_SLACK: Duration = Duration::from_secs(120);

fn ids(infos: &[SandboxInfo]) -> Vec<SandboxId> {
    infos.iter().map(|info| info.id.clone()).collect()
}

pub(super) fn unknown_id() -> SandboxId {
    SandboxId::new(format!("i{}", &Generation::random().unwrap().as_str()[..19]))
}

async fn assert_usable(handle: &Arc<dyn SandboxHandle>) {
    let output = handle.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap();
    assert!(output.exit.success(), "{}", output.exit);
}

/// A create returns a running sandbox in which commands run, tagged as asked.
pub async fn a_created_sandbox_is_usable_and_carries_its_tags(stage: &Stage) {
    let tags = stage.tags("one");
    let handle = stage.create_with(CreateOptions::new(stage.spec(), tags.clone())).await;
    assert_usable(&handle).await;
    assert_eq!(handle.provider(), stage.provider().name());
    let info = handle.info().await.unwrap();
    assert_eq!((&info.id, info.state), (handle.id(), SandboxState::Running));
    if stage.capabilities().tags {
        assert_eq!(info.tags.as_ref(), Some(&tags));
        assert_eq!(handle.generation(), Some(&tags.generation));
    }
}

/// A key does not make creates idempotent: that is for whoever holds the record.
pub async fn two_creates_of_one_key_are_two_sandboxes(stage: &Stage) {
    let (first, second) = (stage.create("one").await, stage.create("one").await);
    assert_ne!(first.id(), second.id());
    for handle in [first, second] {
        assert_eq!(stage.info(handle.id()).await.state, SandboxState::Running);
    }
}

/// Free pairs are kept with the sandbox and told apart from the tags.
pub async fn metadata_is_kept_with_the_sandbox(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    let spec = stage.spec().with_metadata("purpose", "a test").with_metadata("empty", "");
    let expected = spec.metadata.clone();
    let handle = stage.create_with(CreateOptions::new(spec, stage.tags("one"))).await;
    assert_eq!(stage.info(handle.id()).await.metadata, expected);
}

/// A kind that the provider has not is refused before anything is made.
pub async fn a_kind_that_is_not_there_is_unsupported_and_makes_nothing(stage: &Stage) {
    let spec = stage.spec().with_kind(Kind::Gpu { model: "no-such-model".to_owned(), count: 64 });
    refused(stage, CreateOptions::new(spec, stage.tags("one"))).await;
}

/// A mount that the provider has not is refused before anything is made.
pub async fn a_mount_that_is_not_supported_makes_nothing(stage: &Stage) {
    if !stage.needs(!stage.capabilities().host_mounts, "a provider without host mounts") {
        return;
    }
    let spec = stage.spec().with_mount(Mount::host_dir("/mounted", "/tmp"));
    refused(stage, CreateOptions::new(spec, stage.tags("one"))).await;
}

async fn refused(stage: &Stage, options: CreateOptions) {
    let error = stage.provider().create_opts(options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.outcome(), crate::Outcome::NotStarted);
    if stage.capabilities().tags {
        let seen = stage.create("witness").await;
        // Once the listing shows what was made later, it would show the refused one too.
        assert_eq!(ids(&stage.listed(1).await), [seen.id().clone()]);
    }
}

/// `find` by id answers with the facts of that sandbox.
pub async fn find_by_id_tells_state_tags_and_times(stage: &Stage) {
    let begun = SystemTime::now();
    let tags = stage.tags("one");
    let handle = stage.create_with(CreateOptions::new(stage.spec(), tags.clone())).await;
    let info = stage.info(handle.id()).await;
    assert_eq!((&info.id, info.state), (handle.id(), SandboxState::Running));
    assert_eq!(info.template, stage.spec().template);
    if stage.capabilities().tags {
        assert_eq!(info.tags, Some(tags));
    }
    for time in [info.created_at, info.started_at] {
        assert!(time >= begun - CLOCK_SLACK && time <= SystemTime::now() + CLOCK_SLACK, "{time:?}");
    }
    assert!(info.started_at >= info.created_at);
}

/// `find` by key sees every sandbox of that owner and key, and no other.
pub async fn find_by_key_sees_only_that_owner_and_key(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    let (one, two) = (stage.create("one").await, stage.create("two").await);
    let mut other = stage.tags("one");
    other.owner = Owner::new(format!("{}-other", stage.owner())).unwrap();
    stage.create_with(CreateOptions::new(stage.spec(), other)).await;
    stage.listed(2).await;
    assert_eq!(ids(&stage.find_key("one").await), [one.id().clone()]);
    assert_eq!(ids(&stage.find_key("two").await), [two.id().clone()]);
}

/// `find` by attempt tells the creates of one key apart.
pub async fn find_by_attempt_sees_only_that_create(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    let (first, second) = (stage.tags("one"), stage.tags("one"));
    stage.create_with(CreateOptions::new(stage.spec(), first)).await;
    let handle = stage.create_with(CreateOptions::new(stage.spec(), second.clone())).await;
    stage.listed(2).await;
    let query = |attempt| FindQuery::Key { owner: second.owner.clone(), key: second.key.clone(), attempt };
    let found = stage.provider().find(query(Some(second.attempt.clone()))).await.unwrap();
    assert_eq!(ids(&found), [handle.id().clone()]);
    let unknown = stage.tags("one").attempt;
    assert_eq!(stage.provider().find(query(Some(unknown))).await.unwrap(), []);
    assert_eq!(stage.provider().find(query(None)).await.unwrap().len(), 2);
}

/// An id that does not exist is an empty answer.
pub async fn find_of_an_unknown_id_is_empty_and_no_error(stage: &Stage) {
    assert_eq!(stage.provider().find_id(&unknown_id()).await.unwrap(), None);
}

/// A key that does not exist is an empty answer.
pub async fn find_of_an_unknown_key_is_empty_and_no_error(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    assert_eq!(stage.find_key("never made").await, []);
}

/// Ids are opaque text: one that looks like a path or is strange names no sandbox and touches nothing.
pub async fn an_id_that_looks_like_a_path_reaches_nothing(stage: &Stage) {
    let real = stage.create("one").await;
    let real_id = real.id().as_str();
    for id in
        ["", ".", "..", "../..", "/etc", &format!("x/../{real_id}"), &format!("./{real_id}"), "a\nb", "%2e"]
    {
        let id = SandboxId::new(id);
        match stage.provider().find_id(&id).await {
            Ok(found) => assert_eq!(found, None, "{id:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{id:?}: {error}"),
        }
        match stage.provider().destroy(&id).await {
            Ok(outcome) => assert_eq!(outcome, DestroyOutcome::AlreadyGone, "{id:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{id:?}: {error}"),
        }
    }
    assert_usable(&real).await;
}

/// Questions leave a paused sandbox paused.
pub async fn find_and_list_do_not_wake_a_paused_sandbox(stage: &Stage) {
    let can = stage.capabilities();
    if !stage.needs(can.pause && can.find_without_waking, "pause and find without waking") {
        return;
    }
    let handle = stage.create("one").await;
    stage.provider().pause(handle.id()).await.unwrap();
    let paused = stage.info(handle.id()).await;
    if can.tags {
        assert_eq!(stage.listed(1).await[0].state, SandboxState::Paused);
        assert_eq!(stage.find_key("one").await[0].state, SandboxState::Paused);
    }
    let after = stage.info(handle.id()).await;
    assert_eq!((after.state, after.started_at), (SandboxState::Paused, paused.started_at));
}

/// Only the provider's own word that an id does not exist is `gone`.
pub async fn connect_to_an_unknown_id_is_gone(stage: &Stage) {
    let error = stage.provider().connect(&unknown_id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// Connect leads to the very sandbox, and says that a running one needed no resume.
pub async fn connect_returns_the_same_sandbox(stage: &Stage) {
    let made = stage.create("one").await;
    made.write_bytes("/tmp/mark", "here").await.unwrap();
    let options = ConnectOptions { generation: made.generation().cloned(), ..ConnectOptions::default() };
    let connection = stage.provider().connect_opts(made.id(), options).await.unwrap();
    assert_eq!(connection.resumed, None);
    assert_eq!(connection.handle.id(), made.id());
    assert_eq!(connection.handle.generation(), made.generation());
    assert_eq!(connection.handle.read_text("/tmp/mark").await.unwrap(), "here");
}

/// A resume brings the files back, and the processes where the provider says so.
pub async fn connect_resumes_a_paused_sandbox_and_says_what_was_kept(stage: &Stage) {
    let can = stage.capabilities();
    if !stage.needs(can.pause, "pause") {
        return;
    }
    let made = stage.create("one").await;
    made.write_bytes("mark", "here").await.unwrap();
    let sleeper = made.start(ProcessSpec::argv("sleep", ["1000"])).await.unwrap();
    stage.provider().pause(made.id()).await.unwrap();
    let connection = stage.provider().connect(made.id()).await.unwrap();
    let expected = if can.pause_keeps_memory { Memory::Kept } else { Memory::Lost };
    assert_eq!(connection.resumed, Some(expected));
    assert_eq!(stage.info(made.id()).await.state, SandboxState::Running);
    let handle = connection.handle;
    assert_eq!(handle.read_text("mark").await.unwrap(), "here");
    assert_usable(&handle).await;
    let attached = handle.attach(ProcessSelector::Pid(sleeper.pid()), crate::AttachOptions::default()).await;
    if can.pause_keeps_memory {
        assert!(attached.unwrap().kill().await.unwrap(), "the process runs on");
    }
    // The handle from before the pause leads there too.
    assert_eq!(made.read_text("mark").await.unwrap(), "here");
}

/// Each time by another provider value, as a host that is started anew does; what each round wrote is there in the next.
pub async fn three_rounds_of_pause_and_connect_keep_the_id_and_the_files(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let made = stage.create("one").await;
    for round in 0..3 {
        made.write_bytes(&format!("round-{round}"), round.to_string()).await.unwrap();
        stage.provider().pause(made.id()).await.unwrap();
        let again = stage.fresh_provider().await.connect(made.id()).await.unwrap().handle;
        assert_eq!(again.id(), made.id());
        for written in 0..=round {
            assert_eq!(again.read_text(&format!("round-{written}")).await.unwrap(), written.to_string());
        }
        assert_usable(&again).await;
    }
}

/// Whoever destroys it is another host: the next command says so, and is no riddle.
pub async fn a_command_after_another_host_destroyed_the_sandbox_is_gone(stage: &Stage) {
    let made = stage.create("one").await;
    assert_usable(&made).await;
    stage.fresh_provider().await.destroy(made.id()).await.unwrap();
    let error = made.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    assert!(stage.provider().find_id(made.id()).await.unwrap().is_none());
}

/// However many callers wake a sandbox at once, each gets a usable handle.
pub async fn concurrent_connects_to_a_paused_sandbox_all_succeed(stage: &Stage) {
    if !stage.needs(stage.capabilities().pause, "pause") {
        return;
    }
    let made = stage.create("one").await;
    stage.provider().pause(made.id()).await.unwrap();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (provider, id) = (Arc::clone(stage.provider()), made.id().clone());
            tokio::spawn(async move { provider.connect(&id).await })
        })
        .collect();
    for call in calls {
        let connection = call.await.unwrap().unwrap();
        assert_usable(&connection.handle).await;
    }
}

/// A handle to another generation is never returned, and asking for one does not wake the sandbox.
pub async fn connect_to_another_generation_is_stale_and_does_not_wake(stage: &Stage) {
    let can = stage.capabilities();
    if !stage.needs(can.tags, "tags") {
        return;
    }
    let made = stage.create("one").await;
    if can.pause && can.find_without_waking {
        stage.provider().pause(made.id()).await.unwrap();
    }
    let before = stage.info(made.id()).await.state;
    let options = ConnectOptions::default().with_generation(Generation::random().unwrap());
    let error = stage.provider().connect_opts(made.id(), options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    assert_eq!(stage.info(made.id()).await.state, before);
}

/// A listing has every sandbox once, and the same order each time.
pub async fn list_streams_every_sandbox_once_in_a_stable_order(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    let mut made = Vec::new();
    for key in ["one", "two", "three", "four"] {
        made.push(stage.create(key).await.id().clone());
    }
    let first = ids(&stage.listed(4).await);
    assert_eq!(ids(&stage.listed(4).await), first);
    let mut sorted = first;
    sorted.sort();
    made.sort();
    assert_eq!(sorted, made);
}

/// Every pair of a filter must fit.
pub async fn list_filters_by_owner_key_and_metadata(stage: &Stage) {
    if !stage.needs(stage.capabilities().tags, "tags") {
        return;
    }
    let blue = stage.spec().with_metadata("colour", "blue").with_metadata("size", "s");
    let red = stage.spec().with_metadata("colour", "red").with_metadata("size", "s");
    let one = stage.create_with(CreateOptions::new(blue.clone(), stage.tags("one"))).await;
    let two = stage.create_with(CreateOptions::new(blue, stage.tags("two"))).await;
    let three = stage.create_with(CreateOptions::new(red, stage.tags("one"))).await;
    stage.listed(3).await;
    let owned = ListFilter::default().with_owner(stage.owner().clone());
    let key = Key::new("one").unwrap();
    let cases = [
        (owned.clone().with_key(key.clone()), vec![&one, &three]),
        (owned.clone().with_metadata("colour", "blue"), vec![&one, &two]),
        (owned.clone().with_metadata("size", "s"), vec![&one, &two, &three]),
        (owned.clone().with_metadata("size", "s").with_metadata("colour", "red"), vec![&three]),
        (owned.clone().with_key(key).with_metadata("colour", "blue"), vec![&one]),
        (owned.with_metadata("colour", "green"), vec![]),
        (ListFilter::default().with_owner(Owner::new("nobody's").unwrap()), vec![]),
    ];
    for (filter, expected) in cases {
        let mut listed = ids(&stage.provider().list_all(filter.clone()).await.unwrap());
        let mut expected: Vec<_> = expected.into_iter().map(|handle| handle.id().clone()).collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{filter:?}");
    }
}

/// Paused sandboxes are listed, and told apart.
pub async fn list_filters_by_state(stage: &Stage) {
    let can = stage.capabilities();
    if !stage.needs(can.tags && can.pause && can.find_without_waking, "tags, pause, find without waking") {
        return;
    }
    let (awake, asleep) = (stage.create("one").await, stage.create("two").await);
    stage.provider().pause(asleep.id()).await.unwrap();
    stage.listed(2).await;
    let owned = ListFilter::default().with_owner(stage.owner().clone());
    for (state, handle) in [(SandboxState::Running, &awake), (SandboxState::Paused, &asleep)] {
        let listed = stage.provider().list_all(owned.clone().with_state(state)).await.unwrap();
        assert_eq!(ids(&listed), [handle.id().clone()], "{state:?}");
    }
}

/// Metrics are measured, or said to be unsupported.
pub async fn metrics_match_the_capabilities(stage: &Stage) {
    let handle = stage.create("one").await;
    let metrics = stage.provider().metrics(handle.id()).await;
    if stage.capabilities().metrics {
        assert!(metrics.unwrap().cpu_count > 0.0);
        let error = stage.provider().metrics(&unknown_id()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    } else {
        assert_eq!(metrics.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

/// The log tells what became of a sandbox, oldest first, or is said to be unsupported.
pub async fn logs_match_the_capabilities(stage: &Stage) {
    let handle = stage.create("one").await;
    let read = async |options: LogOptions| stage.provider().logs(handle.id(), options).await?.collect().await;
    if !stage.capabilities().logs {
        assert_eq!(read(LogOptions::default()).await.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let before = read(LogOptions::default()).await.unwrap();
    if stage.capabilities().pause {
        stage.provider().pause(handle.id()).await.unwrap();
        let after = read(LogOptions::default()).await.unwrap();
        assert!(after.len() > before.len(), "the pause is told: {after:?}");
    }
    let lines = read(LogOptions::default()).await.unwrap();
    assert!(lines.is_sorted_by_key(|line| line.at), "{lines:?}");
    assert!(lines.iter().all(|line| !line.message.is_empty() && !line.level.is_empty()), "{lines:?}");
    assert_eq!(read(LogOptions::default().with_limit(1)).await.unwrap(), lines[..lines.len().min(1)]);
    let later = SystemTime::now() + CLOCK_SLACK;
    assert_eq!(read(LogOptions::default().with_since(later)).await.unwrap(), []);
    let error = stage.provider().logs(&unknown_id(), LogOptions::default()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// A create that is cut short says that nothing was made only where that is sure: acquire would make another one. Sent again,
/// it yields what the first one has made, or is still making.
pub async fn a_create_that_is_cut_short_and_sent_again_is_one_sandbox(stage: &Stage) {
    let can = stage.capabilities();
    // Of other providers nothing brings in what a create makes after its caller has left: it would stay behind.
    if !stage.needs(can.idempotent_create && can.tags, "idempotent creates and tags") {
        return;
    }
    let options = CreateOptions::new(stage.spec(), stage.tags("one"));
    let cut = stage.provider().create_opts(options.clone().with_deadline(Duration::from_millis(1))).await;
    if let Err(error) = &cut
        && error.refuses_create()
    {
        // Once the listing shows what was made later, it would show this one too.
        stage.create("witness").await;
        let shown = || async { (!stage.find_key("witness").await.is_empty()).then_some(()) };
        eventually("the witness is listed", shown).await;
        let made = stage.find_key("one").await;
        assert!(made.is_empty(), "{error}, but there is {:?}", ids(&made));
    }
    let whole = stage.create_with(options).await;
    if let Ok(handle) = cut {
        assert_eq!(handle.id(), whole.id());
    }
    let listed = || async {
        let found = stage.find_key("one").await;
        (!found.is_empty()).then_some(found)
    };
    assert_eq!(ids(&eventually("it is listed", listed).await), [whole.id().clone()]);
}

/// A create whose answer was lost can be sent again where the provider knows attempts.
pub async fn creates_of_one_attempt_yield_one_sandbox(stage: &Stage) {
    if !stage.needs(stage.capabilities().idempotent_create, "idempotent creates") {
        return;
    }
    let options = CreateOptions::new(stage.spec(), stage.tags("one"));
    let first = stage.create_with(options.clone()).await;
    let second = stage.create_with(options.clone()).await;
    assert_eq!(first.id(), second.id());
    let third = stage.fresh_provider().await.create_opts(options).await.unwrap();
    assert_eq!(first.id(), third.id());
    assert_eq!(stage.listed(1).await.len(), 1);
}

/// So can one whose first call is still under way.
pub async fn concurrent_creates_of_one_attempt_yield_one_sandbox(stage: &Stage) {
    if !stage.needs(stage.capabilities().idempotent_create, "idempotent creates") {
        return;
    }
    let options = CreateOptions::new(stage.spec(), stage.tags("one"));
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (provider, options) = (Arc::clone(stage.provider()), options.clone());
            tokio::spawn(async move { provider.create_opts(options).await })
        })
        .collect();
    let mut made = Vec::new();
    for call in calls {
        made.push(call.await.unwrap().unwrap().id().clone());
    }
    made.dedup();
    assert_eq!(ids(&stage.listed(1).await), made);
}

/// A copy of a create that comes after the end of its sandbox makes no other one, which nobody would know of.
pub async fn a_create_of_a_destroyed_attempt_makes_nothing(stage: &Stage) {
    if !stage.needs(stage.capabilities().idempotent_create, "idempotent creates") {
        return;
    }
    let options = CreateOptions::new(stage.spec(), stage.tags("one"));
    let id = stage.create_with(options.clone()).await.id().clone();
    assert_eq!(stage.provider().destroy(&id).await.unwrap(), DestroyOutcome::Destroyed);
    for provider in [Arc::clone(stage.provider()), stage.fresh_provider().await] {
        let error = provider.create_opts(options.clone()).await.map(drop).unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotStarted, "{error}");
    }
    assert_eq!(stage.provider().find_id(&id).await.unwrap(), None);
    assert_eq!(stage.listed(0).await.len(), 0);
}

/// Nothing about a sandbox is kept in the provider value: another process finds, uses and destroys it.
pub async fn a_fresh_provider_value_sees_what_another_made(stage: &Stage) {
    let tags = stage.tags("one");
    let made = stage.create_with(CreateOptions::new(stage.spec(), tags.clone())).await;
    made.write_bytes("mark", "here").await.unwrap();
    let id = made.id().clone();
    drop(made);
    let fresh = stage.fresh_provider().await;
    let info = fresh.find_id(&id).await.unwrap().unwrap();
    assert_eq!(info, stage.info(&id).await);
    let handle = fresh.connect(&id).await.unwrap().handle;
    assert_eq!(handle.read_text("mark").await.unwrap(), "here");
    if stage.capabilities().tags {
        assert_eq!(info.tags.as_ref(), Some(&tags));
        assert_eq!(handle.generation(), Some(&tags.generation));
    }
    assert_eq!(fresh.destroy(&id).await.unwrap(), DestroyOutcome::Destroyed);
    assert_eq!(stage.provider().find_id(&id).await.unwrap(), None);
}

/// Letting go of a handle changes nothing.
pub async fn dropping_a_handle_leaves_the_sandbox_alone(stage: &Stage) {
    let handle = stage.create("one").await;
    let id = handle.id().clone();
    let process = handle.start(ProcessSpec::argv("sleep", ["1000"])).await.unwrap();
    let pid = process.pid();
    drop((handle, process));
    let connection = stage.provider().connect(&id).await.unwrap();
    assert_eq!(connection.resumed, None);
    let selector = ProcessSelector::Pid(pid);
    assert!(connection.handle.signal(selector, crate::Signal::KILL).await.unwrap(), "the process runs on");
}
