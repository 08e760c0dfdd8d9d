//! The protocol of hosts without a common registry: each has a record of its own, and sees the others in the provider's
//! listing only, where a sandbox appears some time after it was made.
//!
//! One step is one await: a listing that is read, a call that the provider carries out, a record that is written. At each
//! of them a host may be cut short, by a deadline or a failed call, and begin again with the record as it is then; or be
//! killed, after which its record is as it was or, where it was kept in memory, is not there.

use std::fmt;

use stateright::{Model, Property};

/// The record of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    #[default]
    None,
    /// An intent: its create may have been sent, and what it made is not compared.
    Open(u8),
    /// The sandbox of this host, by the attempt that made it.
    Ready(u8),
}

/// A sandbox that exists; the attempt that made it is its name, and earlier ones are elder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sandbox {
    attempt: u8,
    made: u8,
    is_listed: bool,
    /// The mark inside that a setup has completed, after which it is handed out.
    is_marked: bool,
}

/// What a host is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    Idle,
    /// It reads the listing, for want of a record.
    Discovering,
    /// Its intent is written, and it sends the create.
    Sending(u8),
    /// It waits for the answer.
    Waiting(u8),
    /// It looks for what its open create has made.
    Settling(u8),
    /// It compares what its create has made with what else is listed. One that is late may win only where nothing else
    /// is listed: how old it is may be told wrongly.
    Comparing {
        attempt: u8,
        late: bool,
    },
    /// It ends its own, for another one's.
    StandingBack(u8),
    /// It has picked this one, and writes that down.
    Recording(u8),
    /// It sets it up.
    SettingUp(u8),
    /// Its caller has it.
    Done(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    hosts: Vec<Host>,
    records: Vec<Record>,
    sandboxes: Vec<Sandbox>,
    /// Create calls that are not carried out yet.
    calls: Vec<u8>,
    attempts: u8,
    made: u8,
    cuts: u8,
    kills: u8,
    /// A sandbox that somebody had was destroyed.
    robbed: bool,
}

#[derive(Clone)]
pub(crate) struct Apart {
    pub(crate) hosts: usize,
    /// How often a host may be cut short.
    pub(crate) cuts: u8,
    pub(crate) kills: u8,
    /// Whether records outlive their host.
    pub(crate) durable: bool,
    pub(crate) broken: Option<Broken>,
}

/// A rule that is left out, to show that the check would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// What a create has made is recorded before it is compared.
    RecordedBeforeCompared,
    /// A contender compares before what was made earlier is listed.
    ComparedTooEarly,
    /// One that was settled late is not asked whether another host has set it up.
    MarkUnread,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Go(usize),
    Cut(usize),
    Kill(usize),
    CarryOut(usize),
    /// A sandbox appears in the listing.
    Show(usize),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Go(host) => write!(f, "host {host} goes on"),
            Self::Cut(host) => write!(f, "host {host} is cut short"),
            Self::Kill(host) => write!(f, "host {host} is killed"),
            Self::CarryOut(call) => write!(f, "create call {call} is carried out"),
            Self::Show(sandbox) => write!(f, "sandbox number {sandbox} is listed"),
        }
    }
}

impl State {
    fn get(&self, attempt: u8) -> Option<&Sandbox> {
        self.sandboxes.iter().find(|sandbox| sandbox.attempt == attempt)
    }

    /// The eldest one that the listing shows.
    fn eldest(&self) -> Option<Sandbox> {
        self.sandboxes.iter().filter(|sandbox| sandbox.is_listed).min_by_key(|sandbox| sandbox.made).copied()
    }

    /// Whether the listing shows all that was made up to this one: the provider's bound on its listing has passed.
    fn shows_all_until(&self, made: u8) -> bool {
        self.sandboxes.iter().all(|sandbox| sandbox.is_listed || sandbox.made > made)
    }

    fn destroy(&mut self, attempt: u8) {
        self.robbed |= self.hosts.contains(&Host::Done(attempt));
        self.sandboxes.retain(|sandbox| sandbox.attempt != attempt);
    }

