//! Nothing is left behind; alone in its program, because it counts what the whole process has open.
#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests panic, and say what they skip")]

mod process_support;

use std::time::Duration;

use process_support::{Rig, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_commands_leave_no_descriptor_and_no_child_behind() {
    let rig = std::sync::Arc::new(Rig::new());
    rig.run("true", &[]).await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = (descriptors(), tasks());
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let rig = rig.clone();
            tokio::spawn(async move {
                for _ in 0..1250 {
                    assert_eq!(rig.run("/bin/true", &[]).await.end["status"], "exit status 0");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    soon("everything to settle", async {
        while descriptors().abs_diff(before.0) > 5 || tasks().abs_diff(before.1) > 5 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
