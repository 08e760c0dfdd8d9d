//! What E2B has logged about a sandbox.

use std::collections::VecDeque;
use std::sync::Arc;

use sandhold_core::{LogLine, LogOptions, Result, ResultStream, SandboxId};

use crate::control::SharedControl;
use crate::wire::{Direction, LogEntry, LogQuery, Timestamp};

/// The largest number of lines in one answer.
const PAGE: u32 = 1000;

struct Reading {
    control: SharedControl,
    id: SandboxId,
    /// From which millisecond on the next answer is asked for.
    cursor: i64,
    /// Lines of that millisecond that were told already.
    told: Vec<LogEntry>,
    lines: VecDeque<LogEntry>,
    left: usize,
    ended: bool,
}

/// Streams the lines, oldest first. The first answer is waited for, so that a sandbox that is not there is said at once.
pub(crate) async fn stream(
    control: &SharedControl,
    id: &SandboxId,
    options: &LogOptions,
) -> Result<ResultStream<LogLine>> {
    let mut reading = Reading {
        control: Arc::clone(control),
        id: id.clone(),
        cursor: options.since.map_or(0, |since| Timestamp(since).unix_millis()),
        told: Vec::new(),
        lines: VecDeque::new(),
        left: options.limit.unwrap_or(usize::MAX),
        ended: false,
    };
    reading.read().await?;
    Ok(ResultStream::unfold(reading, |mut reading| async move {
        let line = reading.line().await.transpose()?;
        Some((line, reading))
    }))
}

impl Reading {
    async fn line(&mut self) -> Result<Option<LogLine>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.read().await?;
        let Some(entry) = self.lines.pop_front() else { return Ok(None) };
        self.left -= 1;
        Ok(Some(LogLine::new(entry.timestamp.0, entry.level.as_str(), entry.message)))
    }

    /// Asks for the next lines. The cursor is a time, so that lines of its millisecond come again.
    async fn read(&mut self) -> Result<()> {
        while self.lines.is_empty() && !self.ended {
            let query = LogQuery {
                cursor: Some(self.cursor),
                limit: Some(PAGE),
                direction: Some(Direction::Forward),
                ..LogQuery::default()
            };
            let answer = self.control.logs(&self.id, &query).await;
            let entries = answer.map_err(|error| error.with_context("id", &self.id))?.logs;
            self.ended = entries.len() < PAGE as usize;
            // One line of the log stands for one that was told: what was written twice is told twice.
            let mut told = self.told.clone();
            let is_fresh = |entry: &LogEntry| match told.iter().position(|told| told == entry) {
                Some(at) => {
                    told.swap_remove(at);
                    false
                }
                None => true,
            };
            let fresh: Vec<_> = entries.into_iter().filter(is_fresh).collect();
            // A whole answer of one millisecond that was told already is passed by the next one: no cursor leads to what
            // else there may be of it.
            let next =
                fresh.last().map_or(self.cursor.saturating_add(1), |last| last.timestamp.unix_millis());
            if next != self.cursor {
                self.told.clear();
            }
            self.cursor = next;
            self.told.extend(fresh.iter().filter(|entry| entry.timestamp.unix_millis() == next).cloned());
            self.lines.extend(fresh);
        }
        Ok(())
    }
}
