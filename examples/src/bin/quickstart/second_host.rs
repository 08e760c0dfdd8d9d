//! The host that gets the same sandbox back.

use std::time::Instant;

use sandhold_core::{
    AcquireOptions, AcquireOutcome, AttachOptions, Error, ErrorKind, ProcessEvent, ProcessSelector,
    ProcessSpec, ReplayFrom, Result, Sandbox, SandboxHandle as _, SandboxHandleExt as _,
    SandboxProviderExt as _,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{EDITS, KEY, KILL_AT, PORT, REPO, report, sandboxes, traces};

pub(crate) async fn run() -> Result<()> {
    let (provider, sandboxes) = sandboxes().await?;
    let started = Instant::now();
    let acquired = sandboxes.acquire(KEY, AcquireOptions::default()).await?;
    let sandbox = acquired.sandbox;
    report(started, &format!("acquire {KEY:?}: {} {}", acquired.outcome, sandbox.id()));
    ensure(acquired.outcome == AcquireOutcome::Connected, "it is the sandbox of the first host")?;

    let started = Instant::now();
    let replay = AttachOptions::default().with_replay(ReplayFrom::start());
    let mut work = sandbox.attach(ProcessSelector::Tag("work".to_owned()), replay).await?;
    let mut text = String::new();
    while let Some(event) = work.next_event().await? {
        match event {
            ProcessEvent::Output { data, .. } => text.push_str(&String::from_utf8_lossy(&data)),
            ProcessEvent::Exit(exit) => {
                report(started, &format!("the work went on without a host and ended: {exit}"))
            }
            _ => {}
        }
    }
    let lines = text.lines().count();
    let before = text.lines().take(KILL_AT as usize).collect::<Vec<_>>().join(", ");
    println!("              its output from offset 0, {lines} lines: {before}, …");
    ensure(lines == EDITS as usize, "no line of the output is missing or doubled")?;

    let started = Instant::now();
    let page = get(&sandbox, "/EDITS.md").await?;
    report(started, &format!("the web server never stopped: {}", page.lines().next().unwrap_or_default()));
    ensure(page.ends_with(&format!("edit {EDITS}\n")), "the page is the edited file")?;

    let started = Instant::now();
    let status = sandbox.exec(ProcessSpec::argv("git", ["-C", REPO, "status", "--short"])).await?;
    report(started, &format!("the edits are there: {}", status.stdout.text().trim()));
    ensure(status.stdout.text().contains("EDITS.md"), "git sees the edited file")?;

    let started = Instant::now();
    sandbox.pause().await?;
    report(started, "paused: every process is frozen");
    let started = Instant::now();
    sandbox.resume().await?;
    report(started, "resumed: the same processes go on");
    ensure(get(&sandbox, "/").await?.starts_with("HTTP/1.0 200"), "the web server answers again")?;

    let (id, started) = (sandbox.id().clone(), Instant::now());
    let destroyed = sandbox.destroy().await?;
    report(started, &format!("destroy: {destroyed:?}"));
    let started = Instant::now();
    ensure(provider.find_id(&id).await?.is_none(), "the provider does not know it any more")?;
    let left = traces::of(&provider, &id);
    ensure(left.is_empty(), &format!("nothing is left of it {left:?}"))?;
    report(started, "no process, mount, directory or control group is left");
    Ok(())
}

async fn get(sandbox: &Sandbox, path: &str) -> Result<String> {
    let broken = |error| Error::new(ErrorKind::Unavailable, "the connection broke").with_source(error);
    let mut stream = sandbox.dial(PORT).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.map_err(broken)?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await.map_err(broken)?;
    Ok(page)
}

fn ensure(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::Unexpected, format!("this does not hold: {what}"))) }
}
