//! The protocol of acquisition as states and steps: hosts, one key's record and lease, a provider whose answers get lost.
//!
//! One step is one thing that others can see: a read or a write of the record, a call that the provider carries out, an
//! answer that arrives. Between any two steps every other host may take any number of its own, be killed, or sleep for
//! so long that its lease passes to somebody else.

use std::fmt;

/// The record of the one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) version: u8,
    pub(crate) phase: Phase,
    pub(crate) attempt: u8,
    pub(crate) id: Option<u8>,
    pub(crate) setup_done: bool,
    pub(crate) abandoned: Vec<u8>,
}

impl Record {
    /// What is left of a key without a sandbox.
    fn tombstone(attempt: u8) -> Self {
        Self {
            version: 0,
            phase: Phase::Destroying,
            attempt,
            id: None,
            setup_done: false,
            abandoned: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Creating,
    Ready,
    Destroying,
}

/// A sandbox that exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sandbox {
    pub(crate) id: u8,
    pub(crate) attempt: u8,
    /// The mark inside that the setup completed.
    pub(crate) marked: bool,
}

/// A create call that the provider has not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) attempt: u8,
    /// Who still waits for the answer.
    pub(crate) host: Option<usize>,
}

/// What one host is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    Idle,
    /// It has the lease, and reads the record next.
    Leased {
        fence: u8,
    },
    /// It read that there is a sandbox, and asks the provider for it next.
    Looking {
        fence: u8,
        record: Record,
    },
    /// Its intent is stored, and it sends the create next; `again` where the attempt was sent before, by whomever.
    Sending {
        fence: u8,
        record: Record,
        again: bool,
    },
    /// It waits for the answer of a create.
    Waiting {
        fence: u8,
        record: Record,
        again: bool,
    },
    /// It gave the answer up, and looks for the sandbox of its attempt.
    Settling {
        fence: u8,
        record: Record,
    },
    /// It has a sandbox that the record does not name yet.
    Answered {
        fence: u8,
        record: Record,
        id: u8,
    },
    /// Its write was refused: it takes the lease to look whose the sandbox is now.
    Overtaken {
        attempt: u8,
        id: u8,
    },
    /// It looks, and gives the attempt up if nobody has taken the sandbox over.
    LookingBack {
        fence: u8,
        attempt: u8,
        id: u8,
    },
    /// It destroys the sandbox of an attempt that was given up.
    Clearing {
        id: u8,
    },
    /// It runs the start hook; `marked` once the mark is inside.
    SettingUp {
        fence: u8,
        record: Record,
        marked: bool,
    },
    /// A destroy is written down; it sends it, and then waits for the answer.
    Destroying {
        fence: u8,
        record: Record,
        sent: bool,
    },
    /// It destroys by key what an open create may have made.
    Ending {
        fence: u8,
        record: Record,
    },
    /// Its caller has the sandbox.
    Done {
        id: u8,
        connected: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) record: Option<Record>,
    /// The highest fencing number given so far.
    pub(crate) fence: u8,
    /// Whether the lease of that number is still held.
    pub(crate) held: bool,
    pub(crate) sandboxes: Vec<Sandbox>,
    pub(crate) calls: Vec<Call>,
    /// Destroys that the provider has not carried out yet.
    pub(crate) endings: Vec<u8>,
    /// What became of each attempt, as a provider with idempotency keys remembers it, also after the end of the sandbox.
    pub(crate) made: Vec<(u8, u8)>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) attempts: u8,
    pub(crate) ids: u8,
    pub(crate) left: Faults,
    pub(crate) seen: Seen,
}

/// How many faults may still happen; bounds the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) kills: u8,
    pub(crate) expiries: u8,
    pub(crate) lost_answers: u8,
    /// Creates that the provider refuses.
    pub(crate) refusals: u8,
    /// Sandboxes that end by themselves.
    pub(crate) ends: u8,
    /// Destroys that a caller asks for.
    pub(crate) destroys: u8,
    /// Pauses that a caller asks for.
    pub(crate) pauses: u8,
    /// Returns of a caller that has let go.
    pub(crate) returns: u8,
}

