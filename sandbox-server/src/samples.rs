//! Measurements of a sandbox over time: few enough to be kept in memory.

use std::collections::VecDeque;
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use sandhold_core::Metrics;
use sandhold_e2b::wire::{Metric, Timestamp};

use crate::app::App;
use crate::sandboxes::{Phase, now};

/// The time between two measurements, as E2B has it.
const PERIOD: Duration = Duration::from_secs(5);

/// So many measurements are kept a sandbox: half an hour.
const KEPT: usize = 360;

/// So many sandboxes are measured at once.
const AT_ONCE: usize = 8;

/// The last measurements, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Samples(VecDeque<Metric>);

impl Samples {
    fn push(&mut self, sample: Metric) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns those between two moments, both in seconds since 1970 and inclusive.
    pub(crate) fn between(&self, start: Option<i64>, end: Option<i64>) -> Vec<Metric> {
        let inside = |sample: &&Metric| {
            start.is_none_or(|start| sample.timestamp_unix >= start)
                && end.is_none_or(|end| sample.timestamp_unix <= end)
        };
        self.0.iter().filter(inside).cloned().collect()
    }

    pub(crate) fn last(&self) -> Option<&Metric> {
        self.0.back()
    }
}

/// Measures every running sandbox until the server is gone.
pub(crate) async fn measure(app: Weak<App>) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        let running = app.sandboxes.all().into_iter().filter(|sandbox| sandbox.phase() == Phase::Running);
        let provider = &app.provider;
        futures_util::stream::iter(running)
            .for_each_concurrent(AT_ONCE, |sandbox| async move {
                match provider.metrics(&sandbox.provided).await {
                    Ok(metrics) => {
                        let mut samples = sandbox.samples.lock().unwrap_or_else(PoisonError::into_inner);
                        samples.push(sample(&metrics));
                    }
                    // One that ended in between, most likely.
                    Err(error) => tracing::debug!(%error, id = sandbox.id, "a sandbox was not measured"),
                }
            })
            .await;
    }
}

fn sample(metrics: &Metrics) -> Metric {
    let timestamp = Timestamp(metrics.at.unwrap_or_else(now));
    // Whole cores on the wire.
    let cpu_count = metrics.cpu_count.ceil().clamp(1.0, f64::from(u16::MAX)) as u32;
    Metric {
        timestamp,
        timestamp_unix: timestamp.unix_seconds(),
        cpu_count,
        // Of all cores on the wire, of one in the contract.
        cpu_used_pct: metrics.cpu_used_percent / f64::from(cpu_count),
        mem_used: metrics.memory_used,
        mem_total: metrics.memory_total,
        mem_cache: metrics.memory_cache,
        disk_used: metrics.disk_used,
        disk_total: metrics.disk_total,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_measurements_make_room_and_ranges_are_inclusive() {
        let mut samples = Samples::default();
        for second in 0..400 {
            samples.push(Metric { timestamp_unix: second, ..Metric::default() });
        }
        let seconds = |start, end| -> Vec<i64> {
            samples.between(start, end).iter().map(|sample| sample.timestamp_unix).collect()
        };
        assert_eq!(seconds(None, None).len(), KEPT);
        assert_eq!(seconds(Some(397), None), [397, 398, 399]);
        assert_eq!(seconds(Some(100), Some(101)), [100, 101]);
        assert_eq!(seconds(None, Some(5)), [0_i64; 0]);
    }
}
