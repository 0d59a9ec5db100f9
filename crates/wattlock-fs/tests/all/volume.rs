//! The volume's own file: what opens it, what does not, and what damage says.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use std::fs;

use common::{CHEAP, World, access, pair, says};
use wattlock_files::age::NoCallbacks;
use wattlock_files::age::secrecy::SecretString;
use wattlock_fs::Error;
use wattlock_fs::volume::{Access, Folder, NameMode, Volume, is_fingerprint};

#[test]
fn what_was_written_is_read_again() {
    let world = World::new(NameMode::PerFolder);
    let read = world.own().read(access(&world.identity), &world.runtime).unwrap();
    assert_eq!((read.id, read.chunk, read.names), (world.volume.id, 4096, NameMode::PerFolder));
    assert_eq!(*read.to_text(), *world.volume.to_text());
    assert!(!format!("{read:?}").contains("keys"));
}

#[test]
fn every_key_opens_the_volume_and_a_removed_one_does_not() {
    let mut world = World::new(NameMode::PerFolder);
    let ((other, identity), own) = (pair(), world.own());
    world.volume.add_recipient("other", &other).unwrap();
    for (name, words) in [("home", "correct horse"), ("work", "battery staple")] {
        let words = SecretString::from(words.to_owned());
        let locked = world.volume.add_passphrase(name, words, CHEAP, &world.runtime).unwrap();
        own.keep_locked(name, &locked).unwrap();
    }
    own.write(&mut world.volume, &[], NoCallbacks, &world.runtime).unwrap();
    let read = |access: Access| own.read(access, &world.runtime);
    let none = || Access::identities(Vec::new());
    for words in ["correct horse", "battery staple"] {
        let access = none().passphrase(says(words, None));
        assert_eq!(read(access).unwrap().openers.len(), 4, "{words}");
    }
    assert!(read(access(&world.identity)).is_ok() && read(access(&identity)).is_ok());
    let wrong = read(none().passphrase(says("wrong", None))).unwrap_err();
    assert_eq!(wrong.exit_code(), 14, "{wrong}");
    let wrong = read(none().passphrase(says("battery staple", Some("home")))).unwrap_err();
    assert_eq!(wrong.exit_code(), 14, "{wrong}");

    let removed = world.volume.remove_opener("other").unwrap();
    assert_eq!(removed.recipient, other);
    own.write(&mut world.volume, &[], NoCallbacks, &world.runtime).unwrap();
    let refused = own.read(access(&identity), &world.runtime).unwrap_err();
    assert_eq!(refused.exit_code(), 12, "{refused}");
}

#[test]
fn a_changed_passphrase_replaces_the_old_one_and_its_identity() {
    let mut world = World::new(NameMode::Plain);
    let own = world.own();
    let words = |words: &str| SecretString::from(words.to_owned());
    let locked = world.volume.add_passphrase("home", words("old"), CHEAP, &world.runtime).unwrap();
    own.keep_locked("home", &locked).unwrap();
    own.write(&mut world.volume, &[], NoCallbacks, &world.runtime).unwrap();
    let before = world.volume.openers[1].recipient.clone();
    let new = world.volume.change_passphrase("home", words("new"), CHEAP, &world.runtime).unwrap();
    assert_ne!(before, world.volume.openers[1].recipient);
    own.keep_locked("home", &new).unwrap();
    own.write(&mut world.volume, &[], NoCallbacks, &world.runtime).unwrap();
    let with = |words| Access::identities(Vec::new()).passphrase(says(words, None));
    assert!(own.read(with("new"), &world.runtime).is_ok());
    assert_eq!(own.read(with("old"), &world.runtime).unwrap_err().exit_code(), 14);
    // The old locked identity, put back, with the old passphrase: it opens nothing any more.
    own.keep_locked("home", &locked).unwrap();
    assert_eq!(own.read(with("old"), &world.runtime).unwrap_err().exit_code(), 83);
    assert!(world.volume.change_passphrase("me", words("x"), CHEAP, &world.runtime).is_err());
}

#[test]
fn the_last_key_stays_and_names_are_unique() {
    let mut world = World::new(NameMode::PerFolder);
    let recipient = world.recipient.clone();
    assert_eq!(world.volume.remove_opener("me").unwrap_err().exit_code(), 2);
    for name in ["me", "", "a b", "..", ".x", "a/b", &"x".repeat(65)] {
        assert_eq!(world.volume.add_recipient(name, &recipient).unwrap_err().exit_code(), 2, "{name}");
    }
    assert_eq!(world.volume.add_recipient("new", "hello").unwrap_err().exit_code(), 10);
    assert_eq!(world.volume.openers.len(), 1);
}

#[test]
fn no_volume_a_foreign_file_and_a_damaged_one_are_told_apart_and_left_as_they_are() {
    let world = World::new(NameMode::PerFolder);
    assert!(matches!(Folder::open(&world.folder.path().join("no")), Err(Error::NoVolume(_))));
    let (own, path) = (world.own(), world.folder.path().join("wattlock.fs"));
    let read = || own.read(access(&world.identity), &world.runtime).unwrap_err().exit_code();
    let good = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(read(), 80);
    fs::write(&path, b"hello").unwrap();
    assert_eq!(read(), 21);
    for (at, codes) in [(good.len() - 1, &[31, 32][..]), (good.len() - 60, &[31, 32, 33])] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(codes.contains(&read()), "{at}");
        assert_eq!(fs::read(&path).unwrap(), bad);
    }
    fs::write(&path, &good[..good.len() - 5]).unwrap();
    assert!([30, 31].contains(&read()));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert_eq!(read(), 46, "a planted link is not followed");
}

