//! Leases: one row a key, a number for each holder, an end on the boot's clock, and a holder whose death is seen.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use sandhold_core::{Key, Lease, Owner, Result};
use tokio::time::Instant;

use super::database::Database;
use super::error::lift;
use crate::json::{counter, signed};

/// Gives the lease back when it is dropped.
#[derive(Debug)]
struct Hold {
    database: Arc<Database>,
    owner: Owner,
    key: Key,
    fence: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (owner, key, fence) = (self.owner.clone(), self.key.clone(), self.fence);
        self.database.write_later("the give-back of a lease", move |transaction, _| {
            transaction
                .prepare_cached("DELETE FROM leases WHERE owner = ?1 AND key = ?2 AND fence = ?3")
                .and_then(|mut delete| delete.execute(params![owner.as_str(), key.as_str(), signed(fence)]))
                .map(drop)
                .map_err(|error| lift(&error))
        });
    }
}

/// Tells whether a lease stands in the way of a new holder: one that has not ended, of a holder that is not proven dead.
fn is_held(connection: &Connection, database: &Database, owner: &Owner, key: &Key) -> Result<bool> {
    let row = connection
        .prepare_cached("SELECT holder, boot_id, ends_ns FROM leases WHERE owner = ?1 AND key = ?2")
        .and_then(|mut select| {
            let read = |row: &rusqlite::Row<'_>| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
            };
            select.query_row([owner.as_str(), key.as_str()], read).optional()
        })
        .map_err(|error| lift(&error))?;
    let Some((holder, boot_id, ends)) = row else { return Ok(false) };
    if boot_id != database.clock.boot_id() || ends <= database.clock.now() {
        return Ok(false);
    }
    Ok(holder == database.me.name() || database.holders.dead(&holder)?.is_none())
}

/// Returns the number of the last lease of a key that was given and not given back.
pub(super) fn last_fence(connection: &Connection, owner: &Owner, key: &Key) -> Result<Option<u64>> {
    let fence = connection
        .prepare_cached("SELECT fence FROM leases WHERE owner = ?1 AND key = ?2")
        .and_then(|mut select| {
            select.query_row([owner.as_str(), key.as_str()], |row| row.get::<_, i64>(0)).optional()
        })
        .map_err(|error| lift(&error))?;
    fence.map(counter).transpose()
}

/// Draws a number that is above all that were ever drawn from this store.
fn next_fence(connection: &Connection) -> Result<u64> {
    let drawn = connection
        .prepare_cached("UPDATE fences SET last = last + 1 RETURNING last")
        .and_then(|mut update| update.query_row([], |row| row.get::<_, i64>(0)))
        .map_err(|error| lift(&error))?;
    counter(drawn)
}

pub(super) async fn take(
    database: &Arc<Database>,
    owner: Owner,
    key: Key,
    ttl: Duration,
) -> Result<Option<Lease>> {
    let looked_at = (owner.clone(), key.clone());
    let begun = Instant::now();
    let hold_in = Arc::clone(database);
    let take = move |transaction: &Transaction<'_>, database: &Database| {
        if is_held(transaction, database, &owner, &key)? {
            return Ok(None);
        }
        let fence = next_fence(transaction)?;
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO leases (owner, key, fence, holder, boot_id, ends_ns)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    owner.as_str(),
                    key.as_str(),
                    signed(fence),
                    database.me.name(),
                    database.clock.boot_id(),
                    database.clock.after(ttl),
                ])
            })
            .map_err(|error| lift(&error))?;
        let hold = Hold { database: hold_in, owner, key, fence };
        Ok(Some(Lease::new(fence, begun.checked_add(ttl), Box::new(hold))))
    };
    database
        .in_order(move |connection, database| {
            // Whoever waits for a lease looks often: without the write lock, which others need.
            if is_held(connection, database, &looked_at.0, &looked_at.1)? {
                return Ok(None);
            }
            database.transact(connection, take)
        })
        .await
}

pub(super) async fn renew(
    database: &Arc<Database>,
    owner: Owner,
    key: Key,
    lease: &mut Lease,
    ttl: Duration,
) -> Result<()> {
    let (begun, fence) = (Instant::now(), lease.fence);
    let renew = database.write(move |transaction, database| {
        let changed = transaction
            .prepare_cached("UPDATE leases SET ends_ns = ?4 WHERE owner = ?1 AND key = ?2 AND fence = ?3")
            .and_then(|mut update| {
                update.execute(params![
                    owner.as_str(),
                    key.as_str(),
                    signed(fence),
                    database.clock.after(ttl)
                ])
            })
            .map_err(|error| lift(&error))?;
        if changed == 1 { Ok(()) } else { Err(Lease::lost(&owner, &key)) }
    });
    renew.await?;
    lease.valid_until = begun.checked_add(ttl);
    Ok(())
}