    /// What a host does next; `None` where it waits.
    fn go(&self, model: &Apart, host: usize) -> Option<Self> {
        let mut next = self.clone();
        next.hosts[host] = match self.hosts[host] {
            Host::Idle => match self.records[host] {
                Record::None => Host::Discovering,
                Record::Open(attempt) => Host::Settling(attempt),
                Record::Ready(attempt) => match self.get(attempt) {
                    Some(sandbox) if sandbox.is_marked => Host::Done(attempt),
                    Some(_) => Host::SettingUp(attempt),
                    None => {
                        next.records[host] = Record::None;
                        Host::Idle
                    }
                },
            },
            Host::Discovering => match self.eldest() {
                // One that is younger than the bound may have an elder sibling that is not listed yet.
                Some(eldest) if !self.shows_all_until(eldest.made) => return None,
                Some(eldest) => Host::Recording(eldest.attempt),
                None => {
                    next.attempts += 1;
                    next.records[host] = Record::Open(next.attempts);
                    Host::Sending(next.attempts)
                }
            },
            Host::Sending(attempt) => {
                next.calls.push(attempt);
                Host::Waiting(attempt)
            }
            // The answer comes with what the call has made.
            Host::Waiting(attempt) => match self.get(attempt) {
                Some(_) if model.broken == Some(Broken::RecordedBeforeCompared) => {
                    next.records[host] = Record::Ready(attempt);
                    Host::Comparing { attempt, late: false }
                }
                Some(_) => Host::Comparing { attempt, late: false },
                None => return None,
            },
            Host::Settling(attempt) => match self.get(attempt) {
                Some(sandbox) if sandbox.is_listed => Host::Comparing { attempt, late: true },
                Some(_) => return None,
                // Its absence is proven only when no call of it can arrive any more.
                None if self.calls.contains(&attempt) => return None,
                None => {
                    next.records[host] = Record::None;
                    Host::Idle
                }
            },
            Host::Comparing { attempt, late } => match self.get(attempt) {
                Some(own)
                    if !self.shows_all_until(own.made) && model.broken != Some(Broken::ComparedTooEarly) =>
                {
                    return None;
                }
                Some(own) => {
                    let is_first = self.eldest().is_none_or(|eldest| own.made <= eldest.made);
                    let is_alone = self.sandboxes.iter().all(|other| other == own || !other.is_listed);
                    let is_taken = own.is_marked && model.broken != Some(Broken::MarkUnread);
                    if is_first && (!late || is_alone || is_taken) {
                        Host::Recording(attempt)
                    } else {
                        Host::StandingBack(attempt)
                    }
                }
                None => Host::StandingBack(attempt),
            },
            Host::StandingBack(attempt) => {
                // Between the look for the mark and this there is a moment that is not promised to be safe.
                let is_taken = self.get(attempt).is_some_and(|own| own.is_marked);
                if !is_taken || model.broken == Some(Broken::MarkUnread) {
                    next.destroy(attempt);
                }
                next.records[host] = Record::None;
                Host::Idle
            }
            Host::Recording(attempt) => {
                next.records[host] = Record::Ready(attempt);
                Host::SettingUp(attempt)
            }
            Host::SettingUp(attempt) => {
                match next.sandboxes.iter_mut().find(|sandbox| sandbox.attempt == attempt) {
                    Some(sandbox) => {
                        sandbox.is_marked = true;
                        Host::Done(attempt)
                    }
                    None => Host::Idle,
                }
            }
            Host::Done(_) => return None,
        };
        Some(next)
    }
}

impl Model for Apart {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            hosts: vec![Host::Idle; self.hosts],
            records: vec![Record::None; self.hosts],
            sandboxes: Vec::new(),
            calls: Vec::new(),
            attempts: 0,
            made: 0,
            cuts: self.cuts,
            kills: self.kills,
            robbed: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for host in 0..self.hosts {
            steps.extend([Step::Go(host), Step::Cut(host), Step::Kill(host)]);
        }
        steps.extend((0..state.calls.len()).map(Step::CarryOut));
        steps.extend((0..state.sandboxes.len()).map(Step::Show));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Go(host) => return state.go(self, host),
            Step::Cut(host) | Step::Kill(host) => {
                let is_cut = matches!(step, Step::Cut(_));
                match state.hosts[host] {
                    Host::Idle => return None,
                    // A caller that has its sandbox is not cut short any more.
                    Host::Done(_) if is_cut => return None,
                    _ => {}
                }
                let left = if is_cut { &mut next.cuts } else { &mut next.kills };
                *left = left.checked_sub(1)?;
                next.hosts[host] = Host::Idle;
                if !is_cut && !self.durable {
                    next.records[host] = Record::None;
                }
            }
            Step::CarryOut(call) => {
                let attempt = next.calls.remove(call);
                next.made += 1;
                let made = next.made;
                next.sandboxes.push(Sandbox { attempt, made, is_listed: false, is_marked: false });
            }
            Step::Show(sandbox) => {
                let shown = next.sandboxes.get_mut(sandbox).filter(|sandbox| !sandbox.is_listed)?;
                shown.is_listed = true;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("all callers of a key have one sandbox", |_, state: &State| {
                let mut had = state.hosts.iter().filter_map(|host| match host {
                    Host::Done(attempt) if state.get(*attempt).is_some() => Some(*attempt),
                    _ => None,
                });
                let first = had.next();
                had.all(|attempt| Some(attempt) == first)
            }),
            Property::always("nobody loses a sandbox to a contender", |_, state: &State| !state.robbed),
            Property::sometimes("two callers have one sandbox", |_, state: &State| {
                state.hosts.iter().filter(|host| matches!(host, Host::Done(_))).count() > 1
            }),
            Property::sometimes("a contender stands back", |_, state: &State| {
                state.hosts.iter().any(|host| matches!(host, Host::StandingBack(_)))
            }),
        ]
    }
}
