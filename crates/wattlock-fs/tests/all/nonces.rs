//! No key ever seals twice under one nonce.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests")]

use crate::support;

use std::collections::HashSet;
use std::io::{Read as _, Write as _};

use wattlock::Dispatcher;
use wattlock_core::Family;
use wattlock_core::{Error, Item, Request};
use wattlock_door::Crypto;
use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;

use support::{crypto, pattern, volume, whole};

/// A key and a nonce.
type Sealed = (Vec<u8>, Vec<u8>);

/// Remembers every key and nonce that sealed something.
struct Collector {
    inner: Dispatcher,
    seen: HashSet<Sealed>,
    keys: HashSet<Vec<u8>>,
}

impl Collector {
    fn note(&mut self, request: &Request<'_>) {
        if request.kind.info().family == Family::Seal {
            self.keys.insert(request.key.bytes().to_vec());
            let new = self.seen.insert((request.key.bytes().to_vec(), request.nonce.to_vec()));
            assert!(new, "a nonce was used twice");
        }
    }
}

impl Crypto for Collector {
    fn run(&mut self, request: &mut Request<'_>) -> Result<usize, Error> {
        self.note(request);
        self.inner.run(request)
    }

    fn run_all(&mut self, items: &mut [Item<'_>]) {
        items.iter().for_each(|item| self.note(&item.request));
        self.inner.run_all(items);
    }
}

#[test]
fn no_nonce_is_used_twice_and_keys_are_few() {
    let mut crypto = Collector { inner: crypto(), seen: HashSet::new(), keys: HashSet::new() };
    let store = SimStore::default();
    let text = pattern(50_000, 1);
    let mut stored = HashSet::new();
    for round in 0..5_u64 {
        let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
        let content = match store.open("file") {
            Some((file, place)) => contents.open(file, place, &mut crypto).unwrap(),
            None => {
                let (file, place) = store.create("file");
                contents.create(file, place, &mut crypto).unwrap()
            }
        };
        for step in 0..60_u64 {
            // The same text at the same place, again and again.
            content.write(&text, 0, &mut crypto).unwrap();
            if step % 7 == round {
                content.sync(&mut crypto).unwrap();
            }
            if step % 20 == 19 {
                contents.checkpoint(&mut crypto).unwrap();
                assert!(stored.insert(store.bytes("file")), "the same bytes are stored again");
            }
            content.zero(step * 50, 20_000, &mut crypto).unwrap();
            content.set_len(30_000 + step, &mut crypto).unwrap();
            content.append(&text, &mut crypto).unwrap();
        }
        assert_eq!(whole(&content, &mut crypto).len(), 30_000 + 59 + 50_000);
    }
    assert!(crypto.seen.len() > 5000);
    // Chunks of one opener share a derived key: beside it there are the volume's, the journal's epochs', the files'.
    assert!(crypto.keys.len() < 60, "{}", crypto.keys.len());
}

/// What a copy of this process seals, as of a virtual machine that runs twice from one snapshot.
fn sealed_by_a_copy(work: impl FnOnce() -> HashSet<Sealed>) -> HashSet<Sealed> {
    let (mut ours, mut theirs) = std::io::pipe().unwrap();
    // SAFETY: the child leaves by `_exit`, and takes no lock of another test's thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: so that a child that hangs ends, and its parent's test fails.
        unsafe { libc::alarm(60) };
        for (key, nonce) in work() {
            let line =
                [key, nonce].map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            writeln!(theirs, "{}", line.join(" ")).unwrap();
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    }
    drop(theirs);
    let mut text = String::new();
    ours.read_to_string(&mut text).unwrap();
    let mut status = 0;
    // SAFETY: our child, with room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let bytes = |hex: &str| hex.as_bytes().chunks(2).map(|two| byte(str::from_utf8(two).unwrap())).collect();
    text.lines()
        .map(|line| line.split_once(' ').map(|(key, nonce)| (bytes(key), bytes(nonce))).unwrap())
        .collect()
}

fn byte(hex: &str) -> u8 {
    u8::from_str_radix(hex, 16).unwrap()
}

#[test]
fn audit_12_two_machines_of_one_snapshot_seal_nothing_under_one_nonce() {
    let mut crypto = Collector { inner: crypto(), seen: HashSet::new(), keys: HashSet::new() };
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    content.write(&pattern(50_000, 1), 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    crypto.seen.clear();
    let mut go_on = |text| {
        content.write(&pattern(50_000, text), 0, &mut crypto).unwrap();
        content.sync(&mut crypto).unwrap();
        std::mem::take(&mut crypto.seen)
    };
    let theirs = sealed_by_a_copy(|| go_on(2));
    let ours = go_on(3);
    let keys = |sealed: &HashSet<Sealed>| sealed.iter().map(|(key, _)| key.clone()).collect::<HashSet<_>>();
    assert!(keys(&ours).intersection(&keys(&theirs)).next().is_some(), "the journal's key is the snapshot's");
    assert!(ours.is_disjoint(&theirs));
}
