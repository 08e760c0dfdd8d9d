//! Configuration files: what a project says never gets it more than its host gives, and nothing is a credential.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandhold_persist::{DEFAULT_MAX_FILE, PersistConfig};

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
});
