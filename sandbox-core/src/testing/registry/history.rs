//! A reference history: what each move of several contenders may answer when there is one order of all of them.

use std::sync::Arc;
use std::time::Duration;

use crate::{Lease, Phase, Record, Registry, Result};

/// How many contenders play, each with its own lease and its own copy of the record.
const CONTENDERS: usize = 3;
/// How many keys they play about.
const KEYS: usize = 2;
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(1);

/// One step of one contender about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    contender: usize,
    key: usize,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Asks for the lease.
    Take,
    /// Asks for a lease that ends at once, where leases end.
    TakeShort,
    /// Renews the lease.
    Renew,
    /// Gives the lease back.
    Drop,
    /// Reads the record.
    Load,
    /// Stores the copy that was read last.
    Store,
    /// Stores a first version.
    StoreNew,
    /// Removes the copy that was read last.
    Remove,
}

impl Move {
    /// Makes a move of any number, each about as often as the others.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        const STEPS: [Step; 8] = [
            Step::Take,
            Step::TakeShort,
            Step::Renew,
            Step::Drop,
            Step::Load,
            Step::Store,
            Step::StoreNew,
            Step::Remove,
        ];
        let number = usize::try_from(number % 0x1_0000).unwrap_or_default();
        Self {
            contender: number % CONTENDERS,
            key: number / CONTENDERS % KEYS,
            step: STEPS[number / (CONTENDERS * KEYS) % STEPS.len()],
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Free,
    Firmly,
    /// Its end has come or is about to: whoever asks long enough takes it over.
    Lapsing,
}

/// What is true of one key by the moves so far.
#[derive(Default)]
struct Truth {
    record: Option<Record>,
    held: Held,
    last_fence: u64,
}

/// What one contender has in hand for one key.
#[derive(Default)]
struct Hand {
    lease: Option<Lease>,
    copy: Option<Record>,
}

/// Plays the moves one after another, contenders taking the registries in turn, and compares every answer with the one
/// history that the moves allow. `leases_expire` is [`super::RegistryFixture::leases_expire`].
///
/// # Panics
/// When an answer does not fit; the move is named.
pub async fn play(registries: &[Arc<dyn Registry>], leases_expire: bool, moves: &[Move]) {
    let mut truths: [Truth; KEYS] = Default::default();
    let mut hands: [[Hand; KEYS]; CONTENDERS] = Default::default();
    for (number, next) in moves.iter().enumerate() {
        let registry = &registries[next.contender % registries.len()];
        let blank = super::record("o", &format!("k{}", next.key));
        let mut table = Table {
            registry: &**registry,
            truth: &mut truths[next.key],
            hand: &mut hands[next.contender][next.key],
            what: format!("move {number}: {next:?}"),
        };
        let ttl = if next.step == Step::TakeShort && leases_expire { SHORT } else { LONG };
        table.make(next.step, blank, ttl).await;
    }
}

/// What one move is about.
struct Table<'a> {
    registry: &'a dyn Registry,
    truth: &'a mut Truth,
    hand: &'a mut Hand,
    what: String,
}

impl Table<'_> {
    async fn make(&mut self, step: Step, blank: Record, ttl: Duration) {
        match step {
            Step::Take | Step::TakeShort if self.hand.lease.is_none() => self.take(&blank, ttl).await,
            Step::Take | Step::TakeShort => {}
            Step::Renew => self.renew(&blank).await,
            Step::Drop => {
                if self.hand.lease.take().is_some_and(|lease| lease.fence == self.truth.last_fence) {
                    self.truth.held = Held::Free;
                }
            }
            Step::Load => {
                let read = self.registry.load(&blank.owner, &blank.key).await.expect(&self.what);
                assert_eq!(read, self.truth.record, "{}", self.what);
                self.hand.copy = read;
            }
            Step::StoreNew => self.store(blank).await,
            Step::Store => {
                if let Some(copy) = self.hand.copy.clone() {
                    self.store(copy).await;
                }
            }
            Step::Remove => {
                let (Some(lease), Some(copy)) = (&self.hand.lease, &self.hand.copy) else { return };
                let answer = self.registry.remove(copy, lease).await;
                if self.allowed(copy, lease, &answer) {
                    self.truth.record = None;
                }
            }
        }
    }

    async fn take(&mut self, blank: &Record, ttl: Duration) {
        if self.truth.held == Held::Firmly {
            let answer = self.registry.try_lease(&blank.owner, &blank.key, ttl).await.expect(&self.what);
            assert!(answer.is_none(), "{}: it is held", self.what);
            return;
        }
        // What lapses has to lapse first, and what was dropped is given back in the background.
        let lease = super::lease(self.registry, blank, ttl).await;
        assert!(lease.fence > self.truth.last_fence, "{}: no higher fence", self.what);
        self.truth.last_fence = lease.fence;
        self.truth.held = if ttl == SHORT { Held::Lapsing } else { Held::Firmly };
        self.hand.lease = Some(lease);
    }

    async fn renew(&mut self, blank: &Record) {
        let Some(lease) = &mut self.hand.lease else { return };
        let answer = self.registry.renew(&blank.owner, &blank.key, lease, LONG).await;
        if lease.fence == self.truth.last_fence {
            answer.expect(&self.what);
            self.truth.held = Held::Firmly;
        } else {
            assert_eq!(answer.expect_err(&self.what).reason(), Some("lease_lost"), "{}", self.what);
        }
    }

    async fn store(&mut self, mut record: Record) {
        let Some(lease) = &self.hand.lease else { return };
        record.enter(Phase::Ready);
        let answer = self.registry.store(record.clone(), lease).await;
        if self.allowed(&record, lease, &answer) {
            record.version += 1;
            record.fence = lease.fence;
            assert_eq!(answer.expect(&self.what), record, "{}", self.what);
            self.truth.record = Some(record.clone());
            self.hand.copy = Some(record);
        }
    }

    /// Tells whether a change is allowed, and sees that the answer says so too.
    fn allowed<T: std::fmt::Debug>(&self, record: &Record, lease: &Lease, answer: &Result<T>) -> bool {
        let stored = self.truth.record.as_ref().map_or(0, |record| record.version);
        let absent = self.truth.record.is_none();
        let expected = if lease.fence != self.truth.last_fence {
            Some("lease_lost")
        } else if stored != record.version || absent && record.version != 0 {
            Some("record_changed")
        } else {
            None
        };
        match answer {
            Ok(_) => assert_eq!(expected, None, "{}", self.what),
            Err(error) => assert_eq!(error.reason(), expected, "{}: {error}", self.what),
        }
        expected.is_none()
    }
}
