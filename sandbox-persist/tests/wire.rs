//! What a mirror in a bucket says to its server, word by word, and whom it never asks.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

#[path = "support/wire.rs"]
mod server;
mod support;

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use sandhold_core::ErrorKind;
use sandhold_persist::{
    CaptureOptions, Mirror, MirrorConfig, MirrorTarget, RestoreOptions, S3Target, SnapId,
};
use server::{BUCKET, Seen, Wire, sha256};
use support::Place;

fn lookup(name: &str) -> Option<String> {
    match name {
        "THE_KEY" => Some("an-access-key".to_owned()),
        "THE_SECRET" => Some("a-secret-key".to_owned()),
        "AWS_SESSION_TOKEN" => Some("a-session-token".to_owned()),
        _ => None,
    }
}

fn target(wire: &Wire) -> S3Target {
    S3Target::new(BUCKET).with_endpoint(wire.url.clone()).with_key_variables("THE_KEY", "THE_SECRET")
}

fn mirror(wire: &Wire) -> Mirror {
    let config = MirrorConfig::new(MirrorTarget::S3(target(wire))).with_prefix("/team/a/");
    Mirror::open_with(config, lookup).unwrap()
}

async fn uploaded(place: &Place, mirror: &Mirror, count: usize) -> Vec<SnapId> {
    let mut ids = Vec::new();
    for index in 0..count {
        place.write("a", index.to_string());
        let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await.unwrap();
        mirror.upload(&place.vault, &snapshot.id).await.unwrap();
        ids.push(snapshot.id);
    }
    ids
}

#[tokio::test]
async fn every_request_is_signed_over_its_digest_and_asks_for_nothing_that_only_amazon_has() {
    let (place, wire) = (Place::new().await, Wire::start());
    let mirror = mirror(&wire);
    let id = uploaded(&place, &mirror, 1).await.remove(0);
    mirror.check().await.unwrap();
    mirror.snapshots(place.vault.key()).await.unwrap();
    let elsewhere = Place::new().await;
    mirror.fetch(&elsewhere.vault, id.as_str()).await.unwrap();
    let seen = wire.seen();
    assert!(seen.len() > 5, "{seen:?}");
    for request in &seen {
        assert_eq!(request.header("x-amz-content-sha256"), Some(&*sha256(&request.body)), "{request:?}");
        assert_eq!(request.header("x-amz-security-token"), Some("a-session-token"));
        let signed = request.header("authorization").unwrap();
        assert!(signed.starts_with("AWS4-HMAC-SHA256 Credential=an-access-key/"), "{signed}");
        assert!(signed.contains("/us-east-1/s3/aws4_request"), "{signed}");
        let names = signed.split("SignedHeaders=").nth(1).unwrap().split(',').next().unwrap();
        let names: Vec<&str> = names.split(';').collect();
        for name in ["host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"] {
            assert!(names.contains(&name), "{names:?}");
        }
        // Proxies change these.
        assert!(!names.contains(&"user-agent") && !names.contains(&"content-length"), "{names:?}");
        for (name, _) in &request.headers {
            let is_amazons = name.starts_with("x-amz-checksum")
                || name.starts_with("x-amz-sdk")
                || matches!(&**name, "x-amz-tagging" | "if-match" | "if-none-match" | "x-amz-trailer");
            assert!(!is_amazons, "{request:?}");
        }
        assert!(request.target.starts_with(&format!("/{BUCKET}")), "{}", request.target);
        assert!(!request.has("a-secret-key"), "{request:?}");
    }
    // The bundle, and then the manifest, which does not say of itself where it is.
    let puts: Vec<&Seen> = seen.iter().filter(|request| request.method == "PUT").collect();
    let [bundle, manifest] = puts[..] else { panic!("{puts:?}") };
    assert!(bundle.target.starts_with(&format!("/{BUCKET}/team/a/snapshots/test/{id}.")), "{bundle:?}");
    assert_eq!(bundle.header("content-type"), Some("application/x-git-bundle"));
    assert_eq!(bundle.header("x-amz-meta-sha256"), Some(&*sha256(&bundle.body)));
    assert_eq!(manifest.target, format!("/{BUCKET}/team/a/snapshots/test/{id}.json"));
    assert_eq!(manifest.header("content-type"), Some("application/json"));
    let said: serde_json::Value = serde_json::from_slice(&manifest.body).unwrap();
    assert!(said["snapshot"]["remote"].is_null(), "{said}");
    assert!(seen.iter().all(|request| matches!(&*request.method, "PUT" | "GET" | "HEAD")));
}

