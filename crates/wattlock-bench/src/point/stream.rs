//! A stream through the sliding window of `bench stream`: on the emulated machine of the paper, whose joules are
//! modelled, or on this one at its own clocks.

use clap::ValueEnum;

use anyhow::Result;
use wattlock::Runtime;
use wattlock_policy::Costs;
use wattlock_shell::setup;

use super::Point;
use super::answer::{Figures, Measured, Per, cannot};
use super::given::{Given, usage};
use crate::stream::real::Device;
use crate::stream::{Machine, Passed, Rule, Velocity, k20m_station, on_k20m};

pub const KEYS: &[(&str, &str)] =
    &[("gap_us", "500"), ("pattern", ""), ("messages", "1000"), ("machine", "k20m"), ("rule", "lecpaes")];

/// A pattern's mean: 70 MB/s of messages of 92.5 KB. So it lasts until about as many have come as were asked for.
const MESSAGES_A_SECOND: f64 = 70e3 / 92.5;
/// Longest run.
const MOST_S: f64 = 3600.0;
/// Seed of sizes and gaps: all rounds have the same messages.
const SEED: u64 = 1;

/// What is asked for.
fn wanted(given: &mut Given) -> Result<(Velocity, u32, Machine, Rule)> {
    let gap = given.number("gap_us", 1.0..=1e6)?;
    let messages = given.number("messages", 1..=100_000_u32)?;
    let velocity = match given.text("pattern") {
        "" if gap * f64::from(messages) / 1e6 > MOST_S => {
            return Err(usage(format!("{messages} messages {gap} us apart take more than an hour")));
        }
        "" => Velocity::Gap(gap),
        pattern => pattern
            .parse::<Velocity>()
            .ok()
            .filter(|velocity| matches!(velocity, Velocity::Pattern(_)))
            .ok_or_else(|| given.wrong("pattern", "steady, bursts, day, on-off, heavy-tail"))?,
    };
    let machine = Machine::from_str(given.text("machine"), false);
    let machine = machine.map_err(|_| given.wrong("machine", "k20m, gpu, cpu"))?;
    let rule = Rule::from_str(given.text("rule"), false);
    let rule = rule.map_err(|_| given.wrong("rule", "cs, cp, gp, lecpaes, adaptive"))?;
    Ok((velocity, messages, machine, rule))
}

pub fn run(given: &mut Given, point: &Point<'_>) -> Result<Measured> {
    let (velocity, messages, machine, rule) = wanted(given)?;
    let choice = point.choice;
    if choice.emulate.is_some() || !choice.settings.is_empty() || choice.policy != "adaptive" {
        return Err(usage("a stream takes rule= and machine= in place of --policy, --set and --emulate"));
    }
    if machine != Machine::K20m && rule == Rule::Adaptive {
        return Err(cannot("adaptive goes by what each clock costs, and a point sets no clocks"));
    }
    if machine == Machine::Gpu
        && let Err(missing) = setup::gpu()
    {
        return Err(cannot(format!("no GPU: {missing}")));
    }
    let messages = velocity.messages(messages, f64::from(messages) / MESSAGES_A_SECOND, SEED);
    if messages.is_empty() {
        return Err(usage("no message comes in so short a run"));
    }
    // Serial and parallel rules are the CPU's.
    let board = machine == Machine::Gpu && !matches!(rule, Rule::Cs | Rule::Cp);
    let mut watch = point.watch()?;
    watch.per(Per::Byte);
    let (device, pass): (String, Box<dyn Fn() -> Result<Passed>>) = match machine {
        Machine::K20m => {
            let (station, runtime) = (k20m_station(), Runtime::builder().telemetry(false).build()?);
            let messages = messages.clone();
            ("emulated k20m".into(), Box::new(move || on_k20m(rule, &station, &messages, &runtime)))
        }
        Machine::Gpu | Machine::Cpu => {
            let device = Device::open(board)?;
            let about = if board { device.about.clone() } else { "none".into() };
            let messages = messages.clone();
            (about, Box::new(move || device.pass(rule, &messages, None, &Costs::new())))
        }
    };
    let mut figures = Figures::default();
    for _ in 0..point.rounds {
        watch.begin();
        let ran = pass()?;
        watch.end()?;
        if machine == Machine::K20m {
            watch.spent(ran.joules, "modelled", "the published machine");
        }
        watch.worked(ran.bytes as f64);
        figures.add("seconds", "s", ran.seconds);
        figures.add("messages", "1", ran.messages as f64);
        figures.add("throughput", "MB/s", ran.throughput());
        figures.add("retransmissions", "1/message", ran.retransmissions as f64 / ran.messages as f64);
        figures.add("clock_changes", "1", ran.clock_changes as f64);
        figures.add("p99_us", "us", ran.p99_ns as f64 / 1e3);
        if machine == Machine::K20m {
            figures.add("late_share", "1", ran.late_share());
        }
        if let Some(joules) = watch.last_joules(board) {
            figures.add("joules", "J", joules);
        }
    }
    let (joules, busy) = (watch.joules(board), watch.busy());
    Ok(Measured { figures, engines: Vec::new(), device, joules, busy })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::{choice, point};

    fn given(words: &[&str]) -> Given {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Given::read("stream", KEYS, &words).unwrap()
    }

    #[test]
    fn keys_are_read_or_refused() {
        let of = |words: &[&str]| wanted(&mut given(words));
        assert_eq!(of(&[]).unwrap(), (Velocity::Gap(500.0), 1000, Machine::K20m, Rule::Lecpaes));
        let (velocity, ..) = of(&["pattern=on-off"]).unwrap();
        assert!(matches!(velocity, Velocity::Pattern(_)));
        for words in [
            &["pattern=100us"][..],
            &["pattern=fast"],
            &["gap_us=0"],
            &["gap_us=1000000", "messages=100000"],
            &["machine=k80"],
            &["rule=eeca"],
        ] {
            assert!(of(words).unwrap_err().downcast_ref::<wattlock_door::Error>().is_some(), "{words:?}");
        }
    }

    #[test]
    fn the_emulated_machine_passes_every_message_and_its_joules_are_modelled() {
        let choice = choice("adaptive");
        let words = &["messages=30", "rule=gp"];
        let measured = run(&mut given(words), &point(&choice)).unwrap();
        let figures = serde_json::to_value(&measured.figures).unwrap();
        for name in ["seconds", "throughput", "joules"] {
            assert!(figures[name]["value"].as_f64().unwrap() > 0.0, "{name}: {figures}");
        }
        let joules = measured.joules.unwrap();
        assert_eq!((joules.word, joules.per), ("modelled", Per::Byte));
        assert_eq!(measured.device, "emulated k20m");
    }

    #[test]
    fn a_stream_has_rules_and_no_policies() {
        let choice = choice("qweb");
        let error = run(&mut given(&[]), &point(&choice)).unwrap_err();
        assert!(error.downcast_ref::<wattlock_door::Error>().is_some(), "{error}");
        let choice = crate::point::tests::choice("adaptive");
        let error = run(&mut given(&["machine=cpu", "rule=adaptive"]), &point(&choice)).unwrap_err();
        assert!(error.downcast_ref::<crate::point::answer::Cannot>().is_some(), "{error}");
    }
}
