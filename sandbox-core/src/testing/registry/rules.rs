//! The rules of the store and of its leases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Move, RegistryFixture, lease, play, record};
use crate::{
    Attempt, ErrorKind, Lease, Mount, Network, Owner, Phase, Record, RecordFilter, Registry,
    RegistryExt as _, SandboxId, SandboxSpec,
};

/// Longer than any rule lasts.
const LONG: Duration = Duration::from_secs(600);
/// Over before anybody looks.
const SHORT: Duration = Duration::from_millis(1);

async fn load(registry: &dyn Registry, record: &Record) -> Option<Record> {
    registry.load(&record.owner, &record.key).await.unwrap()
}

async fn stored(registry: &dyn Registry, record: Record) -> Record {
    let lease = lease(registry, &record, LONG).await;
    registry.store(record, &lease).await.unwrap()
}

async fn refused(registry: &dyn Registry, record: &Record, held: &Lease) -> Option<&'static str> {
    let error = registry.store(record.clone(), held).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    error.reason()
}

/// A store counts the version up, notes the fence, and is read back as returned.
pub async fn a_stored_record_is_read_back_with_a_higher_version(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    assert_eq!(load(&*registry, &record).await, None);
    let lease = lease(&*registry, &record, LONG).await;
    let first = registry.store(record.clone(), &lease).await.unwrap();
    assert_eq!((first.version, first.fence), (1, lease.fence));
    assert_eq!(load(&*registry, &record).await, Some(first.clone()));
    let mut second = first;
    second.enter(Phase::Ready);
    let second = registry.store(second, &lease).await.unwrap();
    assert_eq!(second.version, 2);
    assert_eq!(load(&*fixture.reopened().await, &record).await, Some(second));
}

/// Nothing of a record is lost or rounded.
pub async fn every_field_of_a_record_survives(fixture: &dyn RegistryFixture) {
    let registry = fixture.registry();
    let mut full = record("größe ' \" ; -- %_\\", "ключ 🗝 {\"a\":1}");
    full.spec = SandboxSpec::new("base")
        .with_env("QUOTE", "it's \"x\" \\ \n")
        .with_metadata("nul", "a\u{0}b")
        .with_network(Network::Host)
        .with_lease(Duration::new(u32::MAX.into(), 999_999_999))
        .with_mount(Mount::host_dir_writable("/in", "/out"));
    full.id = Some(SandboxId::new("id'); DROP TABLE records; --"));
    full.setup_done = Some(u64::MAX);
    full.phase_since = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    full.abandon();
    full.attempt = Attempt::random().unwrap();
    full.abandon();
    let stored = stored(&*registry, full.clone()).await;
    assert_eq!(load(&*fixture.reopened().await, &full).await, Some(stored.clone()));
    full.version = stored.version;
    full.fence = stored.fence;
    assert_eq!(stored, full);
}

/// Compare-and-swap: a writer that read an older version stores nothing.
pub async fn a_store_over_a_changed_record_is_refused(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let lease = lease(&*registry, &record, LONG).await;
    let first = registry.store(record.clone(), &lease).await.unwrap();
    assert_eq!(refused(&*registry, &record, &lease).await, Some("record_changed"));
    let second = registry.store(first.clone(), &lease).await.unwrap();
    assert_eq!(refused(&*registry, &first, &lease).await, Some("record_changed"));
    assert_eq!(load(&*registry, &record).await, Some(second));
}

/// A version that was never stored, or was removed, is no version to store over.
pub async fn a_store_of_a_version_that_is_not_there_is_refused(fixture: &dyn RegistryFixture) {
    let (registry, mut record) = (fixture.registry(), record("o", "k"));
    let lease = lease(&*registry, &record, LONG).await;
    record.version = 3;
    assert_eq!(refused(&*registry, &record, &lease).await, Some("record_changed"));
    assert_eq!(load(&*registry, &record).await, None);
}

/// After a remove the key is as new.
pub async fn a_removed_record_is_gone_and_can_be_made_again(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let lease = lease(&*registry, &record, LONG).await;
    let first = registry.store(record.clone(), &lease).await.unwrap();
    registry.remove(&first, &lease).await.unwrap();
    assert_eq!(load(&*registry, &record).await, None);
    let error = registry.remove(&first, &lease).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some("record_changed")));
    assert_eq!(registry.store(record, &lease).await.unwrap().version, 1);
}

/// A remove is a compare-and-swap too.
pub async fn a_remove_of_a_changed_record_is_refused(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let lease = lease(&*registry, &record, LONG).await;
    let first = registry.store(record.clone(), &lease).await.unwrap();
    let second = registry.store(first.clone(), &lease).await.unwrap();
    let error = registry.remove(&first, &lease).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some("record_changed")));
    assert_eq!(load(&*registry, &record).await, Some(second));
}