#[tokio::test]
async fn a_listing_is_read_to_its_last_page_and_an_id_that_is_short_names_one_or_none() {
    let (place, wire) = (Place::new().await, Wire::start());
    let mirror = mirror(&wire);
    let mut ids = uploaded(&place, &mirror, 3).await;
    let listed = mirror.snapshots(place.vault.key()).await.unwrap();
    ids.reverse();
    let found: Vec<_> = listed.snapshots.iter().map(|found| found.snapshot.id.clone()).collect();
    assert_eq!((listed.total, found), (3, ids.clone()));
    let pages = wire.seen().iter().filter(|request| request.target.contains("continuation-token")).count();
    assert!(pages >= 2, "{pages}");
    assert_eq!(mirror.repos().await.unwrap()[0].snapshots, 3);

    // Another machine, whose vault has another key.
    let elsewhere = Place::new().await;
    let vault = sandhold_persist::Vault::open(sandhold_persist::VaultConfig::new(
        elsewhere.path("other"),
        sandhold_persist::RepoKey::new("moved").unwrap(),
    ));
    let vault = vault.await.unwrap();
    let unknown = mirror.fetch(&vault, ids[0].as_str()).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let named = format!("team/a/snapshots/moved/{}.json in {BUCKET}", ids[0]);
    assert!(unknown.message().contains(&named), "{unknown}");
    let ambiguous = mirror.fetch_from(&vault, place.vault.key(), "20").await.unwrap_err();
    assert_eq!(ambiguous.reason(), Some("ambiguous"));
    assert!(ids.iter().all(|id| ambiguous.to_string().contains(id.as_str())), "{ambiguous}");
    let fetched = mirror.fetch_from(&vault, place.vault.key(), ids[1].as_str()).await.unwrap();
    assert_eq!(fetched.snapshot.id, ids[1]);
    vault.restore(&ids[1], elsewhere.path("out"), RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(elsewhere.path("out/a")).unwrap(), b"1");
}

#[tokio::test]
async fn a_refusal_is_told_as_such_and_nothing_is_restored_or_lost() {
    let (place, wire) = (Place::new().await, Wire::start());
    let mirror = mirror(&wire);
    let id = uploaded(&place, &mirror, 1).await.remove(0);
    fs::remove_file(place.vault.git_dir().join(id.ref_name())).unwrap();
    let vault = support::open(place.dir.path()).await;
    let target = place.path("out");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("kept"), "mine").unwrap();
    for (status, code, kind) in [
        (403, "AccessDenied", ErrorKind::PermissionDenied),
        (401, "InvalidToken", ErrorKind::Unauthenticated),
        (404, "NoSuchBucket", ErrorKind::NotFound),
        (400, "InvalidRequest", ErrorKind::Unexpected),
    ] {
        wire.refuse(Some((status, code)));
        for failure in [
            mirror.restore(&vault, &id, &target, RestoreOptions::new()).await.unwrap_err(),
            mirror.check().await.unwrap_err(),
            mirror.snapshots(vault.key()).await.unwrap_err(),
        ] {
            assert_eq!(failure.kind(), kind, "{status}: {failure}");
            assert!(status == 404 || failure.to_string().contains(code), "{failure}");
            assert!(!failure.to_string().contains("a-secret-key"), "{failure}");
        }
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        assert_eq!(fs::read(target.join("kept")).unwrap(), b"mine");
        assert!(vault.snapshots().await.unwrap().iter().any(|known| known.id == id && known.is_mirrored()));
    }
    wire.refuse(None);
    fs::remove_file(target.join("kept")).unwrap();
    mirror.restore(&vault, &id, &target, RestoreOptions::new()).await.unwrap();
    assert_eq!(fs::read(target.join("a")).unwrap(), b"0");
}

