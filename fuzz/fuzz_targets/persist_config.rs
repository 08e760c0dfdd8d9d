//! Configuration files: what a project says never gets it more than its host gives, what is fixed is never chosen away,
//! and nothing is a credential.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandhold_persist::{DEFAULT_MAX_FILE, PersistConfig, PersistSettings};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (user, project) = input;
    let host = PersistConfig::new().with_user_file(user).unwrap_or_default();
    if let Ok(config) = host.clone().with_project_file(project) {
        assert_eq!(config.mirror, host.mirror);
        assert_eq!(config.interval, host.interval);
        assert_eq!(config.retention.max_count, host.retention.max_count);
        assert_eq!(config.rules.skip_env_files, host.rules.skip_env_files);
        assert_eq!(config.rules.skip_private_keys, host.rules.skip_private_keys);
        assert!(config.rules.never.starts_with(&host.rules.never));
        assert!(config.rules.max_file.unwrap_or(u64::MAX) <= host.rules.max_file.unwrap_or(u64::MAX));
    }
    if let Ok(config) = PersistConfig::new().with_project_file(user) {
        assert!(config.mirror.is_none());
        assert!(config.rules.max_file <= Some(DEFAULT_MAX_FILE));
    }
    // What a program lets people choose stays beneath what its host has fixed, whatever is asked for.
    if let Ok(mut settings) = PersistSettings::new().with_host(user) {
        let fixed = settings.resolve().expect("a host's layer settles");
        let pinned = settings.pinned();
        let is_pinned = |key: &str| pinned.iter().any(|known| known == key);
        let before = settings.clone();
        match settings.update(project) {
            Ok(change) => {
                assert!(change.changed.iter().all(|key| !is_pinned(key)));
                let now = settings.resolve().expect("what was taken settles");
                assert_eq!(settings.pinned(), pinned);
                if is_pinned("mirror") {
                    assert_eq!(now.mirror, fixed.mirror);
                }
                if is_pinned("snapshot.interval") {
                    assert_eq!(now.interval, fixed.interval);
                }
                if is_pinned("capture.max_file_mb") {
                    assert_eq!(now.rules.max_file, fixed.rules.max_file);
                }
            }
            Err(_) => assert_eq!(settings.pinned(), before.pinned()),
        }
    }
});
