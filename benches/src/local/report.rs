//! The table: what was measured, the bound beside it, and whether it was met.

use std::fmt;
use std::fs;
use std::time::Duration;

use serde::Serialize;

use crate::stage::Stage;

/// What a value must not pass.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    value: f64,
    unit: &'static str,
    bound: Option<Bound>,
    /// None where there is no bound.
    met: Option<bool>,
    note: String,
}

/// Everything that one run found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    runtime: &'static str,
    helper: String,
    helper_is_static: bool,
    state_directory: String,
    load_before: String,
    load_after: String,
    runs: usize,
    runs_of_a_gibibyte: usize,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(stage: &Stage) -> Self {
        Self {
            runtime: "tokio, current_thread",
            helper: stage.helper.display().to_string(),
            helper_is_static: stage.helper_is_static,
            state_directory: stage.home().display().to_string(),
            load_before: load(),
            load_after: String::new(),
            runs: stage.runs,
            runs_of_a_gibibyte: stage.long_runs,
            rows: Vec::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        name: &'static str,
        value: f64,
        unit: &'static str,
        bound: Option<Bound>,
        note: impl Into<String>,
    ) {
        let met = bound.map(|bound| match bound {
            Bound::AtMost(limit) => value <= limit,
            Bound::AtLeast(limit) => value >= limit,
        });
        self.rows.push(Row { name, value, unit, bound, met, note: note.into() });
    }

    /// Adds a time in milliseconds.
    pub(crate) fn add_time(&mut self, name: &'static str, times: &Times, most: Option<f64>) {
        let note = format!("{:.2} to {:.2}", times.low(), times.high());
        self.add(name, times.median(), "ms", most.map(Bound::AtMost), note);
    }

    /// Adds a rate, which only says something beside another one of the same run.
    pub(crate) fn add_rate(&mut self, name: &'static str, mebibytes_per_second: f64) {
        self.add(name, mebibytes_per_second, "MiB/s", None, "");
    }

    /// Adds a ratio of neighbours in time: its median, and where half of them lie.
    pub(crate) fn add_ratio(&mut self, name: &'static str, ratios: &Times, bound: Option<Bound>) {
        let note = format!("half of them {:.2} to {:.2}", ratios.quantile(0.25), ratios.quantile(0.75));
        self.add(name, ratios.median(), "x", bound, note);
    }

    pub(crate) fn finish(&mut self) {
        self.load_after = load();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let linking = if self.helper_is_static { "static" } else { "dynamic" };
        writeln!(f, "runtime {}, helper {} ({linking})", self.runtime, self.helper)?;
        writeln!(
            f,
            "medians of {}, of {} for 1 GiB; state in {}; load {} before, {} after",
            self.runs, self.runs_of_a_gibibyte, self.state_directory, self.load_before, self.load_after
        )?;
        writeln!(f, "\n{:<52} {:>10} {:<5} {:>9}  {:<4} note", "measured", "value", "", "bound", "met")?;
        for Row { name, value, unit, bound, met, note } in &self.rows {
            let bound = match bound {
                Some(Bound::AtMost(limit)) => format!("<= {limit}"),
                Some(Bound::AtLeast(limit)) => format!(">= {limit}"),
                None => String::new(),
            };
            let met = match met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            };
            writeln!(f, "{name:<52} {value:>10.2} {unit:<5} {bound:>9}  {met:<4} {note}")?;
        }
        Ok(())
    }
}

/// The load of the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Times of the same thing, or ratios of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e3);
        self.0.sort_by(f64::total_cmp);
    }

    /// Adds how many times faster the second was than the first.
    pub(crate) fn push_ratio(&mut self, first: Duration, second: Duration) {
        self.0.push(first.as_secs_f64() / second.as_secs_f64());
        self.0.sort_by(f64::total_cmp);
    }

    /// The value below which this share of them lies; 0 without any.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1) as f64;
        self.0.get((last * share).round() as usize).copied().unwrap_or_default()
    }

    /// In milliseconds; 0 without any.
    pub(crate) fn median(&self) -> f64 {
        match self.0.len() {
            0 => 0.0,
            count if count % 2 == 1 => self.0[count / 2],
            count => (self.0[count / 2 - 1] + self.0[count / 2]) / 2.0,
        }
    }

    pub(crate) fn low(&self) -> f64 {
        self.0.first().copied().unwrap_or_default()
    }

    pub(crate) fn high(&self) -> f64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// MiB per second of the median, for so many bytes.
    pub(crate) fn rate(&self, bytes: u64) -> f64 {
        bytes as f64 / (1 << 20) as f64 / (self.median() / 1e3)
    }
}
