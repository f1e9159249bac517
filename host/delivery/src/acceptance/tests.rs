use super::*;
use crate::statement::version;
use crate::testing::describing;
use operator_host_config::keys::{PublicKey, SigningKey};
use operator_host_config::trust::Key;

/// Created with `openssl genpkey -algorithm ed25519`, for these tests only.
pub(crate) const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEILt4uGYZKBEtKWPqREJJza4LZAHpiLwCjYh+g9P860AS\n-----END PRIVATE KEY-----\n";
pub(crate) const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=\n-----END PUBLIC KEY-----\n";
const OTHER: &str = "MCowBQYDK2VwAyEArpxLG3KE2Y3OMrS798GZhadlZNfoKOkRgCwfH4Xfums=";

pub(crate) fn key(name: &str, text: &str) -> Key {
    Key {
        name: name.into(),
        signer: Signer::Key(PublicKey::parse(text).unwrap()),
        controllers: None,
    }
}

fn trust(keys: &[(&str, &str)]) -> Trust {
    Trust {
        keys: Some(keys.iter().map(|(name, text)| key(name, text)).collect()),
        ..Trust::default()
    }
}

fn echo() -> Kind {
    Kind::new("my-operator.dev/v1", "Echo")
}

fn description(version: &str) -> Description {
    describing("echo", version, echo())
}

/// Returns the description of a plugin that makes nothing.
pub(crate) fn signature(description: &Description, digest: Digest) -> Vec<u8> {
    let key = SigningKey::parse(PRIVATE.as_bytes()).unwrap();
    Statement::of(description, digest).unwrap().sign(&key)
}

fn check(trust: &Trust, bytes: &[u8], signature: Option<&[u8]>) -> Result<Option<Signed>, String> {
    let checked = super::check(trust, Digest::of(bytes), &echo(), signature);
    checked.map_err(|error| error.to_string())
}

#[test]
fn what_a_trusted_key_signed_is_accepted_with_the_name_of_the_key() {
    let trust = trust(&[("other", OTHER), ("release", PUBLIC)]);
    let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
    let signed = check(&trust, b"plugin", Some(&signature)).unwrap().unwrap();
    assert_eq!(
        (signed.key.as_str(), signed.statement.unwrap().version),
        ("release", version("1.4.0").unwrap())
    );
    assert_eq!(check(&Trust::default(), b"plugin", None), Ok(None));
}

#[test]
fn another_key_other_contents_and_no_signature_are_refused() {
    let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
    let error = check(&trust(&[("other", OTHER)]), b"plugin", Some(&signature)).unwrap_err();
    assert!(
        error.contains("no key that may sign") && error.contains("(other)"),
        "{error}"
    );
    let own = trust(&[("release", PUBLIC)]);
    let error = check(&own, b"plug-in", Some(&signature)).unwrap_err();
    assert!(error.contains(&Digest::of(b"plug-in").to_string()), "{error}");
    assert!(check(&own, b"plugin", None).unwrap_err().contains("not signed"));
    let cut = check(&own, b"plugin", Some(&signature[..63])).unwrap_err();
    assert!(cut.contains("cannot be used"), "{cut}");
    let none = trust(&[]);
    assert!(
        check(&none, b"plugin", Some(&signature))
            .unwrap_err()
            .contains("none of the keys")
    );
}

#[test]
fn what_is_signed_for_another_kind_is_refused() {
    let own = trust(&[("release", PUBLIC)]);
    let mut other = description("1.4.0");
    other.parent.kind = "Other".into();
    let signature = signature(&other, Digest::of(b"plugin"));
    let error = check(&own, b"plugin", Some(&signature)).unwrap_err();
    assert!(error.contains("for kind my-operator.dev/v1/Other"), "{error}");
}

#[test]
fn a_plugin_with_another_name_version_or_contract_than_is_signed_is_refused() {
    let own = trust(&[("release", PUBLIC)]);
    let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
    let signed = check(&own, b"plugin", Some(&signature)).unwrap().unwrap();
    assert_eq!(signed.describes(&description("1.4.0")), Ok(()));
    let error = signed.describes(&description("1.5.0")).unwrap_err().to_string();
    let words = "for version 1.4.0, but the plugin has version 1.5.0";
    assert!(error.contains(words), "{error}");
    let other = Description {
        name: "other".into(),
        ..description("1.4.0")
    };
    assert!(signed.describes(&other).is_err());
}

#[test]
fn an_older_signed_version_does_not_take_the_place_of_the_live_one() {
    let own = trust(&[("release", PUBLIC)]);
    let age = |trust: &Trust, candidate: &str, live: &str| {
        check_age(trust, &description(candidate), &description(live)).is_ok()
    };
    for (older, newer) in [
        ("1.9.0", "1.10.0"),
        ("1.0.0-rc.1", "1.0.0"),
        ("1.0.0-rc.2", "1.0.0-rc.10"),
    ] {
        assert!(!age(&own, older, newer), "{older} {newer}");
        assert!(age(&own, newer, older), "{older} {newer}");
        assert!(age(&Trust::default(), older, newer), "nothing is signed");
    }
    assert!(
        age(&own, "1.0.0+b", "1.0.0+c"),
        "builds of one version are as old as each other"
    );
    assert!(age(&own, "1.0.0", "before-signatures"));
    let pinned = Trust {
        sha256: Some(Digest::of(b"plugin")),
        ..own
    };
    assert!(age(&pinned, "1.0.0", "2.0.0"));
}

#[test]
fn what_cosign_signed_is_accepted_with_its_key_and_for_these_contents_only() {
    let (signature, signer) = crate::cosign::tests::signed(b"plugin", "cosign container image signature");
    let document = signature.document();
    let mut trust = trust(&[("release", PUBLIC)]);
    let error = check(&trust, b"plugin", Some(&document)).unwrap_err();
    assert!(error.contains("no key that may sign"), "{error}");
    trust.keys.as_mut().unwrap().push(Key {
        signer,
        ..key("cosign", PUBLIC)
    });
    let signed = check(&trust, b"plugin", Some(&document)).unwrap().unwrap();
    assert_eq!((signed.key.as_str(), &signed.statement), ("cosign", &None));
    assert_eq!(signed.describes(&description("1.4.0")), Ok(()));
    // Otherwise an old version could take over: it is neither older nor newer.
    for version in ["v1.4.0", "1.4", "2026-11-23", "latest", ""] {
        let error = signed.describes(&description(version)).unwrap_err().to_string();
        assert!(error.contains("is not a semantic version"), "{version}: {error}");
    }
    let error = check(&trust, b"plug-in", Some(&document)).unwrap_err();
    assert!(error.contains("the signature is for digest"), "{error}");
}
