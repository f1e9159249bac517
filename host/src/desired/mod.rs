//! Computes the desired state and how the live state differs from it. Pure functions of objects: nothing here does I/O
//! or uses a client, which a test below checks.

pub mod ownership;
pub mod plan;
pub mod proof;

pub mod conditions;
pub mod drift;
pub mod selectors;
pub mod versions;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// Returns the lines of a file, outside of its tests, that name one of these paths.
    fn uses(file: &Path, forbidden: &[&str]) -> Vec<String> {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines
            .filter(|line| forbidden.iter().any(|path| line.contains(path)))
            .map(|line| format!("{}: {line}", file.display()))
            .collect()
    }

    const CLIENTS: [&str; 6] = [
        "kube::Client",
        "kube::api",
        "kube::Api",
        "kube::runtime",
        "tokio::",
        "hyper",
    ];

    #[test]
    fn the_desired_state_is_computed_without_a_client_and_without_input_or_output() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/desired");
        let upwards = [
            "crate::cluster",
            "crate::reconcile",
            "crate::rollout",
            "crate::controller",
            "std::fs",
        ];
        let forbidden: Vec<&str> = CLIENTS.into_iter().chain(upwards).collect();
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> = files
            .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
            .collect();
        assert!(files.len() > 5, "{files:?}");
        let found: Vec<_> = files.iter().flat_map(|file| uses(file, &forbidden)).collect();
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn the_contract_knows_no_client() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("contract/src/lib.rs");
        assert_eq!(uses(&file, &CLIENTS), Vec::<String>::new());
    }
}