/// One holder a key at a time, keys apart from each other, and a higher number for each holder.
pub async fn a_lease_has_one_holder_and_each_holder_a_higher_fence(fixture: &dyn RegistryFixture) {
    let (registry, here, there) = (fixture.registry(), record("o", "k"), record("o", "other"));
    let first = lease(&*registry, &here, LONG).await;
    for contender in [Arc::clone(&registry), fixture.reopened().await] {
        assert!(contender.try_lease(&here.owner, &here.key, LONG).await.unwrap().is_none());
    }
    let _other = lease(&*registry, &there, LONG).await;
    let fence = first.fence;
    drop(first);
    assert!(lease(&*registry, &here, LONG).await.fence > fence);
}

/// A key that was forgotten does not begin again at a number that an old holder may still carry.
pub async fn fencing_numbers_grow_over_a_remove(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let mut last = 0;
    for _ in 0..3 {
        let lease = lease(&*registry, &record, LONG).await;
        assert!(lease.fence > last);
        last = lease.fence;
        let stored = registry.store(record.clone(), &lease).await.unwrap();
        registry.remove(&stored, &lease).await.unwrap();
    }
}

/// Nor does a store that was closed and opened.
pub async fn fencing_numbers_grow_over_a_restart(fixture: &dyn RegistryFixture) {
    let record = record("o", "k");
    let mut last = lease(&*fixture.registry(), &record, LONG).await.fence;
    for _ in 0..3 {
        let registry = fixture.reopened().await;
        let lease = lease(&*registry, &record, LONG).await;
        assert!(lease.fence > last);
        last = lease.fence;
        let stored = registry.store(record.clone(), &lease).await.unwrap();
        registry.remove(&stored, &lease).await.unwrap();
    }
}

/// Nobody waits for the expiry of a lease that was given back.
pub async fn a_dropped_lease_is_free_at_once(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    for _ in 0..3 {
        // Bounded far below the expiry.
        drop(lease(&*registry, &record, LONG).await);
    }
    let other = fixture.reopened().await;
    drop(lease(&*other, &record, LONG).await);
}

/// A holder that hangs does not keep a key for ever.
pub async fn a_lapsed_lease_is_taken_over(fixture: &dyn RegistryFixture) {
    if !fixture.leases_expire() {
        return;
    }
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let hangs = lease(&*registry, &record, SHORT).await;
    let taken = lease(&*fixture.reopened().await, &record, LONG).await;
    assert!(taken.fence > hangs.fence);
}

/// Lapsed is not lost: only who was overtaken is refused.
pub async fn a_lapsed_lease_that_nobody_took_still_stores(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let mut held = lease(&*registry, &record, SHORT).await;
    let stored = registry.store(record, &held).await.unwrap();
    registry.renew(&stored.owner, &stored.key, &mut held, SHORT).await.unwrap();
    registry.remove(&stored, &held).await.unwrap();
}

/// A renewal moves the end of a lease, also of one that has lapsed.
pub async fn a_renewed_lease_is_not_taken_over(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let mut held = lease(&*registry, &record, SHORT).await;
    registry.renew(&record.owner, &record.key, &mut held, LONG).await.unwrap();
    for contender in [Arc::clone(&registry), fixture.reopened().await] {
        assert!(contender.try_lease(&record.owner, &record.key, LONG).await.unwrap().is_none());
    }
    if let Some(until) = held.valid_until {
        assert!(until > tokio::time::Instant::now());
    }
}

/// The fence: whoever was overtaken changes nothing any more.
pub async fn an_overtaken_holder_can_neither_store_nor_remove_nor_renew(fixture: &dyn RegistryFixture) {
    if !fixture.leases_expire() {
        return;
    }
    let (registry, record) = (fixture.registry(), record("o", "k"));
    let mut late = lease(&*registry, &record, SHORT).await;
    let first = registry.store(record, &late).await.unwrap();
    let taken = lease(&*fixture.reopened().await, &first, LONG).await;
    assert_eq!(refused(&*registry, &first, &late).await, Some("lease_lost"));
    let error = registry.remove(&first, &late).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some("lease_lost")));
    let error = registry.renew(&first.owner, &first.key, &mut late, LONG).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Stale, Some("lease_lost")));
    assert_eq!(load(&*registry, &first).await, Some(first.clone()));
    // Also when the one who took over has done its work and left.
    let second = registry.store(first, &taken).await.unwrap();
    drop(taken);
    drop(lease(&*registry, &second, LONG).await);
    assert_eq!(refused(&*registry, &second, &late).await, Some("lease_lost"));
}

