//! The host that dies.

use std::time::{Duration, Instant};

use sandhold_core::{
    AcquireOptions, DEFAULT_RETAIN, Error, ErrorKind, ExecOptions, ProcessEvent, ProcessSpec, Result,
    Sandbox, SandboxHandle as _, SandboxHandleExt as _,
};

use crate::{EDITS, KEY, PORT, REPO, report, repository, sandboxes};

pub(crate) async fn run(repo: &str) -> Result<()> {
    let (_, sandboxes) = sandboxes().await?;
    let started = Instant::now();
    let source = repo.to_owned();
    // Runs for a new sandbox only; nobody gets it before this has ended.
    let options = AcquireOptions::default().with_on_start(move |start| {
        let source = source.clone();
        async move {
            let started = Instant::now();
            repository::put(&start.sandbox, &source).await?;
            report(started, &format!("on_start ({}): the repository is inside", start.outcome));
            let started = Instant::now();
            serve(&start.sandbox).await?;
            report(started, &format!("on_start: a web server listens on port {PORT} inside"));
            Ok(())
        }
    });
    let acquired = sandboxes.acquire(KEY, options).await?;
    let sandbox = acquired.sandbox;
    report(started, &format!("acquire {KEY:?}: {} {}", acquired.outcome, sandbox.id()));

    let started = Instant::now();
    let count = ProcessSpec::shell("git ls-files | sed 's/.*[.]//' | sort | uniq -c | sort -rn | head -5")
        .with_cwd(REPO);
    let counted = sandbox
        .exec_streaming(count, ExecOptions::default(), |_, text| print!("{}", String::from_utf8_lossy(text)))
        .await?;
    report(started, &format!("a command on the files: {}", counted.exit));

    // Output and exit are kept inside, so that whoever comes next can read them.
    let edit = format!("for i in $(seq 1 {EDITS}); do echo \"edit $i\" | tee -a EDITS.md; sleep 0.05; done");
    let work = ProcessSpec::argv("/bin/sh", ["-c", &edit])
        .with_cwd(REPO)
        .with_tag("work")
        .with_retain(DEFAULT_RETAIN);
    let mut work = sandbox.start(work).await?;
    while let Some(event) = work.next_event().await? {
        if let ProcessEvent::Output { data, .. } = event {
            print!("{}", String::from_utf8_lossy(&data));
        }
    }
    Ok(())
}

async fn serve(sandbox: &Sandbox) -> Result<()> {
    let server = ["-m", "http.server", &PORT.to_string(), "--bind", "127.0.0.1"].map(str::to_owned);
    let server =
        ProcessSpec::argv("python3", server).with_cwd(REPO).with_tag("web").with_retain(DEFAULT_RETAIN);
    sandbox.start(server).await?;
    for _ in 0..500 {
        match sandbox.dial(PORT).await {
            Ok(_) => return Ok(()),
            Err(error) if error.reason() == Some("port_closed") => {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Timeout, "the web server does not listen; is python3 in /usr?"))
}
