//! A card that errs, stays silent, lies and vanishes: what it sealed is checked by the CPU before it is stored, if the
//! runtime is told to check every result.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support;

use std::sync::Arc;

use wattlock::Runtime;
use wattlock::core::Engine;
use wattlock::policy::Settings;
use wattlock_cpu::instruction::Instruction;
use wattlock_cpu::software::Software;
use wattlock_emul::{Effect, Emulated, Fault, Model, Pace, Trigger};
use wattlock_fs::content::Contents;
use wattlock_fs::dev::SimStore;

use support::{crypto, pattern, volume, whole};

#[test]
fn what_a_faulty_card_seals_is_read_by_the_cpu_afterwards() {
    let faults = vec![
        Fault::new(Effect::Error, Trigger::Every(29)),
        Fault::new(Effect::Silence, Trigger::Every(97)),
        Fault::new(Effect::WrongResult, Trigger::Every(23)),
        Fault::new(Effect::Lost { back_after_ns: Some(5_000_000) }, Trigger::nth(300)),
    ];
    let instruction: Arc<dyn Engine> = Arc::new(Instruction::new());
    let card =
        Emulated::new(Model::qat_dh8970(), instruction.clone(), Pace::RealTime).unwrap().with_faults(faults);
    let runtime = Runtime::builder()
        .engines(vec![instruction, Arc::new(Software::new()), Arc::new(card)])
        .policy("offload", Settings::default())
        .give_up_after_ns(3_000_000)
        .verify_one_in(1)
        .telemetry(false)
        .profile(wattlock::Profile::built_in())
        .build()
        .unwrap();
    let mut carded = runtime.dispatcher();
    let mut own = crypto();
    let store = SimStore::default();
    let contents = Contents::start(store.clone(), &volume(), &mut carded).unwrap().0;
    let (file, place) = store.create("file");
    let content = contents.create(file, place, &mut carded).unwrap();
    let mut model = vec![0; 400_000];
    content.write(&model, 0, &mut carded).unwrap();
    // Until the card has proved itself the CPU does everything.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for round in 0..u64::MAX {
        let at = (round * 37_001 % 300_000) as usize;
        let bytes = pattern(100_000, round);
        content.write(&bytes, at as u64, &mut carded).unwrap();
        model[at..at + bytes.len()].copy_from_slice(&bytes);
        if round % 5 == 0 {
            content.sync(&mut carded).unwrap();
        }
        assert!(whole(&content, &mut own) == model, "round {round}");
        assert!(whole(&content, &mut carded) == model, "round {round}, read with the card");
        let cells = runtime.snapshot().cells;
        let done: u64 = cells.iter().filter(|cell| cell.engine == "emulated").map(|cell| cell.requests).sum();
        if done > 400 && round > 10 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "the card has done {done} requests");
    }
}
