//! Checks the protocol of acquisition in every interleaving of its steps, and that the check would notice a broken rule.
#![allow(clippy::print_stdout, reason = "how much was searched is worth seeing")]

mod apart;
mod model;

use std::fmt::Debug;
use std::hash::Hash;

use apart::Apart;
use model::{Broken, Faults, Host, Protocol, State, Step};
use stateright::{Checker, HasDiscoveries, Model, Property};

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::start(self)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for host in 0..self.hosts {
            steps.extend([
                Step::Go(host),
                Step::Fail(host),
                Step::Refuse(host),
                Step::Destroy(host),
                Step::Pause(host),
                Step::LetGo(host),
                Step::Kill(host),
            ]);
        }
        // Hosts are alike: one that does it stands for all.
        steps.extend([Step::Expire, Step::DestroyByKey(0)]);
        for call in 0..state.calls.len() {
            steps.extend([Step::Deliver(call), Step::Drop(call)]);
        }
        steps.extend((0..state.endings.len()).map(Step::CarryOut));
        steps.extend((0..state.sandboxes.len()).map(Step::End));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        match step {
            Step::Go(host) => state.go(self, host),
            Step::Fail(host) => state.fail(self, host),
            Step::Refuse(host) => state.refuse(self, host),
            Step::Destroy(host) => state.begin_destroy(self, host),
            Step::DestroyByKey(host) => state.begin_ending(host),
            Step::Pause(host) => state.pause(self, host),
            Step::LetGo(host) => {
                matches!(state.hosts[host], Host::Done { .. }).then_some(())?;
                let mut next = state.clone();
                next.left.returns = state.left.returns.checked_sub(1)?;
                next.hosts[host] = Host::Idle;
                Some(next)
            }
            Step::Kill(host) => (state.hosts[host] != Host::Idle).then(|| state.kill(host))?,
            Step::Expire => {
                state.held.then_some(())?;
                // A holder that died is always taken over; a sleeping one as often as the bound says.
                let holder = |host: &Host| match host {
                    Host::Leased { fence }
                    | Host::Looking { fence, .. }
                    | Host::Sending { fence, .. }
                    | Host::Waiting { fence, .. }
                    | Host::Settling { fence, .. }
                    | Host::Answered { fence, .. }
                    | Host::LookingBack { fence, .. }
                    | Host::SettingUp { fence, .. }
                    | Host::Ending { fence, .. }
                    | Host::Destroying { fence, .. } => *fence == state.fence,
                    _ => false,
                };
                let mut next = state.clone();
                if state.hosts.iter().any(holder) {
                    next.left.expiries = state.left.expiries.checked_sub(1)?;
                }
                next.held = false;
                Some(next)
            }
            Step::Deliver(call) => Some(state.deliver(self, call)),
            Step::Drop(call) => {
                let mut next = state.clone();
                next.left.lost_answers = state.left.lost_answers.checked_sub(1)?;
                let lost = next.calls.remove(call);
                if let Some(host) = lost.host
                    && let Host::Waiting { fence, record, .. } = state.hosts[host].clone()
                {
                    next.hosts[host] = Host::Settling { fence, record };
                }
                Some(next)
            }
            Step::CarryOut(ending) => {
                let mut next = state.clone();
                let id = next.endings.remove(ending);
                next.sandboxes.retain(|sandbox| sandbox.id != id);
                Some(next)
            }
            Step::End(sandbox) => {
                let mut next = state.clone();
                next.left.ends = state.left.ends.checked_sub(1)?;
                next.sandboxes.remove(sandbox);
                Some(next)
            }
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("all callers of a key have one sandbox", |_, state: &State| {
                let mut had = state.hosts.iter().filter_map(|host| match host {
                    Host::Done { id, .. } if state.is_alive(*id) => Some(*id),
                    _ => None,
                });
                let first = had.next();
                had.all(|id| Some(id) == first)
            }),
            Property::always("a quiet key has at most one sandbox", |_, state: &State| {
                let kept = state.sandboxes.iter().filter(|sandbox| !state.is_abandoned(sandbox));
                !state.is_quiet() || kept.count() <= 1
            }),
            Property::always("no sandbox is left to nobody", |_, state: &State| {
                state.sandboxes.iter().all(|sandbox| state.is_managed(sandbox))
            }),
            Property::always("nobody loses a sandbox to a contender", |_, state: &State| !state.seen.robbed),
            Property::always("who was overtaken writes nothing", |_, state: &State| !state.seen.stale_write),
            Property::always("no setup is lost", |_, state: &State| !state.seen.lost_setup),
            Property::always("nothing that was destroyed before is handed out", |_, state: &State| {
                !state.seen.resurrected
            }),
            // Without these the rules above could hold because nothing happens.
            Property::sometimes("a caller is told that it is connected", |_, state: &State| {
                state.hosts.iter().any(|host| matches!(host, Host::Done { connected: true, .. }))
            }),
            Property::sometimes("a sandbox whose answer was lost is adopted", |_, state: &State| {
                state.seen.adopted && state.hosts.iter().any(|host| matches!(host, Host::Done { .. }))
            }),
            Property::sometimes("a creator is overtaken", |_, state: &State| state.seen.overtaken),
            Property::sometimes("a sandbox is replaced", |_, state: &State| {
                state.ids > 1 && state.hosts.iter().any(|host| matches!(host, Host::Done { .. }))
            }),
        ]
    }
}