#[test]
fn settings_that_are_no_possible_form_name_the_line_and_quote_nothing() {
    let text = World::new(NameMode::Deterministic).volume.to_text();
    assert_eq!(*Volume::parse(text.as_bytes()).unwrap().to_text(), *text);
    let newer = text.replacen("volume 1", "volume 2", 1);
    assert!(matches!(Volume::parse(newer.as_bytes()), Err(Error::Version(version)) if version == "2"));
    let lines: Vec<&str> = text.lines().collect();
    for at in 0..lines.len() {
        for change in ["", "X", "key 0 00", "id 00", "names", "chunk x", "opener", "opener a/b age1"] {
            let mut changed = lines.clone();
            changed[at] = change;
            let error = Volume::parse((changed.join("\n") + "\n").as_bytes()).unwrap_err();
            assert!(matches!(error, Error::BadVolume(_)), "{at} {change}: {error}");
            assert_eq!(error.exit_code(), 82);
        }
        // What has a form that a later version may have given it is no damage, wherever it may stand.
        let word = lines[at].split(' ').next().unwrap_or_default();
        let newer = [("chunk", "chunk 5"), ("names", "names none")].into_iter().filter(|(of, _)| *of == word);
        let newer =
            newer.map(|(_, change)| change).chain(["x", "sparse-names 7"].into_iter().filter(|_| at > 0));
        for change in newer {
            let mut changed = lines.clone();
            changed[at] = change;
            let error = Volume::parse((changed.join("\n") + "\n").as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Newer(_)) && error.exit_code() == 81, "{at} {change}: {error}");
            assert!(error.to_string().contains(&format!("line {}", at + 1)), "{error}");
        }
        let mut twice = lines.clone();
        twice.insert(at, lines[at]);
        assert!(Volume::parse((twice.join("\n") + "\n").as_bytes()).is_err(), "{at} twice");
        let mut cut = lines.clone();
        let gone = cut.remove(at);
        let optional = gone.starts_with("opener") || gone.starts_with("revision");
        assert_eq!(Volume::parse((cut.join("\n") + "\n").as_bytes()).is_ok(), optional, "{at} missing");
    }
    assert!(Volume::parse(&[0xff, 0xfe]).is_err() && Volume::parse(b"").is_err());
}

#[test]
fn behind_the_last_generation_there_is_none() {
    let mut volume = Volume::generate(4096, NameMode::Plain).unwrap();
    volume.keys[0].0 = u32::MAX - 1;
    assert_eq!(volume.add_generation().unwrap(), u32::MAX);
    let error = volume.add_generation().unwrap_err();
    assert!(error.to_string().contains("no generation"), "{error}");
    assert_eq!((volume.keys.len(), volume.generation()), (2, u32::MAX));
}

#[test]
fn a_rotation_is_told_from_what_a_removed_opener_made_up() {
    let mut world = World::new(NameMode::PerFolder);
    let (volume, crypto) = (&mut world.volume, &mut world.crypto);
    let removed = volume.clone();
    let first = volume.succession(crypto).unwrap();
    for generation in 2..5 {
        assert_eq!(volume.succeed(crypto).unwrap(), generation);
    }
    volume.keys.drain(..3);
    let read = Volume::parse(volume.to_text().as_bytes()).unwrap();
    assert_eq!((read.successors.len(), *read.to_text() == *volume.to_text()), (3, true));
    assert!(read.descends(1, &first, crypto).unwrap());
    assert!(read.descends(4, &read.succession(crypto).unwrap(), crypto).unwrap());
    assert!(!read.descends(2, &first, crypto).unwrap() && !read.descends(5, &first, crypto).unwrap());
    // It has the first key and the secret, knows the recipients, and may copy what the storage has.
    let mut forged = removed;
    for _ in 0..4 {
        forged.succeed(crypto).unwrap();
    }
    assert!(forged.descends(1, &first, crypto).unwrap(), "who only knew the first key cannot tell");
    let mut known = read.clone();
    known.keys.clone_from(&forged.keys);
    let newest = read.succession(crypto).unwrap();
    for successors in [forged.successors.clone(), [&read.successors[..], &forged.successors[3..]].concat()] {
        known.successors = successors;
        assert!(!known.descends(4, &newest, crypto).unwrap());
    }
}

#[test]
fn a_fingerprint_is_the_volumes_for_life() {
    let mut world = World::new(NameMode::Plain);
    let fingerprint = world.volume.fingerprint(&mut world.crypto).unwrap();
    assert!(is_fingerprint(&fingerprint), "{fingerprint}");
    assert!(!is_fingerprint(&fingerprint[1..]) && !is_fingerprint(&fingerprint.replace('-', "")));
    let revision = world.volume.revision;
    world.volume.add_recipient("other", &pair().0).unwrap();
    world.volume.succeed(&mut world.crypto).unwrap();
    world.own().write(&mut world.volume, &[], NoCallbacks, &world.runtime).unwrap();
    assert_eq!(world.volume.fingerprint(&mut world.crypto).unwrap(), fingerprint);
    assert_eq!(world.volume.revision, revision + 1);
    let mut other = world.volume.clone();
    other.id[0] ^= 1;
    assert_ne!(other.fingerprint(&mut world.crypto).unwrap(), fingerprint);
    other.clone_from(&world.volume);
    other.secret[31] ^= 1;
    assert_ne!(other.fingerprint(&mut world.crypto).unwrap(), fingerprint);
}
