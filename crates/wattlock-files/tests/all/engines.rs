//! The same files through the real runtime: whatever engine it chooses, the bytes are the ones that the double and the
//! Python reader understand.
#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::common;

use common::*;
use std::fs;
use wattlock::Runtime;
use wattlock_door::Output;
use wattlock_files::{Error, Input};

const SEGMENT: usize = 1 << 20;

fn runtime() -> Runtime {
    Runtime::builder().telemetry(false).build().unwrap()
}

#[test]
fn what_the_engines_seal_the_double_opens_and_the_other_way_round() {
    let (pair, runtime, directory) = (Pair::new(), runtime(), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name);
    let to = |name: &str| Output::Path { path: path(name), force: true };
    for (format, len) in
        FORMATS.into_iter().flat_map(|f| [0, 16_384, SEGMENT, 3 * SEGMENT + 9].map(|len| (f, len)))
    {
        let (sealer, opener, plain) = (pair.sealer().format(format), pair.opener(), content(len));
        fs::write(path("plain"), &plain).unwrap();
        sealer.seal(Input::Path(path("plain")), to("sealed"), &runtime, progress()).unwrap();
        assert!(open(&opener, &fs::read(path("sealed")).unwrap()).unwrap() == plain, "{format:?} {len}");
        fs::write(path("sealed"), seal(&sealer, &plain)).unwrap();
        opener.open(Input::Path(path("sealed")), to("opened"), &runtime, progress()).unwrap();
        assert!(fs::read(path("opened")).unwrap() == plain, "{format:?} {len}");
    }
}

#[test]
fn engines_report_damage_as_the_double_does() {
    let (pair, runtime) = (Pair::new(), runtime());
    for format in FORMATS {
        let sealed = seal(&pair.sealer().format(format), &content(2 * SEGMENT + 100));
        let mut damaged = [sealed.clone(), sealed.clone(), sealed.clone(), sealed];
        damaged[0][500_000] ^= 1;
        damaged[1].push(0);
        let cut = damaged[2].len() - 1;
        damaged[2].truncate(cut);
        damaged[3].truncate(600_000);
        for bytes in damaged {
            let ours = open(&pair.opener(), &bytes).unwrap_err();
            let kept = Output::Stream(Box::new(Kept::default()));
            let theirs = pair.opener().open(stream(&bytes), kept, &runtime, progress()).unwrap_err();
            assert!(!matches!(theirs, Error::Door(wattlock_door::Error::Engine(_))));
            assert_eq!(ours.to_string(), theirs.to_string());
        }
    }
}
