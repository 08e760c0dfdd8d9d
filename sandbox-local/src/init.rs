//! PID 1 of a sandbox: makes the inside, and then is its daemon.
//!
//! It never executes another program: root inside could attach to that while it starts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Signal, Uid};
use sandhold_envd::{Daemon, DaemonConfig, UserMode};

use crate::cgroup::{FreezerTier, Groups};
use crate::channel::Channel;
use crate::control::{Control, Isolation, UsersTier};
use crate::failure::{Doing, Failure, FailureKind};
use crate::freezer::Freezer;
use crate::monitor::READY;
use crate::record::{IdMap, Network, Spec};
use crate::rootfs::{Entered, View};
use crate::workload::{Workload, drop_rights};
use crate::{base, rootfs, sudo, sys};

/// What PID 1 has from the monitor that it is a copy of.
#[derive(Debug)]
pub(crate) struct Inheritance {
    pub(crate) spec: Spec,
    pub(crate) view: View,
    pub(crate) groups: Groups,
    pub(crate) listener: UnixListener,
    pub(crate) channel: Channel,
}

/// Runs as PID 1 until the sandbox ends.
pub(crate) fn run(given: Inheritance) -> ! {
    let Inheritance { spec, view, groups, listener, channel } = given;
    let error =
        match prepare(spec, view, groups, listener, &channel).and_then(|inside| inside.serve(&channel)) {
            Ok(never) => match never {},
            Err(error) => error,
        };
    let _ = channel.send(&serde_json::to_vec(&error).unwrap_or_default(), &[]);
    sys::exit_now(1)
}

/// A sandbox that is made and waits for its daemon.
struct Inside {
    spec: Spec,
    workload: Workload,
    freezer: Freezer,
    isolation: Isolation,
    listener: UnixListener,
    memory: Option<OwnedFd>,
}

fn prepare(
    spec: Spec,
    view: View,
    groups: Groups,
    listener: UnixListener,
    channel: &Channel,
) -> Result<Inside, Failure> {
    let mut keep: Vec<BorrowedFd<'_>> = vec![listener.as_fd(), channel.as_fd()];
    keep.extend(groups.join.iter().chain(&groups.memory).map(AsFd::as_fd));
    keep.extend(groups.freezer.iter().flat_map(|group| [group.order.as_fd(), group.state.as_fd()]));
    sys::close_all_but(&keep).doing("close the monitor's files")?;
    // The host waits for the end of this stream.
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).doing("leave the standard output")?;

    let died = || Failure::new(FailureKind::Unexpected, "the monitor died while the sandbox was starting");
    let (_, trees) = channel.receive().doing("hear from the monitor")?.ok_or_else(died)?;
    if !matches!(spec.ids, IdMap::Single) {
        rustix::thread::set_thread_groups(&[]).doing("leave the host's groups")?;
    }
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).doing("become root inside")?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).doing("become root inside")?;
    // Asked for after the ids changed, which clears it. If the monitor died before, its end of the line is closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).doing("follow the monitor")?;
    let mut hung_up = [PollFd::new(channel, PollFlags::empty())];
    if poll(&mut hung_up, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).doing("look for the monitor")? > 0 {
        return Err(died());
    }
    rustix::process::setsid().doing("start a session")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::system::sethostname(base::hostname(&spec).as_bytes()).doing("set the host name")?;
    if spec.network != Network::Host {
        sys::loopback_up().doing("bring the loopback interface up")?;
    }
    let workload = Workload::new(groups.join, groups.memory, spec.network, &spec.ids)?;
    let Entered { usr, memory } = rootfs::enter(&spec, &view, rootfs::Trees::from_fds(trees, &spec, &view))?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .doing("open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).doing("detach the standard streams")?;
    rustix::stdio::dup2_stdout(&null).doing("detach the standard streams")?;
    rustix::stdio::dup2_stderr(&null).doing("detach the standard streams")?;
    drop_rights()?;
    let isolation = Isolation {
        users: match spec.ids {
            IdMap::Full { .. } => UsersTier::Full,
            IdMap::Ranges { .. } => UsersTier::Ranges,
            IdMap::Single => UsersTier::Single,
        },
        usr,
        network: spec.network,
        seccomp: true,
        landlock: sys::landlock_version(),
        freezer: groups.freezer.as_ref().map_or(FreezerTier::Signals, |group| group.tier),
    };
    Ok(Inside { spec, workload, freezer: Freezer::new(groups.freezer), isolation, listener, memory })
}

impl Inside {
    fn serve(self, channel: &Channel) -> Result<Infallible, Failure> {
        let Self { spec, workload, freezer, isolation, listener, memory } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_keep_alive(std::time::Duration::from_secs(1))
            .thread_stack_size(256 * 1024)
            .build()
            .doing("start the daemon")?;
        runtime.block_on(async {
            let control = Control::start(&spec, freezer, isolation).doing("start the lease")?;
            let daemon = Daemon::new(config(&spec, workload, control)).doing("start the daemon")?;
            sudo::serve(daemon.clone()).doing("listen for sudo")?;
            listener.set_nonblocking(true).doing("listen")?;
            let listener = tokio::net::UnixListener::from_std(listener).doing("listen")?;
            // The monitor has it from here on, for those who copy what is in it.
            let fds: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
            channel.send(READY.as_bytes(), &fds).doing("say that the sandbox is ready")?;
            drop(fds);
            drop(memory);
            // The first command finds a thread to be started from.
            tokio::task::spawn_blocking(|| {});
            daemon.serve(listener).await;
            Err(Failure::new(FailureKind::Unexpected, "the daemon stopped"))
        })
    }
}

fn config(spec: &Spec, workload: Workload, control: Arc<Control>) -> DaemonConfig {
    let mut envs = BTreeMap::from([
        // Not that of the host's program that started the sandbox.
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("E2B_SANDBOX".to_owned(), "true".to_owned()),
        ("E2B_SANDBOX_ID".to_owned(), spec.id.clone()),
        ("E2B_TEMPLATE_ID".to_owned(), spec.template.clone()),
        ("SANDHOLD_PROVIDER".to_owned(), "local".to_owned()),
        ("SANDHOLD_SANDBOX_ID".to_owned(), spec.id.clone()),
    ]);
    envs.extend(spec.envs.clone());
    let mode = match spec.ids {
        IdMap::Full { .. } | IdMap::Ranges { .. } => UserMode::SetId,
        IdMap::Single => UserMode::SingleId,
    };
    let mut config = DaemonConfig::new()
        .with_default_user(spec.default_user.as_ref().unwrap_or(&spec.user.name))
        .with_envs(envs)
        .with_user_mode(mode)
        .with_child_setup(Arc::new(workload))
        .with_routes(control)
        .with_init_reaps_all(true);
    if let Some(workdir) = spec.workspace.as_ref().or(spec.workdir.as_ref()) {
        config = config.with_default_workdir(workdir);
    }
    config
}