/// A lease that comes back late is not the one that is held now.
pub async fn the_late_drop_of_an_overtaken_lease_takes_nothing(fixture: &dyn RegistryFixture) {
    if !fixture.leases_expire() {
        return;
    }
    let (registry, first) = (fixture.registry(), record("o", "k"));
    let late = lease(&*registry, &first, SHORT).await;
    let taken = lease(&*registry, &first, LONG).await;
    drop(late);
    // What was given back in the background is through when a later give-back is.
    let other = record("o", "other");
    drop(lease(&*registry, &other, LONG).await);
    drop(lease(&*registry, &other, LONG).await);
    assert!(registry.try_lease(&first.owner, &first.key, LONG).await.unwrap().is_none());
    registry.store(first, &taken).await.unwrap();
}

/// A caller that stops waiting for its lease leaves none behind.
pub async fn a_lease_whose_taker_left_is_given_back(fixture: &dyn RegistryFixture) {
    let (registry, record) = (fixture.registry(), record("o", "k"));
    for _ in 0..8 {
        let mut asked = registry.try_lease(&record.owner, &record.key, LONG);
        std::future::poll_fn(|cx| {
            let _ = asked.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
        drop(asked);
    }
    drop(lease(&*registry, &record, LONG).await);
}

/// What one opening stores another one reads, and their leases exclude each other.
pub async fn two_openings_see_one_store(fixture: &dyn RegistryFixture) {
    let (here, there, record) = (fixture.registry(), fixture.reopened().await, record("o", "k"));
    let held = lease(&*here, &record, LONG).await;
    assert!(there.try_lease(&record.owner, &record.key, LONG).await.unwrap().is_none());
    let first = here.store(record, &held).await.unwrap();
    drop(held);
    let held = lease(&*there, &first, LONG).await;
    assert_eq!(load(&*there, &first).await, Some(first.clone()));
    let second = there.store(first, &held).await.unwrap();
    assert_eq!(load(&*here, &second).await, Some(second.clone()));
    there.remove(&second, &held).await.unwrap();
    assert_eq!(load(&*here, &second).await, None);
}

/// Each contender reads, adds one entry and stores: a lost update would lose an entry.
async fn contend(registries: Vec<Arc<dyn Registry>>, rounds: usize) {
    let first = stored(&*registries[0], record("o", "k")).await;
    let contenders = registries.len();
    let tasks: Vec<_> = registries
        .into_iter()
        .map(|registry| {
            let first = first.clone();
            tokio::spawn(async move {
                let mut fences = Vec::new();
                for _ in 0..rounds {
                    let held = lease(&*registry, &first, LONG).await;
                    let mut record = load(&*registry, &first).await.unwrap();
                    record.abandon();
                    registry.store(record, &held).await.unwrap();
                    fences.push(held.fence);
                }
                fences
            })
        })
        .collect();
    let mut fences = BTreeSet::new();
    for task in tasks {
        fences.extend(task.await.unwrap());
    }
    assert_eq!(fences.len(), contenders * rounds);
}

/// Nobody's update is lost when many contend in one process.
pub async fn contenders_lose_no_update(fixture: &dyn RegistryFixture) {
    contend(vec![fixture.registry(); 8], 4).await;
    let record = load(&*fixture.registry(), &record("o", "k")).await.unwrap();
    assert_eq!((record.version, record.abandoned.len()), (33, 32));
}

/// Nor when they share nothing in memory.
pub async fn contenders_in_several_openings_lose_no_update(fixture: &dyn RegistryFixture) {
    let mut registries = Vec::new();
    for _ in 0..4 {
        registries.push(fixture.reopened().await);
    }
    contend(registries, 8).await;
    let record = load(&*fixture.registry(), &record("o", "k")).await.unwrap();
    assert_eq!((record.version, record.abandoned.len()), (33, 32));
}

/// Names that a file system or a database could take for one another.
const NAMES: [(&str, &str); 12] = [
    ("a", "z"),
    ("a", "k"),
    ("a", "K"),
    ("a", "k "),
    ("a", "k/../x"),
    ("a", "é"),
    ("a", "e\u{301}"),
    ("a/k", "#"),
    ("b", "k"),
    ("B", "k"),
    (".", ".."),
    ("%", "_"),
];

/// Case, blanks, dots, slashes and accents tell keys and owners apart.
pub async fn names_that_differ_in_one_byte_are_apart(fixture: &dyn RegistryFixture) {
    let registry = fixture.registry();
    for (index, (owner, key)) in NAMES.iter().enumerate() {
        let mut record = record(owner, key);
        record.id = Some(SandboxId::new(index.to_string()));
        let held = lease(&*registry, &record, LONG).await;
        registry.store(record, &held).await.unwrap();
    }
    for (index, (owner, key)) in NAMES.iter().enumerate() {
        let found = load(&*registry, &record(owner, key)).await.unwrap();
        assert_eq!(found.id, Some(SandboxId::new(index.to_string())));
    }
}

fn names(records: &[Record]) -> Vec<(&str, &str)> {
    records.iter().map(|record| (record.owner.as_str(), record.key.as_str())).collect()
}

/// Sorted by bytes, whole, and only the owner's where one is named.
pub async fn a_listing_is_sorted_and_filtered_by_owner(fixture: &dyn RegistryFixture) {
    let registry = fixture.registry();
    let long = "k/".repeat(128);
    let mut expected: Vec<_> = NAMES.into_iter().chain([("a", long.as_str())]).collect();
    for (owner, key) in &expected {
        stored(&*registry, record(owner, key)).await;
    }
    expected.sort_unstable();
    assert_eq!(names(&registry.list_all(RecordFilter::default()).await.unwrap()), expected);
    expected.retain(|(owner, _)| *owner == "a");
    let of_a = RecordFilter::default().with_owner(Owner::new("a").unwrap());
    assert_eq!(names(&registry.list_all(of_a).await.unwrap()), expected);
    let nobody = RecordFilter::default().with_owner(Owner::new("nobody").unwrap());
    assert!(registry.list_all(nobody).await.unwrap().is_empty());
}

/// What is shown is what [`RecordFilter::matches`] says.
pub async fn a_listing_is_filtered_by_provider_phase_and_age(fixture: &dyn RegistryFixture) {
    let registry = fixture.registry();
    let hour = Duration::from_secs(3600);
    for (key, provider, phase, age) in [
        ("a", "one", Phase::Ready, hour * 3),
        ("b", "one", Phase::Paused, hour),
        ("c", "two", Phase::Ready, hour * 3),
        ("d", "two", Phase::Creating, Duration::ZERO),
        ("e", "two", Phase::Destroying, hour * 3),
    ] {
        let mut record = record("o", key);
        record.provider = provider.to_owned();
        record.enter(phase);
        record.phase_since = SystemTime::now() - age;
        stored(&*registry, record).await;
    }
    let all = RecordFilter::default;
    for (filter, expected) in [
        (all(), "abcde"),
        (all().with_provider("one"), "ab"),
        (all().with_provider("One"), ""),
        (all().with_phase(Phase::Ready), "ac"),
        (all().with_phase(Phase::Ready).with_phase(Phase::Destroying), "ace"),
        (all().with_min_age(hour * 2), "ace"),
        (all().with_min_age(hour * 2).with_provider("two").with_phase(Phase::Ready), "c"),
        (all().with_min_age(Duration::MAX), ""),
    ] {
        let listed = registry.list_all(filter.clone()).await.unwrap();
        let keys: String = listed.iter().map(|record| record.key.as_str()).collect();
        assert_eq!(keys, expected, "{filter:?}");
    }
}

/// No page boundary loses or repeats a record, and a stream can be left in its middle.
pub async fn a_listing_of_many_pages_is_whole(fixture: &dyn RegistryFixture) {
    let registry = fixture.registry();
    let count = 300;
    for index in 0..count {
        stored(&*registry, record(if index % 2 == 0 { "o" } else { "p" }, &format!("k{index:03}"))).await;
    }
    let listed = registry.list_all(RecordFilter::default()).await.unwrap();
    assert_eq!(listed.len(), count);
    assert!(listed.windows(2).all(|pair| (&pair[0].owner, &pair[0].key) < (&pair[1].owner, &pair[1].key)));
    let mut left = registry.list(RecordFilter::default()).await.unwrap();
    assert_eq!(left.next().await.unwrap().unwrap(), listed[0]);
    drop(left);
    assert_eq!(registry.list_all(RecordFilter::default()).await.unwrap(), listed);
}

/// Random walks of several contenders, each step compared with what a single history allows.
#[expect(clippy::print_stdout, reason = "the seed is shown when the rule is broken")]
pub async fn any_interleaving_keeps_one_linear_history(fixture: &dyn RegistryFixture) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let moves: Vec<_> = (0..300).map(|_| Move::from_number(random.u32(..))).collect();
    play(&[fixture.registry(), fixture.reopened().await], fixture.leases_expire(), &moves).await;
}