/// Mirrors of every kind, with credentials and without, where somebody listens at the address of metadata services.
#[test]
#[ignore = "is run by another test, in a network of its own"]
fn guest() {
    if std::env::var_os("SANDHOLD_TEST_METADATA").is_none() {
        return;
    }
    let metadata = TcpListener::bind("169.254.169.254:80").unwrap();
    metadata.set_nonblocking(true).unwrap();
    let asked = || metadata.accept().is_ok();
    // It would be noticed.
    drop(std::net::TcpStream::connect("169.254.169.254:80").unwrap());
    assert!(asked());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let wire = Wire::start();
        let place = Place::new().await;
        uploaded(&place, &mirror(&wire), 1).await;
        let s3 = MirrorTarget::S3(target(&wire));
        #[cfg(feature = "gcs")]
        let gcs = {
            let mut target = sandhold_persist::GcsTarget::new(BUCKET);
            target.endpoint = Some(wire.url.clone());
            target.access_token_env = "THE_KEY".to_owned();
            MirrorTarget::Gcs(target)
        };
        #[cfg(feature = "azure")]
        let azure = {
            let mut target = sandhold_persist::AzureTarget::new("account", BUCKET);
            target.endpoint = Some(wire.url.clone());
            target.sas_token_env = "THE_SAS".to_owned();
            MirrorTarget::Azure(target)
        };
        for target in [
            s3,
            #[cfg(feature = "gcs")]
            gcs,
            #[cfg(feature = "azure")]
            azure,
        ] {
            let config = MirrorConfig::new(target);
            let none = Mirror::open_with(config.clone(), |_| None).unwrap_err();
            assert_eq!((none.kind(), none.reason()), (ErrorKind::Unauthenticated, Some("credential")));
            let sas = |name: &str| match name {
                "THE_SAS" => Some("?sv=2024-11-04&sp=rl&sig=c2lnbmF0dXJl".to_owned()),
                name => lookup(name),
            };
            let mirror = Mirror::open_with(config, sas).unwrap();
            // What the server of another protocol says to it is of no matter.
            let _ = mirror.check().await;
            assert!(!wire.seen().is_empty());
        }
    });
    assert!(!asked(), "a metadata service was asked");
}

#[test]
fn no_metadata_service_is_ever_asked() {
    const IN_A_NETWORK: &str =
        r#"ip link set lo up && ip address add 169.254.169.254/32 dev lo && exec "$0" "$@""#;
    let ready = |args: &[&str]| {
        let ran = Command::new("unshare").args(["-rn", "sh", "-c"]).args(args).output();
        ran.ok().map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    if !ready(&[IN_A_NETWORK, "true"]).is_some_and(|(is_ready, _)| is_ready) {
        println!("skipped: needs unshare and ip, and user namespaces, for a network without the world");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let ran = Command::new("unshare")
        .args(["-rn", "sh", "-c", IN_A_NETWORK])
        .arg(own)
        .args(["--exact", "guest", "--ignored", "--nocapture", "--test-threads=1"])
        .env("SANDHOLD_TEST_METADATA", "1")
        // Whoever asks a metadata service asks at last, where nothing of this says what to ask with.
        .env_remove("AWS_EC2_METADATA_DISABLED")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "{ran:?}");
}

#[cfg(feature = "gcs")]
#[tokio::test]
async fn an_access_token_stands_for_a_service_account() {
    let wire = Wire::start();
    let mut target = sandhold_persist::GcsTarget::new(BUCKET);
    target.endpoint = Some(wire.url.clone());
    let lookup = |name: &str| (name == "GOOGLE_OAUTH_ACCESS_TOKEN").then(|| "ya29.a-token".to_owned());
    let mirror = Mirror::open_with(MirrorConfig::new(MirrorTarget::Gcs(target.clone())), lookup).unwrap();
    mirror.check().await.unwrap();
    let seen = wire.seen();
    assert!(!seen.is_empty());
    for request in seen {
        assert_eq!(request.header("authorization"), Some("Bearer ya29.a-token"));
    }
    let broken = |name: &str| (name == "GOOGLE_OAUTH_ACCESS_TOKEN").then(|| "two\nlines".to_owned());
    let refused = Mirror::open_with(MirrorConfig::new(MirrorTarget::Gcs(target)), broken).unwrap_err();
    assert!(refused.message().contains("GOOGLE_OAUTH_ACCESS_TOKEN"), "{refused}");
    assert!(!refused.to_string().contains("lines"), "{refused}");
}

#[cfg(feature = "azure")]
#[tokio::test]
async fn a_shared_access_signature_stands_for_an_account_key() {
    let wire = Wire::start();
    let mut target = sandhold_persist::AzureTarget::new("account", BUCKET);
    target.endpoint = Some(wire.url.clone());
    let lookup = |name: &str| {
        (name == "AZURE_STORAGE_SAS_TOKEN").then(|| "?sv=2024-11-04&sp=rl&sig=c2lnbmF0dXJl".to_owned())
    };
    let mirror = Mirror::open_with(MirrorConfig::new(MirrorTarget::Azure(target)), lookup).unwrap();
    // The answer is one of S3.
    let _ = mirror.check().await;
    let seen = wire.seen();
    assert!(!seen.is_empty());
    for request in seen {
        assert!(request.target.contains("sig=c2lnbmF0dXJl"), "{}", request.target);
        assert_eq!(request.header("authorization"), None);
    }
}