/// What must never happen, noted where it would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seen {
    /// A sandbox that somebody had was destroyed without having been asked for.
    pub(crate) robbed: bool,
    /// A host that was overtaken changed the record.
    pub(crate) stale_write: bool,
    /// A caller was told `connected` though the setup had not completed.
    pub(crate) lost_setup: bool,
    /// A caller was given a sandbox whose destroy had been sent before.
    pub(crate) resurrected: bool,
    pub(crate) adopted: bool,
    pub(crate) overtaken: bool,
}

/// A rule of the protocol that is left out, to show that the check would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A lost answer leads to a new attempt at once.
    RetryWithoutSettling,
    /// The registry takes writes of holders that were overtaken.
    WritesWithoutFence,
    /// A late creator destroys its sandbox without looking whose it is by now.
    LateCreatorsDestroy,
    /// The setup counts as done before the hook has run.
    SetupDoneTooEarly,
    /// A destroy is sent without having been written down.
    DestroyWithoutIntent,
    /// Any error of a look counts as gone.
    ErrorsReadAsGone,
    /// A pause takes the record of a sandbox whose destroy was written down for one at work.
    PausesUndoDestroys,
    /// A refused send counts for every earlier send of its attempt.
    RefusalsForget,
}

#[derive(Clone)]
pub(crate) struct Protocol {
    pub(crate) hosts: usize,
    /// The provider makes one sandbox of one attempt, however often it is sent.
    pub(crate) idempotent: bool,
    pub(crate) faults: Faults,
    pub(crate) broken: Option<Broken>,
}

/// What may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A host goes on with what it is about to do.
    Go(usize),
    /// Its call is answered with an error that says nothing about the sandbox, or its answer never comes.
    Fail(usize),
    /// Its create is refused.
    Refuse(usize),
    /// Its caller, who has the sandbox, destroys it.
    Destroy(usize),
    /// A caller that has no sandbox destroys whatever an open create of the key may have made.
    DestroyByKey(usize),
    /// Its caller pauses what it has, and wakes it.
    Pause(usize),
    /// Its caller lets go.
    LetGo(usize),
    Kill(usize),
    /// The lease passes its expiry while the holder sleeps.
    Expire,
    /// The provider carries a create out.
    Deliver(usize),
    /// A create never reaches the provider.
    Drop(usize),
    /// The provider carries a destroy out.
    CarryOut(usize),
    /// A sandbox ends by itself.
    End(usize),
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Go(host) => write!(f, "host {host} goes on"),
            Self::Fail(host) => write!(f, "the call of host {host} fails or is not answered"),
            Self::Refuse(host) => write!(f, "the create of host {host} is refused"),
            Self::Destroy(host) => write!(f, "the caller of host {host} destroys"),
            Self::DestroyByKey(host) => write!(f, "host {host} destroys by key"),
            Self::Pause(host) => write!(f, "the caller of host {host} pauses"),
            Self::LetGo(host) => write!(f, "the caller of host {host} lets go"),
            Self::Kill(host) => write!(f, "host {host} is killed"),
            Self::Expire => f.write_str("the lease expires"),
            Self::Deliver(call) => write!(f, "create call {call} is carried out"),
            Self::Drop(call) => write!(f, "create call {call} gets lost"),
            Self::CarryOut(ending) => write!(f, "destroy call {ending} is carried out"),
            Self::End(sandbox) => write!(f, "sandbox number {sandbox} ends by itself"),
        }
    }
}

impl State {
    pub(crate) fn start(protocol: &Protocol) -> Self {
        Self {
            record: None,
            fence: 0,
            held: false,
            sandboxes: Vec::new(),
            calls: Vec::new(),
            endings: Vec::new(),
            made: Vec::new(),
            hosts: vec![Host::Idle; protocol.hosts],
            attempts: 0,
            ids: 0,
            left: protocol.faults,
            seen: Seen::default(),
        }
    }

