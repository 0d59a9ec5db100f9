//! Devices that take a while until they can work.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use wattlock::calibrate::{Plan, calibrate};
use wattlock::{Profile, bring_up};
use wattlock_core::{Engine, Kind, KindSet};

use crate::common::Scripted;

/// A device that comes up after it was opened, if it ever does.
fn coming(device: &Arc<Scripted>) -> thread::JoinHandle<()> {
    device.script.lock().unwrap().window = 0;
    let script = device.script.clone();
    thread::spawn(move || {
        while script.lock().unwrap().opens == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        script.lock().unwrap().window = 64;
    })
}

#[test]
fn a_profile_has_figures_of_a_device_that_was_on_its_way() {
    let device = Scripted::new(1);
    let comes = coming(&device);
    let engines: Vec<Arc<dyn Engine>> = vec![device];
    let profile: Profile = calibrate(&engines, &Plan::quick(KindSet::of(&[Kind::Sha256])), &mut |_| {});
    comes.join().unwrap();
    assert!(profile.points.iter().any(|point| point.engine == "scripted"), "{:?}", profile.points);
}

#[test]
fn a_device_that_never_comes_or_is_not_wanted_is_not_waited_for_without_end() {
    let [never, fails] = [(); 2].map(|()| Scripted::new(1));
    never.script.lock().unwrap().window = 0;
    fails.script.lock().unwrap().open_fails = true;
    let engines: Vec<Arc<dyn Engine>> = vec![never.clone(), fails.clone()];
    let kinds = KindSet::of(&[Kind::Sha256]);
    bring_up(&engines, kinds, Duration::from_millis(30), &|| false);
    bring_up(&engines, kinds, Duration::from_secs(3600), &|| true);
    let other = KindSet::of(&[Kind::Deflate]);
    bring_up(&engines, other, Duration::from_secs(3600), &|| false);
    assert_eq!([never, fails].map(|device| device.script.lock().unwrap().opens), [2, 2]);
}
