//! A few kills at random moments; many more are made by the benches' `chaos-local`.

#[path = "support/chaos.rs"]
mod chaos;
#[path = "support/reality.rs"]
mod reality;
#[path = "support/verdict.rs"]
mod verdict;

use chaos::{Chaos, HOST_VARIABLE};

#[test]
fn after_a_kill_at_any_moment_list_and_reality_agree_and_nothing_leaks() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let report = chaos::run(&Chaos {
        moments: u32::try_from(number("SANDHOLD_CHAOS_MOMENTS", 12)).unwrap_or(12),
        seed: number("SANDHOLD_CHAOS_SEED", 7),
        helper: env!("CARGO_BIN_EXE_sandhold-helper").into(),
        host_args: ["--exact", "a_host", "--ignored", "--nocapture"].map(str::to_owned).into(),
        verbose: true,
    });
    println!("{report}");
}

#[tokio::test]
#[ignore = "run by another test, as the host that is killed"]
async fn a_host() {
    if std::env::var_os(HOST_VARIABLE).is_some() {
        chaos::host().await;
    }
}
