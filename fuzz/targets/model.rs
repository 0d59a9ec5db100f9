//! Models of accelerators, faults among them, as `--emulate FILE` reads them. What is taken prints to a text of the same
//! model, knows how long everything takes, and runs: requests come back once each, whatever faults are declared.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use wattlock_core::{
    Description, Engine, EngineClass, Error, Family, Kind, KindSet, Request, Token, known_answers,
};
use wattlock_emul::{Emulated, Model, Pace};

/// Computes nothing and says that it did.
struct Nothing(Description);

impl Engine for Nothing {
    fn description(&self) -> &Description {
        &self.0
    }

    fn execute(&self, request: &mut Request<'_>) -> Result<usize, Error> {
        Ok(request.data.output().len())
    }
}

fn nothing() -> Arc<dyn Engine> {
    Arc::new(Nothing(Description {
        name: "nothing",
        class: EngineClass::Software,
        inline: KindSet::ALL,
        queued: KindSet::EMPTY,
        detail: String::new(),
    }))
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let model = match Model::parse(text) {
        Ok(model) => model,
        Err(error) => {
            assert!(error.line <= text.lines().count() && !error.to_string().contains('\n'));
            return;
        }
    };
    assert_eq!(Model::parse(&model.to_string()).as_ref(), Ok(&model), "{model}");
    for kind in Kind::ALL {
        let known = model.kinds().contains(*kind);
        assert_eq!(model.pool_of(*kind).is_some(), known);
        for bytes in [0, 1, 1 << 20, u64::MAX] {
            assert_eq!(model.service_ns(*kind, bytes).is_some(), known);
        }
    }
    runs(model);
});

/// A few requests of each kind, over a minute of its time.
fn runs(model: Model) {
    let cheap = |kind: &Kind| !matches!(kind.info().family, Family::Open);
    let kinds: Vec<Kind> = model.kinds().iter().filter(cheap).take(4).collect();
    let card = Emulated::new(model, nothing(), Pace::Stepped).expect("what was parsed is valid");
    let Ok(mut instance) = card.open(0) else { return };
    let (mut taken, mut back, mut now) = (0, Vec::new(), 0);
    for step in 0..40 {
        for kind in &kinds {
            let request = known_answers(*kind).swap_remove(0).request;
            taken += u64::from(instance.submit(Token(taken), request, now).is_ok());
        }
        if step % 3 == 0 {
            instance.flush(now);
        }
        now += 1 << step.min(31);
        instance.poll(now, &mut |completion| back.push(completion.token.0));
        assert_eq!(u64::from(instance.in_flight()), taken - back.len() as u64);
        assert!(instance.held() <= instance.in_flight());
        assert!(instance.in_flight() <= instance.window().requests);
    }
    instance.stop(now);
    instance.poll(now, &mut |completion| back.push(completion.token.0));
    back.sort_unstable();
    assert!(back.into_iter().eq(0..taken), "not every request came back once");
}
