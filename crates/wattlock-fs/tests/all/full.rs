//! A backing store that fills up: the call fails with `ENOSPC`, and the old content is intact.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;

use support::{crypto, pattern, volume, whole};

#[test]
fn wherever_room_runs_out_the_old_content_is_intact() {
    let mut crypto = crypto();
    for sync_first in [false, true] {
        let mut refused = 0;
        for room in 0..150 {
            let store = SimStore::default();
            let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
            let (file, place) = store.create("file");
            let content = contents.create(file, place, &mut crypto).unwrap();
            let mut model = pattern(30_000, 1);
            content.write(&model, 0, &mut crypto).unwrap();
            if sync_first {
                content.sync(&mut crypto).unwrap();
            }
            store.limit(Some(store.used() + room));
            for step in 0..10_u64 {
                let mut next = model.clone();
                let bytes = pattern(40_000, step + 2);
                let result = match step {
                    0 => {
                        next[100..5100].copy_from_slice(&bytes[..5000]);
                        content.write(&bytes[..5000], 100, &mut crypto)
                    }
                    1 | 4 => {
                        next.extend(&bytes[..70]);
                        content.append(&bytes[..70], &mut crypto).map(|_| ())
                    }
                    2 => {
                        next.extend(&bytes);
                        content.append(&bytes, &mut crypto).map(|_| ())
                    }
                    3 => {
                        next.truncate(20_000);
                        next.extend(&bytes);
                        content.set_len(20_000, &mut crypto).and_then(|()| {
                            model = next[..20_000].to_vec();
                            content.append(&bytes, &mut crypto).map(|_| ())
                        })
                    }
                    5 => {
                        next.resize(500_000, 0);
                        content.set_len(500_000, &mut crypto)
                    }
                    6 => {
                        next[400_000..440_000].copy_from_slice(&bytes);
                        content.write(&bytes, 400_000, &mut crypto)
                    }
                    7 => {
                        next[1000..30_000].fill(0);
                        content.zero(1000, 29_000, &mut crypto)
                    }
                    8 => contents.checkpoint(&mut crypto),
                    _ => content.sync(&mut crypto),
                };
                match result {
                    Ok(()) => model = next,
                    Err(error) => {
                        assert_eq!(error.errno(), 28, "room {room}, step {step}: {error}");
                        refused += 1;
                        if matches!(step, 5..=7) {
                            // What these change they change in parts; from here on the file is what it is.
                            let now = whole(&content, &mut crypto);
                            assert!(step == 7 || now == model, "room {room}, step {step}");
                            break;
                        }
                    }
                }
                assert!(whole(&content, &mut crypto) == model, "room {room}, step {step}");
            }
            let model = whole(&content, &mut crypto);
            // With room again everything is brought into place, and read after a restart.
            store.limit(None);
            content.sync(&mut crypto).unwrap();
            drop((content, contents));
            let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
            let (file, place) = store.open("file").unwrap();
            let content = contents.open(file, place, &mut crypto).unwrap();
            assert!(whole(&content, &mut crypto) == model, "room {room}, after a restart");
        }
        assert!(refused > 30, "{refused}");
    }
}

/// Each sync of overwritten chunks leaves them in the journal, which is emptied after 256 MiB: a small disk has less.
#[test]
fn what_is_overwritten_again_and_again_takes_room_once() {
    let mut crypto = crypto();
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut crypto).unwrap();
    let mut model = pattern(300_000, 1);
    content.write(&model, 0, &mut crypto).unwrap();
    content.sync(&mut crypto).unwrap();
    contents.checkpoint(&mut crypto).unwrap();
    // Room for the journal of a few rounds.
    store.limit(Some(store.used() + 500));
    for round in 0..300 {
        let (at, bytes) = (round % 5 * 60_000, pattern(40_000, round as u64));
        model[at..at + 40_000].copy_from_slice(&bytes);
        let written = content.write(&bytes, at as u64, &mut crypto);
        written.unwrap_or_else(|error| panic!("round {round}: {error}"));
        content.sync(&mut crypto).unwrap_or_else(|error| panic!("round {round}, sync: {error}"));
        assert!(whole(&content, &mut crypto) == model, "round {round}");
    }
    drop((content, contents));
    let contents = Contents::start(store.clone(), &volume(), &mut crypto).unwrap().0;
    let (file, place) = store.open("file").unwrap();
    let content = contents.open(file, place, &mut crypto).unwrap();
    assert!(whole(&content, &mut crypto) == model);
}