const FAULTS: Faults = Faults {
    kills: 1,
    expiries: 1,
    lost_answers: 1,
    refusals: 0,
    ends: 1,
    destroys: 1,
    pauses: 0,
    returns: 1,
};

fn protocol(idempotent: bool) -> Protocol {
    Protocol { hosts: 2, idempotent, faults: FAULTS, broken: None }
}

/// A model that can be searched by several threads.
trait Checked:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
        Action: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    > + Send
    + Sync
    + 'static
{
}

impl Checked for Protocol {}
impl Checked for Apart {}

fn holds(protocol: impl Checked) {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}

/// Leaves a rule out, and names the property that the check then finds broken.
fn noticed(idempotent: bool, broken: Broken) -> Vec<&'static str> {
    broken_rules(Protocol { broken: Some(broken), ..protocol(idempotent) })
}

fn broken_rules(protocol: impl Checked) -> Vec<&'static str> {
    let names: Vec<_> = protocol
        .properties()
        .iter()
        .filter(|property| matches!(property.expectation, stateright::Expectation::Always))
        .map(|property| property.name)
        .collect();
    let finish = HasDiscoveries::AnyOf(names.iter().copied().collect());
    let checker = protocol.checker().threads(2).finish_when(finish).spawn_bfs().join();
    names.into_iter().filter(|name| checker.discovery(name).is_some()).collect()
}

#[test]
fn one_key_is_one_sandbox_where_the_provider_knows_attempts() {
    holds(protocol(true));
}

#[test]
fn one_key_is_one_sandbox_where_the_provider_makes_one_of_every_call() {
    holds(protocol(false));
}

/// Faults of a provider that refuses creates, in hosts that do little else.
const REFUSALS: Faults = Faults { refusals: 1, kills: 0, destroys: 0, ..FAULTS };

#[test]
fn one_key_is_one_sandbox_where_creates_are_refused() {
    for idempotent in [true, false] {
        holds(Protocol { faults: REFUSALS, ..protocol(idempotent) });
    }
}

/// Callers that pause what another one destroys, by hosts that die over it.
const PAUSES: Faults = Faults { pauses: 1, lost_answers: 0, ends: 0, ..FAULTS };

#[test]
fn one_key_is_one_sandbox_where_callers_pause() {
    let broken: [&str; 0] = [];
    for idempotent in [true, false] {
        assert_eq!(broken_rules(Protocol { faults: PAUSES, ..protocol(idempotent) }), broken);
    }
}

