use super::*;
use crate::statement::version;
use crate::testing::describing;
use crate::tests::assert_says;
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
    assert_eq!(signed.key, "release");
    assert_eq!(signed.statement.unwrap().version, version("1.4.0").unwrap());
    assert_eq!(check(&Trust::default(), b"plugin", None), Ok(None));
}

#[test]
fn another_key_other_contents_and_no_signature_are_refused() {
    let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
    let digest = Digest::of(b"plug-in").to_string();
    let (own, other) = (trust(&[("release", PUBLIC)]), trust(&[("other", OTHER)]));
    for (trust, text, signature, words) in [
        (
            &other,
            "plugin",
            Some(&signature[..]),
            "no key that may sign … (other)",
        ),
        (&own, "plug-in", Some(&signature[..]), digest.as_str()),
        (&own, "plugin", None, "not signed"),
        (&own, "plugin", Some(&signature[..63]), "cannot be used"),
        (&trust(&[]), "plugin", Some(&signature[..]), "none of the keys"),
    ] {
        let error = check(trust, text.as_bytes(), signature).unwrap_err();
        assert_says(error, words);
    }
}

#[test]
fn what_is_signed_for_another_kind_is_refused() {
    let own = trust(&[("release", PUBLIC)]);
    let mut other = description("1.4.0");
    other.parent.kind = "Other".into();
    let signature = signature(&other, Digest::of(b"plugin"));
    let error = check(&own, b"plugin", Some(&signature)).unwrap_err();
    assert_says(error, "for kind my-operator.dev/v1/Other");
}

#[test]
fn a_plugin_with_another_name_version_or_contract_than_is_signed_is_refused() {
    let own = trust(&[("release", PUBLIC)]);
    let signature = signature(&description("1.4.0"), Digest::of(b"plugin"));
    let signed = check(&own, b"plugin", Some(&signature)).unwrap().unwrap();
    assert_eq!(signed.describes(&description("1.4.0")), Ok(()));
    let words = "for version 1.4.0, but the plugin has version 1.5.0";
    assert_says(signed.describes(&description("1.5.0")).unwrap_err(), words);
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
    // Builds of one version are as old as each other.
    assert!(age(&own, "1.0.0+b", "1.0.0+c"));
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
    assert_says(error, "no key that may sign");
    trust.keys.as_mut().unwrap().push(Key {
        signer,
        ..key("cosign", PUBLIC)
    });
    let signed = check(&trust, b"plugin", Some(&document)).unwrap().unwrap();
    assert_eq!((signed.key.as_str(), &signed.statement), ("cosign", &None));
    assert_eq!(signed.describes(&description("1.4.0")), Ok(()));
    // Otherwise an old version could take over: it is neither older nor newer.
    for version in ["v1.4.0", "1.4", "2026-11-23", "latest", ""] {
        let error = signed.describes(&description(version)).unwrap_err();
        assert_says(error, "is not a semantic version");
    }
    let error = check(&trust, b"plug-in", Some(&document)).unwrap_err();
    assert_says(error, "the signature is for digest");
}
