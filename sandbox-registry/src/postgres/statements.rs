//! What is asked of the database. Every change of a key locks the row of its lease first, so that changes have an order.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{Error, Key, Lease, Outcome, Owner, Record, RecordFilter};
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::error::Broken;
use super::pool::Connection;
use crate::json::{self, counter, signed};
use crate::pages::{Name, PAGE, Page};

type Result<T> = std::result::Result<T, Broken>;

/// The statements about the tables of one schema.
#[derive(Debug)]
pub(super) struct Statements {
    load: String,
    lock: String,
    read: String,
    write: String,
    remove: String,
    held: String,
    take: String,
    number: String,
    renew: String,
    release: String,
    page: String,
}

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        let key = "owner = $1 AND key = $2";
        // The clock is asked after the row is locked: `now()` would be the time at which the transaction began.
        let end = "clock_timestamp() + $4 * interval '1 second'";
        Self {
            load: format!("SELECT record::text FROM {schema}.records WHERE {key}"),
            lock: format!("SELECT fence FROM {schema}.leases WHERE {key} FOR UPDATE"),
            read: format!("SELECT version, record::text FROM {schema}.records WHERE {key}"),
            write: format!(
                "INSERT INTO {schema}.records
                 (owner, key, version, fence, provider, provider_id, phase, phase_since, record)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8), $9::json)
                 ON CONFLICT (owner, key) DO UPDATE SET version = $3, fence = $4, provider = $5, provider_id = $6,
                 phase = $7, phase_since = to_timestamp($8), record = $9::json"
            ),
            remove: format!("DELETE FROM {schema}.records WHERE {key}"),
            held: format!("SELECT 1 FROM {schema}.leases WHERE {key} AND ends > clock_timestamp()"),
            take: format!(
                "INSERT INTO {schema}.leases AS l (owner, key, fence, token, ends) VALUES ($1, $2, 0, $3, {end})
                 ON CONFLICT (owner, key) DO UPDATE SET token = $3, ends = {end}
                 WHERE l.ends <= clock_timestamp() OR l.token = $3 RETURNING 1"
            ),
            // Drawn while the row is locked: so numbers of one key grow in the order of its holders.
            number: format!(
                "UPDATE {schema}.leases SET fence = nextval('{schema}.fences') WHERE {key} RETURNING fence"
            ),
            renew: format!("UPDATE {schema}.leases SET ends = {end} WHERE {key} AND fence = $3"),
            release: format!("DELETE FROM {schema}.leases WHERE {key} AND fence = $3"),
            page: format!(
                "SELECT owner, key, record::text FROM {schema}.records
                 WHERE ($1::text IS NULL OR owner = $1) AND ($2::text IS NULL OR provider = $2)
                 AND ($3::text[] IS NULL OR phase = ANY ($3))
                 AND ($4::float8 IS NULL OR phase_since <= to_timestamp($4))
                 AND ($5::text IS NULL OR (owner, key) > ($5 COLLATE \"C\", $6 COLLATE \"C\"))
                 ORDER BY owner, key LIMIT {PAGE}"
            ),
        }
    }
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

fn name<'a>(owner: &'a &'a str, key: &'a &'a str) -> [Parameter<'a>; 2] {
    [(owner, Type::TEXT), (key, Type::TEXT)]
}

/// Seconds since 1970, within what the database's times can be.
pub(super) fn since_epoch(time: SystemTime) -> f64 {
    const YEAR_9999: f64 = 253_370_764_800.0;
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64().min(YEAR_9999)
}

pub(super) async fn load(
    sql: Arc<Statements>,
    mut connection: Connection,
    owner: Owner,
    key: Key,
) -> Result<Option<Record>> {
    let row = connection
        .client()?
        .query_typed_opt(&sql.load, &name(&owner.as_str(), &key.as_str()))
        .await
        .map_err(Broken::early)?;
    let Some(row) = row else { return Ok(None) };
    let text: &str = row.try_get(0).map_err(Broken::early)?;
    Ok(Some(json::decode(owner.as_str(), key.as_str(), text)?))
}