#[test]
fn three_hosts_agree_as_two_do() {
    let faults = Faults {
        kills: 1,
        expiries: 1,
        lost_answers: 1,
        refusals: 0,
        ends: 0,
        destroys: 0,
        pauses: 0,
        returns: 0,
    };
    for idempotent in [true, false] {
        let model = Protocol { hosts: 3, faults, ..protocol(idempotent) };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
        checker.assert_no_discovery("all callers of a key have one sandbox");
        checker.assert_no_discovery("a quiet key has at most one sandbox");
        checker.assert_no_discovery("no sandbox is left to nobody");
        checker.assert_no_discovery("nobody loses a sandbox to a contender");
        checker.assert_no_discovery("no setup is lost");
    }
}

#[test]
fn a_lost_answer_that_is_not_settled_is_noticed() {
    assert!(!noticed(false, Broken::RetryWithoutSettling).is_empty());
}

#[test]
fn a_registry_without_fences_is_noticed() {
    assert!(!noticed(true, Broken::WritesWithoutFence).is_empty());
}

#[test]
fn a_late_creator_that_destroys_blindly_is_noticed() {
    for idempotent in [true, false] {
        let found = noticed(idempotent, Broken::LateCreatorsDestroy);
        assert!(found.contains(&"nobody loses a sandbox to a contender"), "{found:?}");
    }
}

#[test]
fn a_setup_that_counts_too_early_is_noticed() {
    assert_eq!(noticed(true, Broken::SetupDoneTooEarly), ["no setup is lost"]);
}

#[test]
fn a_destroy_that_is_not_written_down_is_noticed() {
    assert!(!noticed(true, Broken::DestroyWithoutIntent).is_empty());
}

#[test]
fn an_error_that_is_read_as_gone_is_noticed() {
    assert!(!noticed(true, Broken::ErrorsReadAsGone).is_empty());
}

#[test]
fn a_refusal_that_counts_for_an_earlier_send_is_noticed() {
    let broken = Some(Broken::RefusalsForget);
    assert!(!broken_rules(Protocol { faults: REFUSALS, broken, ..protocol(true) }).is_empty());
}

#[test]
fn a_pause_that_undoes_a_destroy_is_noticed() {
    let broken = Some(Broken::PausesUndoDestroys);
    let found = broken_rules(Protocol { faults: PAUSES, broken, ..protocol(true) });
    assert!(found.contains(&"nothing that was destroyed before is handed out"), "{found:?}");
}

fn apart() -> Apart {
    Apart { hosts: 2, cuts: 2, kills: 1, durable: false, broken: None }
}

#[test]
fn hosts_without_a_common_registry_agree() {
    holds(apart());
}

#[test]
fn hosts_without_a_common_registry_agree_also_where_their_records_outlive_them() {
    holds(Apart { durable: true, ..apart() });
}

#[test]
fn three_hosts_without_a_common_registry_agree_as_two_do() {
    holds(Apart { hosts: 3, cuts: 1, kills: 0, ..apart() });
}

#[test]
fn what_is_recorded_before_it_is_compared_is_noticed() {
    for (cuts, kills, durable) in [(1, 0, false), (0, 1, true)] {
        let broken = Some(apart::Broken::RecordedBeforeCompared);
        let found = broken_rules(Apart { cuts, kills, durable, broken, ..apart() });
        assert!(found.contains(&"all callers of a key have one sandbox"), "{found:?}");
    }
}

#[test]
fn a_contender_that_compares_too_early_is_noticed() {
    let found = broken_rules(Apart { broken: Some(apart::Broken::ComparedTooEarly), ..apart() });
    assert!(!found.is_empty());
}

#[test]
fn a_late_contender_that_does_not_ask_whether_it_was_handed_out_is_noticed() {
    let found =
        broken_rules(Apart { hosts: 3, kills: 0, broken: Some(apart::Broken::MarkUnread), ..apart() });
    assert!(found.contains(&"nobody loses a sandbox to a contender"), "{found:?}");
}
