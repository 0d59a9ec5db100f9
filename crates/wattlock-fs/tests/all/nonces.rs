//! No key ever seals twice under one nonce.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use std::collections::HashSet;

use wattlock::Dispatcher;
use wattlock_core::Family;
use wattlock_core::{Error, Item, Request};
use wattlock_door::Crypto;
use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;

use support::{crypto, pattern, volume, whole};

/// Remembers every key and nonce that sealed something.
struct Collector {
    inner: Dispatcher,
    seen: HashSet<(Vec<u8>, Vec<u8>)>,
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