/// What a change of a record found, its key's lease locked until the transaction ends.
struct Found {
    /// The number of the last lease; `None` when it was given back.
    fence: Option<u64>,
    /// The stored version and record.
    stored: Option<(u64, Record)>,
}

async fn find(sql: &Statements, transaction: &Transaction<'_>, owner: &Owner, key: &Key) -> Result<Found> {
    let (owner, key) = (owner.as_str(), key.as_str());
    let fence = transaction.query_typed_opt(&sql.lock, &name(&owner, &key)).await.map_err(Broken::early)?;
    let fence = match fence {
        Some(row) => Some(counter(row.try_get(0).map_err(Broken::early)?)?),
        None => None,
    };
    let stored = transaction.query_typed_opt(&sql.read, &name(&owner, &key)).await.map_err(Broken::early)?;
    let stored = match stored {
        Some(row) => {
            let version = counter(row.try_get(0).map_err(Broken::early)?)?;
            let text: &str = row.try_get(1).map_err(Broken::early)?;
            Some((version, json::decode(owner, key, text)?))
        }
        None => None,
    };
    Ok(Found { fence, stored })
}

impl Found {
    /// Sees that no later lease was given and that the stored version is the record's. After a change whose answer was
    /// lost, a refusal does not say whether that change came before what is there now.
    fn check(&self, record: &Record, fence: u64, again: bool) -> Result<()> {
        let version = self.stored.as_ref().map(|(version, _)| *version);
        let refusal: Error = if self.fence != Some(fence) {
            Lease::lost(&record.owner, &record.key)
        } else if version.unwrap_or(0) != record.version {
            record.changed(version)
        } else {
            return Ok(());
        };
        Err(if again { refusal.with_outcome(Outcome::Unknown) } else { refusal }.into())
    }
}

pub(super) async fn store(
    sql: Arc<Statements>,
    mut connection: Connection,
    mut record: Record,
    fence: u64,
    again: bool,
) -> Result<Record> {
    let transaction = connection.client()?.transaction().await.map_err(Broken::early)?;
    let found = find(&sql, &transaction, &record.owner, &record.key).await?;
    let mut next = record.clone();
    next.version += 1;
    next.fence = fence;
    if again && found.stored.as_ref().is_some_and(|(_, stored)| *stored == next) {
        return Ok(next);
    }
    found.check(&record, fence, again)?;
    record = next;
    let text = json::encode(&record)?;
    let id = record.id.as_ref().map(|id| id.as_str());
    let parameters: [Parameter<'_>; 9] = [
        (&record.owner.as_str(), Type::TEXT),
        (&record.key.as_str(), Type::TEXT),
        (&signed(record.version), Type::INT8),
        (&signed(record.fence), Type::INT8),
        (&record.provider, Type::TEXT),
        (&id, Type::TEXT),
        (&record.phase.as_str(), Type::TEXT),
        (&since_epoch(record.phase_since), Type::FLOAT8),
        (&text, Type::TEXT),
    ];
    transaction.execute_typed(&sql.write, &parameters).await.map_err(Broken::early)?;
    transaction.commit().await.map_err(Broken::at_commit)?;
    Ok(record)
}

pub(super) async fn remove(
    sql: Arc<Statements>,
    mut connection: Connection,
    record: Record,
    fence: u64,
    again: bool,
) -> Result<()> {
    let transaction = connection.client()?.transaction().await.map_err(Broken::early)?;
    let found = find(&sql, &transaction, &record.owner, &record.key).await?;
    if found.stored.is_none() {
        if again {
            return Ok(());
        }
        found.check(&record, fence, again)?;
        return Err(record.changed(None).into());
    }
    found.check(&record, fence, again)?;
    let (owner, key) = (record.owner.as_str(), record.key.as_str());
    transaction.execute_typed(&sql.remove, &name(&owner, &key)).await.map_err(Broken::early)?;
    transaction.commit().await.map_err(Broken::at_commit)
}

