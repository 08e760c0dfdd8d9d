//! The table: this library beside both SDKs, and what was to be reached.

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::floor::Floor;
use crate::peers::Cost;

/// What is to be reached against both SDKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    None,
    /// At least 3 times the rate of the JavaScript SDK, and 5 times that of the Python SDK.
    Stream,
    /// At most half of their processor time.
    HalfCpu,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    unit: &'static str,
    ours: f64,
    js: f64,
    python: f64,
    /// How many times better than each of them; below 1 is worse.
    better_than_js: f64,
    better_than_python: f64,
    /// None where there is no goal.
    met: Option<bool>,
}

/// Everything that one run found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    load_before: String,
    rows: Vec<Row>,
    /// What no client can be better than, in words.
    bounds: Vec<String>,
}

impl Report {
    pub(crate) fn new() -> Self {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            load_before: load.split(' ').next().unwrap_or_default().to_owned(),
            rows: Vec::new(),
            bounds: Vec::new(),
        }
    }

    fn add(&mut self, name: String, unit: &'static str, values: [f64; 3], more_is_better: bool, goal: Goal) {
        let [ours, js, python] = values;
        let better = |theirs: f64| if more_is_better { ours / theirs } else { theirs / ours };
        let (js_times, python_times) = (better(js), better(python));
        let met = match goal {
            Goal::None => None,
            Goal::Stream => Some(js_times >= 3.0 && python_times >= 5.0),
            Goal::HalfCpu => Some(js_times >= 2.0 && python_times >= 2.0),
        };
        self.rows.push(Row {
            name,
            unit,
            ours,
            js,
            python,
            better_than_js: js_times,
            better_than_python: python_times,
            met,
        });
    }

    /// Adds times, each multiplied into the unit.
    pub(crate) fn times(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        costs: &[Cost; 3],
        factor: f64,
        goal: Goal,
    ) {
        self.add(name.into(), unit, costs.map(|cost| cost.seconds * factor), false, goal);
    }

    /// Adds processor times, each multiplied into milliseconds of one thing.
    pub(crate) fn cpu(&mut self, name: &str, costs: &[Cost; 3], factor: f64, goal: Goal) {
        self.add(name.to_owned(), "ms", costs.map(|cost| cost.cpu * factor), false, goal);
    }

    /// Adds rates of so many bytes.
    pub(crate) fn rates(&mut self, name: String, bytes: u64, costs: &[Cost; 3]) {
        let rates = costs.map(|cost| bytes as f64 / (1 << 20) as f64 / cost.seconds);
        self.add(name, "MiB/s", rates, true, Goal::Stream);
    }

    /// Says what the machine itself takes for the same.
    pub(crate) fn bound(&mut self, floor: &Floor) {
        self.bounds.push(format!(
            "{} MiB from one process through loopback and thrown away there: {:.0} MiB/s, CPU of the sender {:.0} ms a GiB",
            floor.bytes >> 20,
            floor.bytes as f64 / (1 << 20) as f64 / floor.seconds,
            floor.cpu * 1e3 * (1u64 << 30) as f64 / floor.bytes as f64,
        ));
    }

    /// Adds values of which less is better.
    pub(crate) fn values(&mut self, name: impl Into<String>, unit: &'static str, values: [f64; 3]) {
        self.add(name.into(), unit, values, false, Goal::None);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "npm e2b and PyPI e2b (synchronous client), load {} before", self.load_before)?;
        let head = ("measured", "ours", "JS", "Python", "vs JS", "vs Py");
        writeln!(
            f,
            "\n{:<54} {:>10} {:>10} {:>10} {:<5} {:>7} {:>7}  met",
            head.0, head.1, head.2, head.3, "", head.4, head.5
        )?;
        for row in &self.rows {
            let met = match row.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            };
            writeln!(
                f,
                "{:<54} {:>10.2} {:>10.2} {:>10.2} {:<5} {:>6.1}x {:>6.1}x  {met}",
                row.name, row.ours, row.js, row.python, row.unit, row.better_than_js, row.better_than_python
            )?;
        }
        for bound in &self.bounds {
            writeln!(f, "bound: {bound}")?;
        }
        Ok(())
    }
}

/// Takes the middle of each part; of nothing it is nothing.
pub(crate) fn median(costs: &[Cost]) -> Cost {
    let middle = |part: fn(&Cost) -> f64| {
        let mut all: Vec<f64> = costs.iter().map(part).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    // Processor time comes in ticks of 10 ms, which a median of short runs would lose.
    let cpu = costs.iter().map(|cost| cost.cpu).sum::<f64>() / costs.len().max(1) as f64;
    Cost { seconds: middle(|cost| cost.seconds), loading: middle(|cost| cost.loading), cpu }
}
