//! Measures the provider for E2B against the official SDKs: the same orders, on the same server, in one run.
//!
//! `cargo run --release -p sandhold-benches --bin e2b_peers [-- --json] [--quick] [--only NAME]...`
#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod floor;
mod ours;
#[path = "../../../sandbox-envd/tests/sdk/packages.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "it is shared with tests, which fail by panics")]
mod packages;
mod peers;
mod report;
mod stage;

use std::error::Error;
use std::process::ExitCode;

use crate::packages::Packages;
use crate::peers::{Cost, Order, Peer, Who};
use crate::report::{Goal, Report, median};
use crate::stage::{Crowd, Stage};

type Failure = Box<dyn Error + Send + Sync>;
type Result<T, E = Failure> = std::result::Result<T, E>;

const USAGE: &str = "usage: e2b_peers [--json] [--quick] [--only NAME]...
NAME is one of reattach, exec, small, upload, download, stdout, list, memory, trips";

const MEBIBYTE: u64 = 1 << 20;

/// What this program was asked for.
#[derive(Debug, Default)]
struct Options {
    json: bool,
    quick: bool,
    only: Vec<String>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => options.json = true,
                "--quick" => options.quick = true,
                "--only" => options.only.push(args.next().ok_or(USAGE)?),
                _ => return Err(format!("{arg:?} is not known; {USAGE}").into()),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // One thread for calls and streams: a hop between threads would cost more than what is measured.
    let done =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into).and_then(
            |runtime| match args.first() {
                Some(first) if first == peers::OURS => runtime.block_on(ours::serve()),
                _ => Options::parse(args.into_iter()).and_then(|options| measure(&options)),
            },
        );
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let stage = Stage::open()?;
    let mut report = Report::new();
    let (runs, calls, small, big) = if options.quick { (3, 30, 200, 128) } else { (7, 200, 1000, 1024) };
    let bench = Bench { stage: &stage, runs };
    let (big, shown) = (big * MEBIBYTE, 256.min(big) * MEBIBYTE);
    if options.wants("reattach") {
        reattach(&bench, &mut report)?;
    }
    if options.wants("exec") {
        let costs = bench.each(|peer| peer.carry_out(&Order::Exec { count: calls }))?;
        report.times("exec round trip", "ms", &costs, 1e3 / calls as f64, Goal::None);
        report.cpu("  CPU of the client, a call", &costs, 1e3 / calls as f64, Goal::HalfCpu);
    }
    if options.wants("small") {
        let costs = bench.each(|peer| peer.carry_out(&Order::Write { count: small }))?;
        report.times(format!("{small} writes of 1 KiB"), "s", &costs, 1.0, Goal::None);
        report.cpu("  CPU of the client, a write", &costs, 1e3 / small as f64, Goal::HalfCpu);
        let costs = bench.each(|peer| {
            peer.carry_out(&Order::Write { count: small })?;
            peer.carry_out(&Order::Read { count: small })
        })?;
        report.times(format!("{small} reads of 1 KiB"), "s", &costs, 1.0, Goal::None);
        report.cpu("  CPU of the client, a read", &costs, 1e3 / small as f64, Goal::HalfCpu);
    }
    if options.wants("upload") {
        stream(&bench, &mut report, "up", big, Order::Upload { bytes: big })?;
        report.bound(&floor::send(big)?);
    }
    if options.wants("download") {
        // No compression on the way makes random bytes smaller.
        stage.run(&format!("head -c {big} /dev/urandom > noise"))?;
        stream(&bench, &mut report, "down", big, Order::Download { bytes: big })?;
    }
    if options.wants("stdout") {
        stream(&bench, &mut report, "of stdout", shown, Order::Stdout { bytes: shown })?;
    }
    if options.wants("list") || options.wants("memory") {
        let crowd = Crowd::open(if options.quick { 500 } else { 5000 })?;
        if options.wants("list") {
            let costs = bench
                .each_on(crowd.address(), |peer| peer.carry_out(&Order::List { count: crowd.count() }))?;
            report.times(format!("list of {} sandboxes", crowd.count()), "ms", &costs, 1e3, Goal::None);
            report.cpu("  CPU of the client", &costs, 1e3, Goal::HalfCpu);
        }
        if options.wants("memory") {
            memory(&bench, &crowd, &mut report)?;
        }
    }
    if options.wants("trips") {
        trips(&stage, &mut report)?;
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

/// What each peer does on its own, in turns, so that all meet the same load of the machine.
struct Bench<'a> {
    stage: &'a Stage,
    runs: usize,
}