/// Takes a lease for the call with this token; doing it again for the same token gives a new number.
pub(super) async fn take(
    sql: Arc<Statements>,
    mut connection: Connection,
    owner: &Owner,
    key: &Key,
    token: &str,
    ttl: Duration,
) -> Result<Option<u64>> {
    let (owner, key, ttl) = (owner.as_str(), key.as_str(), ttl.as_secs_f64());
    let client = connection.client()?;
    // Whoever waits for a lease looks often: without locking its row. One's own lost take is not in its own way.
    let parameters = [(&owner as _, Type::TEXT), (&key as _, Type::TEXT), (&token as _, Type::TEXT)];
    let held = format!("{} AND token != $3", sql.held);
    if client.query_typed_opt(&held, &parameters).await.map_err(Broken::early)?.is_some() {
        return Ok(None);
    }
    let transaction = client.transaction().await.map_err(Broken::early)?;
    let parameters: [Parameter<'_>; 4] =
        [(&owner, Type::TEXT), (&key, Type::TEXT), (&token, Type::TEXT), (&ttl, Type::FLOAT8)];
    if transaction.query_typed_opt(&sql.take, &parameters).await.map_err(Broken::early)?.is_none() {
        return Ok(None);
    }
    let row = transaction.query_typed_one(&sql.number, &name(&owner, &key)).await.map_err(Broken::early)?;
    let fence = counter(row.try_get(0).map_err(Broken::early)?)?;
    transaction.commit().await.map_err(Broken::at_commit)?;
    Ok(Some(fence))
}

pub(super) async fn renew(
    sql: Arc<Statements>,
    mut connection: Connection,
    owner: Owner,
    key: Key,
    fence: u64,
    ttl: Duration,
) -> Result<()> {
    let parameters: [Parameter<'_>; 4] = [
        (&owner.as_str(), Type::TEXT),
        (&key.as_str(), Type::TEXT),
        (&signed(fence), Type::INT8),
        (&ttl.as_secs_f64(), Type::FLOAT8),
    ];
    // One statement that may be done twice.
    let renewed = connection.client()?.execute_typed(&sql.renew, &parameters).await;
    if renewed.map_err(Broken::at_commit)? == 1 { Ok(()) } else { Err(Lease::lost(&owner, &key).into()) }
}

pub(super) async fn release(
    sql: Arc<Statements>,
    mut connection: Connection,
    owner: Owner,
    key: Key,
    fence: u64,
) -> Result<()> {
    let parameters: [Parameter<'_>; 3] =
        [(&owner.as_str(), Type::TEXT), (&key.as_str(), Type::TEXT), (&signed(fence), Type::INT8)];
    let released = connection.client()?.execute_typed(&sql.release, &parameters).await;
    released.map(drop).map_err(Broken::at_commit)
}

/// Reads one page. The conditions let through at least what the filter does; the filter itself has the last word.
pub(super) async fn page(
    sql: Arc<Statements>,
    mut connection: Connection,
    filter: RecordFilter,
    latest: Option<f64>,
    after: Option<Name>,
) -> Result<Page> {
    let owner = filter.owner.as_ref().map(|owner| owner.as_str());
    let phases: Option<Vec<&str>> = match filter.phases.is_empty() {
        true => None,
        false => Some(filter.phases.iter().map(|phase| phase.as_str()).collect()),
    };
    let (after_owner, after_key) = after.unzip();
    let parameters: [Parameter<'_>; 6] = [
        (&owner, Type::TEXT),
        (&filter.provider, Type::TEXT),
        (&phases, Type::TEXT_ARRAY),
        (&latest, Type::FLOAT8),
        (&after_owner, Type::TEXT),
        (&after_key, Type::TEXT),
    ];
    let read = connection.client()?.query_typed(&sql.page, &parameters).await.map_err(Broken::early)?;
    let mut rows = Vec::with_capacity(read.len());
    for row in read {
        let column = |index: usize| row.try_get::<_, String>(index).map_err(Broken::early);
        rows.push((column(0)?, column(1)?, column(2)?));
    }
    Ok(Page::of(rows, &filter)?)
}