    pub(crate) fn is_alive(&self, id: u8) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.id == id)
    }

    /// Nobody is in the middle of anything.
    pub(crate) fn is_quiet(&self) -> bool {
        self.calls.is_empty()
            && self.endings.is_empty()
            && !self.held
            && self.hosts.iter().all(|host| matches!(host, Host::Idle | Host::Done { .. }))
    }

    /// It was given up before anybody was handed it; whoever sees it destroys it.
    pub(crate) fn is_abandoned(&self, sandbox: &Sandbox) -> bool {
        self.record.as_ref().is_some_and(|record| record.abandoned.contains(&sandbox.attempt))
    }

    /// Somebody will see to a sandbox: the record, or a host that has it in hand.
    pub(crate) fn is_managed(&self, sandbox: &Sandbox) -> bool {
        self.is_abandoned(sandbox)
            || self.record.as_ref().is_some_and(|record| record.attempt == sandbox.attempt)
            || self.endings.contains(&sandbox.id)
            || self.hosts.iter().any(|host| match host {
                Host::Answered { id, .. }
                | Host::Overtaken { id, .. }
                | Host::LookingBack { id, .. }
                | Host::Clearing { id }
                | Host::Done { id, .. } => *id == sandbox.id,
                Host::Destroying { record, .. } | Host::SettingUp { record, .. } => {
                    record.id == Some(sandbox.id)
                }
                Host::Waiting { record, .. } | Host::Settling { record, .. } => {
                    record.attempt == sandbox.attempt
                }
                _ => false,
            })
    }

    fn by_attempt(&self, attempt: u8) -> Option<u8> {
        self.sandboxes.iter().find(|sandbox| sandbox.attempt == attempt).map(|sandbox| sandbox.id)
    }

    /// Compare-and-swap under a fencing number; `None` removes the record.
    fn store(&mut self, protocol: &Protocol, read: u8, fence: u8, record: Option<Record>) -> bool {
        let stored = self.record.as_ref().map_or(0, |record| record.version);
        let in_order = stored == read && fence == self.fence;
        if !in_order && protocol.broken != Some(Broken::WritesWithoutFence) {
            return false;
        }
        self.seen.stale_write |= !in_order;
        self.record = record.map(|mut record| {
            record.version = stored + 1;
            record
        });
        true
    }

    /// Gives the lease back, if it is still one's own.
    fn give_back(&mut self, fence: u8) {
        self.held &= fence != self.fence;
    }

    fn destroy(&mut self, id: u8) {
        self.sandboxes.retain(|sandbox| sandbox.id != id);
    }

    /// The sandbox is handed to the caller.
    fn hand_out(&mut self, id: u8, connected: bool) -> Host {
        // One who read the record before the destroy was written down is told by the first call.
        let named = |record: &Record| record.phase == Phase::Ready && record.id == Some(id);
        self.seen.resurrected |= self.endings.contains(&id) && self.record.as_ref().is_some_and(named);
        let marked = self.sandboxes.iter().any(|sandbox| sandbox.id == id && sandbox.marked);
        self.seen.lost_setup |= self.is_alive(id) && !marked;
        Host::Done { id, connected }
    }

    /// Stores an intent under a new attempt, in the place of what was read.
    fn intend(&mut self, protocol: &Protocol, fence: u8, read: Option<Record>) -> Host {
        let version = read.as_ref().map_or(0, |record| record.version);
        let abandoned = read.map(|record| record.abandoned).unwrap_or_default();
        self.sandboxes.retain(|sandbox| !abandoned.contains(&sandbox.attempt));
        self.attempts += 1;
        let attempt = self.attempts;
        let record =
            Record { version, phase: Phase::Creating, attempt, id: None, setup_done: false, abandoned };
        if !self.store(protocol, version, fence, Some(record)) {
            return Host::Idle;
        }
        match self.record.clone() {
            Some(record) => Host::Sending { fence, record, again: false },
            None => Host::Idle,
        }
    }

    /// What a host does next; `None` where it waits.
    pub(crate) fn go(&self, protocol: &Protocol, host: usize) -> Option<Self> {
        let mut next = self.clone();
        next.hosts[host] = match self.hosts[host].clone() {
            Host::Idle => match &self.record {
                // The everyday way needs no lease.
                Some(record) if record.phase == Phase::Ready && record.setup_done => match record.id {
                    Some(id) if self.is_alive(id) => next.hand_out(id, true),
                    _ => next.take_lease(self.held)?,
                },
                _ => next.take_lease(self.held)?,
            },
            Host::Leased { fence } => match self.record.clone() {
                None => next.intend(protocol, fence, None),
                Some(record) if record.phase == Phase::Destroying && record.id.is_none() => {
                    next.intend(protocol, fence, Some(record))
                }
                Some(record) if record.phase == Phase::Destroying => {
                    Host::Destroying { fence, record, sent: false }
                }
                Some(record) if record.phase == Phase::Creating => Host::Settling { fence, record },
                Some(record) => Host::Looking { fence, record },
            },
            Host::Looking { fence, record } => match record.id {
                Some(id) if self.is_alive(id) && record.setup_done => {
                    next.give_back(fence);
                    next.hand_out(id, true)
                }
                Some(id) if self.is_alive(id) => {
                    let marked = self.sandboxes.iter().any(|sandbox| sandbox.id == id && sandbox.marked);
                    Host::SettingUp { fence, record, marked }
                }
                _ => next.intend(protocol, fence, Some(record)),
            },
            Host::Sending { fence, record, again } => {
                next.calls.push(Call { attempt: record.attempt, host: Some(host) });
                Host::Waiting { fence, record, again }
            }
            Host::Waiting { .. } => return None,
            Host::Settling { fence, record } => next.settle(protocol, fence, record)?,
            Host::Answered { fence, record, id } => {
                let mut named = record.clone();
                (named.id, named.phase) = (Some(id), Phase::Ready);
                named.setup_done = protocol.broken == Some(Broken::SetupDoneTooEarly);
                if next.store(protocol, record.version, fence, Some(named)) {
                    match next.record.clone() {
                        Some(record) => Host::SettingUp { fence, record, marked: false },
                        None => Host::Idle,
                    }
                } else {
                    next.seen.overtaken = true;
                    Host::Overtaken { attempt: record.attempt, id }
                }
            }
            Host::Overtaken { id, .. } if protocol.broken == Some(Broken::LateCreatorsDestroy) => {
                Host::Clearing { id }
            }
            Host::Overtaken { attempt, id } => match next.take_lease(self.held)? {
                Host::Leased { fence } => Host::LookingBack { fence, attempt, id },
                _ => return None,
            },
            Host::LookingBack { fence, attempt, id } => {
                let known = self.record.as_ref().is_some_and(|record| record.abandoned.contains(&attempt));
                let taken_over = self.record.as_ref().is_some_and(|record| record.attempt == attempt);
                let mut given_up = self.record.clone().unwrap_or_else(|| Record::tombstone(attempt));
                let version = self.record.as_ref().map_or(0, |record| record.version);
                given_up.abandoned.push(attempt);
                let cleared = known || (!taken_over && next.store(protocol, version, fence, Some(given_up)));
                next.give_back(fence);
                if cleared { Host::Clearing { id } } else { Host::Idle }
            }
            Host::Clearing { id } => {
                let has = |host: &Host| match host {
                    Host::Done { id: had, .. } => *had == id,
                    Host::SettingUp { record, .. } => record.id == Some(id),
                    _ => false,
                };
                next.seen.robbed |= self.is_alive(id) && self.hosts.iter().any(has);
                next.destroy(id);
                Host::Idle
            }
            Host::SettingUp { fence, record, marked: false } => {
                for sandbox in &mut next.sandboxes {
                    sandbox.marked |= Some(sandbox.id) == record.id;
                }
                Host::SettingUp { fence, record, marked: true }
            }
            Host::SettingUp { fence, record, marked: true } => {
                let mut done = record.clone();
                done.setup_done = true;
                let stored = next.store(protocol, record.version, fence, Some(done));
                next.give_back(fence);
                match record.id {
                    Some(id) if stored => next.hand_out(id, false),
                    _ => Host::Idle,
                }
            }
            Host::Destroying { fence, record, sent: false } => {
                next.endings.extend(record.id);
                Host::Destroying { fence, record, sent: true }
            }
            Host::Destroying { record, .. } if record.id.is_some_and(|id| self.endings.contains(&id)) => {
                return None;
            }
            Host::Destroying { fence, record, .. } => {
                // What was given up stays known: its sandbox may still come.
                let mut tombstone = record.clone();
                (tombstone.id, tombstone.phase) = (None, Phase::Destroying);
                let left = (!tombstone.abandoned.is_empty()).then_some(tombstone);
                next.store(protocol, record.version, fence, left);
                next.give_back(fence);
                Host::Idle
            }
            Host::Ending { fence, record } => {
                let (mut ended, id) = (record.clone(), self.by_attempt(record.attempt));
                let is_open = self.calls.iter().any(|call| call.attempt == record.attempt);
                if id.is_none() && is_open && !protocol.idempotent {
                    return None;
                }
                (ended.id, ended.phase) = (id, Phase::Destroying);
                if id.is_none() {
                    ended.abandoned.push(record.attempt);
                }
                let stored = next.store(protocol, record.version, fence, Some(ended));
                match next.record.clone() {
                    Some(record) if stored && id.is_some() => Host::Destroying { fence, record, sent: false },
                    _ => {
                        next.give_back(fence);
                        Host::Idle
                    }
                }
            }
            Host::Done { .. } => return None,
        };
        Some(next)
    }

    fn take_lease(&mut self, held: bool) -> Option<Host> {
        if held {
            return None;
        }
        self.fence += 1;
        self.held = true;
        Some(Host::Leased { fence: self.fence })
    }

    /// Looks for the sandbox of an attempt. Absence is proven only when no call of it can arrive any more, which is what
    /// the provider's bound on a create stands for; until then the host waits.
    fn settle(&mut self, protocol: &Protocol, fence: u8, record: Record) -> Option<Host> {
        if let Some(id) = self.by_attempt(record.attempt) {
            self.seen.adopted = true;
            return Some(Host::Answered { fence, record, id });
        }
        if protocol.broken == Some(Broken::RetryWithoutSettling) {
            return Some(self.intend(protocol, fence, Some(record)));
        }
        if protocol.idempotent {
            // Written down again, so that who was overtaken sends nothing.
            if !self.store(protocol, record.version, fence, Some(record)) {
                return Some(Host::Idle);
            }
            return self.record.clone().map(|record| Host::Sending { fence, record, again: true });
        }
        if self.calls.iter().any(|call| call.attempt == record.attempt) {
            return None;
        }
        let mut given_up = record;
        given_up.abandoned.push(given_up.attempt);
        Some(self.intend(protocol, fence, Some(given_up)))
    }

    /// The call of a host fails without saying anything about the sandbox.
    pub(crate) fn fail(&self, protocol: &Protocol, host: usize) -> Option<Self> {
        let mut next = self.clone();
        next.left.lost_answers = self.left.lost_answers.checked_sub(1)?;
        next.hosts[host] = match self.hosts[host].clone() {
            Host::Waiting { fence, record, .. } => {
                for call in &mut next.calls {
                    if call.host == Some(host) {
                        call.host = None;
                    }
                }
                Host::Settling { fence, record }
            }
            Host::Looking { fence, record } if protocol.broken == Some(Broken::ErrorsReadAsGone) => {
                next.intend(protocol, fence, Some(record))
            }
            Host::Looking { fence, .. } => {
                next.give_back(fence);
                Host::Idle
            }
            _ => return None,
        };
        Some(next)
    }

    /// The provider refuses the create that a host waits for: this call makes nothing.
    pub(crate) fn refuse(&self, protocol: &Protocol, host: usize) -> Option<Self> {
        let Host::Waiting { fence, record, again } = self.hosts[host].clone() else { return None };
        let mut next = self.clone();
        next.left.refusals = self.left.refusals.checked_sub(1)?;
        next.calls.retain(|call| call.host != Some(host));
        // An earlier send may still make a sandbox: its attempt stays open.
        if !again || protocol.broken == Some(Broken::RefusalsForget) {
            let mut tombstone = record.clone();
            (tombstone.id, tombstone.phase) = (None, Phase::Destroying);
            let left = (!tombstone.abandoned.is_empty()).then_some(tombstone);
            next.store(protocol, record.version, fence, left);
        }
        next.give_back(fence);
        next.hosts[host] = Host::Idle;
        Some(next)
    }

    /// Carries a create out; its answer arrives with it, if anybody still waits.
    pub(crate) fn deliver(&self, protocol: &Protocol, call: usize) -> Self {
        let mut next = self.clone();
        let call = next.calls.remove(call);
        let known = self.made.iter().find(|(attempt, _)| protocol.idempotent && *attempt == call.attempt);
        let id = known.map_or(self.ids + 1, |(_, id)| *id);
        if known.is_none() {
            next.ids = id;
            next.sandboxes.push(Sandbox { id, attempt: call.attempt, marked: false });
            next.made.push((call.attempt, id));
        }
        if let Some(host) = call.host
            && let Host::Waiting { fence, record, .. } = self.hosts[host].clone()
        {
            next.hosts[host] = Host::Answered { fence, record, id };
        }
        next
    }

    /// The caller of a host destroys what it has; needs the lease.
    pub(crate) fn begin_destroy(&self, protocol: &Protocol, host: usize) -> Option<Self> {
        let Host::Done { id, .. } = self.hosts[host] else { return None };
        if self.held || self.record.as_ref().is_none_or(|record| record.id != Some(id)) {
            return None;
        }
        let mut next = self.clone();
        next.left.destroys = self.left.destroys.checked_sub(1)?;
        next.take_lease(false)?;
        let (fence, record) = (next.fence, self.record.clone()?);
        let mut intent = record.clone();
        intent.phase = Phase::Destroying;
        if protocol.broken == Some(Broken::DestroyWithoutIntent) {
            next.hosts[host] = Host::Destroying { fence, record, sent: false };
            return Some(next);
        }
        next.store(protocol, record.version, fence, Some(intent));
        next.hosts[host] = Host::Destroying { fence, record: next.record.clone()?, sent: false };
        Some(next)
    }

    /// The caller of a host pauses what it has, and wakes it; needs the lease.
    pub(crate) fn pause(&self, protocol: &Protocol, host: usize) -> Option<Self> {
        let Host::Done { id, .. } = self.hosts[host] else { return None };
        let record = self.record.clone().filter(|record| record.id == Some(id) && !self.held)?;
        let mut next = self.clone();
        next.left.pauses = self.left.pauses.checked_sub(1)?;
        if record.phase == Phase::Destroying && protocol.broken != Some(Broken::PausesUndoDestroys) {
            // It is told that it is gone.
            next.hosts[host] = Host::Idle;
            return Some(next);
        }
        next.fence += 1;
        let (version, fence) = (record.version, next.fence);
        next.store(protocol, version, fence, Some(Record { phase: Phase::Ready, ..record }));
        Some(next)
    }

    /// A host that has no sandbox begins to destroy what an open create may have made; needs the lease.
    pub(crate) fn begin_ending(&self, host: usize) -> Option<Self> {
        let record = self.record.clone().filter(|record| record.phase == Phase::Creating)?;
        if self.hosts[host] != Host::Idle {
            return None;
        }
        let mut next = self.clone();
        next.left.destroys = self.left.destroys.checked_sub(1)?;
        next.take_lease(self.held)?;
        next.hosts[host] = Host::Ending { fence: next.fence, record };
        Some(next)
    }

    pub(crate) fn kill(&self, host: usize) -> Option<Self> {
        let mut next = self.clone();
        next.left.kills = self.left.kills.checked_sub(1)?;
        next.hosts[host] = Host::Idle;
        for call in &mut next.calls {
            if call.host == Some(host) {
                call.host = None;
            }
        }
        Some(next)
    }
}
