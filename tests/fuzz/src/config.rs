//! The configuration: refused with a position in the file, or completely usable.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use operator_host_config::{Config, ConfigError};
use operator_host_contract::is_dns_label;
use tempfile::TempDir;

/// A folder with the plugin that the corpus refers to.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.wasm"), b"").expect("a file");
    folder
});

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Config::parse(&FOLDER.path().join("config.yaml"), text) {
        Ok(config) => can_be_run(&config),
        Err(ConfigError::Invalid {
            line,
            column,
            message,
            ..
        }) => {
            // For YAML a carriage return alone ends a line, too.
            let lines = text.replace('\r', "\n").lines().count() as u64 + 1;
            assert!((1..=lines).contains(&line), "line {line} of {lines}: {message}");
            assert!(column >= 1 && !message.is_empty());
        }
        Err(error @ (ConfigError::Read { .. } | ConfigError::KeysBesidePlugins { .. })) => {
            panic!("nothing was to be read: {error}")
        }
    }
}

fn can_be_run(config: &Config) {
    for namespace in &config.namespaces {
        assert!(is_dns_label(namespace), "{namespace:?}");
    }
    let mut names = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for controller in &config.controllers {
        assert!(is_dns_label(&controller.name), "{:?}", controller.name);
        assert!(
            names.insert(&controller.name),
            "{:?} is there twice",
            controller.name
        );
        let kind = (
            controller.parent.group().to_owned(),
            controller.parent.kind.clone(),
        );
        assert!(kinds.insert(kind), "{} has two controllers", controller.parent);
        assert!((1..=1000).contains(&controller.concurrency));
        assert!(!controller.resync.is_zero());
        assert!(!controller.backoff.initial.is_zero());
        assert!(controller.backoff.initial <= controller.backoff.max);
        let limits = &controller.limits;
        assert!(limits.memory > 0 && limits.response > 0 && !limits.deadline.is_zero());
        for namespace in controller.rules.other_namespaces.names().into_iter().flatten() {
            assert!(is_dns_label(namespace), "{namespace:?}");
        }
        if let Some(account) = &controller.service_account {
            assert!(is_dns_label(&account.namespace), "{account}");
        }
        // The API server limits the length of field managers and finalizers.
        assert!(controller.field_manager().len() <= 128 && controller.finalizer().len() <= 128);
    }
}