impl Bench<'_> {
    /// Measures on a connected sandbox, with the first run thrown away.
    fn each(&self, order: impl FnMut(&mut Peer) -> Result<Cost>) -> Result<[Cost; 3]> {
        self.times(self.runs, self.stage.address(), true, order)
    }

    /// As [`each`](Self::each), for what takes seconds.
    fn each_fewer(&self, order: impl FnMut(&mut Peer) -> Result<Cost>) -> Result<[Cost; 3]> {
        self.times(self.runs.min(3), self.stage.address(), true, order)
    }

    fn each_on(
        &self,
        address: std::net::SocketAddr,
        order: impl FnMut(&mut Peer) -> Result<Cost>,
    ) -> Result<[Cost; 3]> {
        self.times(self.runs, address, false, order)
    }

    fn times(
        &self,
        runs: usize,
        address: std::net::SocketAddr,
        connect: bool,
        mut order: impl FnMut(&mut Peer) -> Result<Cost>,
    ) -> Result<[Cost; 3]> {
        let mut peers = Vec::new();
        for who in Who::ALL {
            let mut peer = Peer::start(who, address, self.stage.packages())?;
            if connect {
                peer.carry_out(&Order::Connect { id: self.stage.sandbox()?.to_owned() })?;
            }
            order(&mut peer)?;
            peers.push((peer, Vec::new()));
        }
        for _ in 0..runs {
            for (peer, costs) in &mut peers {
                costs.push(order(peer)?);
            }
        }
        let mut all = [Cost::default(); 3];
        for (cost, (_, costs)) in all.iter_mut().zip(&peers) {
            *cost = median(costs);
        }
        Ok(all)
    }
}

/// So many bytes that go one way.
fn stream(bench: &Bench<'_>, report: &mut Report, name: &str, bytes: u64, order: Order) -> Result<()> {
    let costs = bench.each_fewer(|peer| {
        // To replace a file costs the server a copy more, which would hide the way there.
        if matches!(order, Order::Upload { .. }) {
            bench.stage.run("rm -f big")?;
        }
        peer.carry_out(&order)
    })?;
    report.rates(format!("{} MiB {name}", bytes / MEBIBYTE), bytes, &costs);
    let a_gibibyte = 1e3 * (1u64 << 30) as f64 / bytes as f64;
    report.cpu("  CPU of the client, a GiB", &costs, a_gibibyte, Goal::HalfCpu);
    Ok(())
}

/// A process that starts, connects by id and runs its first command.
fn reattach(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let id = bench.stage.sandbox()?.to_owned();
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for _ in 0..bench.runs {
        for (who, costs) in Who::ALL.into_iter().zip(&mut costs) {
            let mut peer = Peer::start(who, bench.stage.address(), bench.stage.packages())?;
            costs.push(peer.carry_out(&Order::Reattach { id: id.clone() })?);
        }
    }
    let costs = costs.each_ref().map(|costs| median(costs));
    report.times("reattach in a new process: connect and first command", "ms", &costs, 1e3, Goal::None);
    let loading = costs.map(|cost| Cost { seconds: cost.loading, ..cost });
    report.times("  before it: loading the library", "ms", &loading, 1e3, Goal::None);
    Ok(())
}

/// What handles of a thousand connected sandboxes take.
fn memory(bench: &Bench<'_>, crowd: &Crowd, report: &mut Report) -> Result<()> {
    let ids = crowd.ids(1000);
    let count = ids.len();
    let (mut grown, mut costs) = ([0.0; 3], [Cost::default(); 3]);
    for (at, who) in Who::ALL.into_iter().enumerate() {
        let mut peer = Peer::start(who, crowd.address(), bench.stage.packages())?;
        // Connections and code that the first call needs are no part of the handles.
        peer.carry_out(&Order::Hold { ids: ids.iter().take(1).cloned().collect() })?;
        let before = peer.memory()?;
        costs[at] = peer.carry_out(&Order::Hold { ids: ids.clone() })?;
        grown[at] = peer.memory()?.saturating_sub(before) as f64 / MEBIBYTE as f64;
    }
    report.values(format!("memory of {count} connected handles"), "MiB", grown);
    report.cpu("  CPU of the client, a connect", &costs, 1e3 / count as f64, Goal::HalfCpu);
    Ok(())
}

/// How many requests each thing takes, counted by a proxy between the peer and the server.
fn trips(stage: &Stage, report: &mut Report) -> Result<()> {
    let id = stage.sandbox()?.to_owned();
    let orders = [
        ("requests of a connect by id", Order::Connect { id: id.clone() }),
        ("requests of a command", Order::Exec { count: 1 }),
        ("requests of a small write", Order::Write { count: 1 }),
        ("requests of a small read", Order::Read { count: 1 }),
    ];
    let mut counted = [[0.0; 3]; 4];
    for (at, who) in Who::ALL.into_iter().enumerate() {
        let proxy = stage.proxy()?;
        let mut peer = Peer::start(who, proxy.address(), stage.packages())?;
        for (row, (_, order)) in counted.iter_mut().zip(&orders) {
            let before = proxy.count(|_| true);
            peer.carry_out(order)?;
            row[at] = (proxy.count(|_| true) - before) as f64;
        }
    }
    for ((name, _), counts) in orders.iter().zip(counted) {
        report.values(*name, "", counts);
    }
    Ok(())
}

impl Packages {
    fn node(&self, script: &str) -> std::process::Command {
        let mut command = std::process::Command::new("node");
        command.arg(self.dir().join("js").join(script));
        command
    }

    fn interpreter(&self, script: &str) -> std::process::Command {
        let mut command = std::process::Command::new(self.dir().join("venv/bin/python"));
        command.arg("-B").arg(self.dir().join("python").join(script));
        command
    }
}
