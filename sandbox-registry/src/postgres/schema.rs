//! The tables, and how older ones become them.

use sandhold_core::{Error, ErrorKind};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::error::Broken;
use crate::migration;

/// One script a version, in order, about tables of the schema that is set for it. A version that was released is never
/// changed.
pub(super) const MIGRATIONS: &[&str] = &[r#"
CREATE TABLE records (
    owner text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    provider text COLLATE "C" NOT NULL,
    provider_id text,
    phase text COLLATE "C" NOT NULL,
    phase_since timestamptz NOT NULL, -- by the writer's clock: for people
    record json NOT NULL, -- all of it
    PRIMARY KEY (owner, key)
);
CREATE INDEX records_by_phase ON records (phase, phase_since);
CREATE TABLE leases (
    owner text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    token text NOT NULL, -- of one call that took it
    ends timestamptz NOT NULL, -- by the database's clock
    PRIMARY KEY (owner, key)
);
CREATE SEQUENCE fences;
"#];

/// Brings the tables to the version that these migrations lead to. Programs that open at the same time take turns.
pub(super) async fn migrate(client: &mut Client, schema: &str, migrations: &[&str]) -> Result<(), Broken> {
    // Most openings find everything done, and need no right to make anything.
    if version(client, schema).await? == i64::try_from(migrations.len()).ok() {
        return Ok(());
    }
    let transaction = client.transaction().await.map_err(Broken::early)?;
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('sandhold migrations of ' || $1, 0))";
    transaction.query_typed(lock, &[(&schema, Type::TEXT)]).await.map_err(Broken::early)?;
    let found = match version(transaction.client(), schema).await? {
        Some(found) => found,
        None => {
            refuse_foreign(transaction.client(), schema).await?;
            let make = format!(
                "CREATE SCHEMA IF NOT EXISTS {schema};
                 CREATE TABLE {schema}.migrations (version bigint PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            );
            transaction.batch_execute(&make).await.map_err(Broken::early)?;
            0
        }
    };
    for (version, script) in migration::missing(found, migrations)? {
        let script = format!("SET LOCAL search_path = {schema}; {script}");
        transaction.batch_execute(&script).await.map_err(Broken::early)?;
        let note = format!("INSERT INTO {schema}.migrations (version) VALUES ($1)");
        transaction.execute_typed(&note, &[(&version, Type::INT8)]).await.map_err(Broken::early)?;
    }
    transaction.commit().await.map_err(Broken::at_commit)
}

/// Returns the version of the tables; `None` when they were never made.
async fn version(client: &Client, schema: &str) -> Result<Option<i64>, Broken> {
    let there = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migrations'";
    let there = client.query_typed_opt(there, &[(&schema, Type::TEXT)]).await.map_err(Broken::early)?;
    if there.is_none() {
        return Ok(None);
    }
    let last = format!("SELECT coalesce(max(version), 0) FROM {schema}.migrations");
    let row = client.query_typed_one(&last, &[]).await.map_err(Broken::early)?;
    row.try_get(0).map(Some).map_err(Broken::early)
}

/// Tables of another program are left alone.
async fn refuse_foreign(client: &Client, schema: &str) -> Result<(), Broken> {
    let foreign = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = $1 LIMIT 1";
    match client.query_typed_opt(foreign, &[(&schema, Type::TEXT)]).await.map_err(Broken::early)? {
        None => Ok(()),
        Some(row) => Err(Error::new(
            ErrorKind::Conflict,
            "the schema has tables of another program; give the registry a schema of its own",
        )
        .with_reason("foreign_database")
        .with_context("schema", schema)
        .with_context("has", row.try_get::<_, String>(0).map_err(Broken::early)?)
        .into()),
    }
}
