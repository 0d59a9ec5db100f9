//! Names of rows and columns in words, for pages. Tables and JSON keep the names by which they are found.

/// A quantity in words.
pub fn quantity(name: &str) -> String {
    let words = match name {
        "power_w" => "power",
        "ppw" => "work for each watt",
        "ppw_gain_over_software" => "gain in work for each watt over software",
        "ppw_gain_over_instruction" => "gain in work for each watt over instructions",
        "ppw_gain_over_accelerator" => "gain in work for each watt over the accelerator",
        "handshakes_per_s" | "handshakes_per_second" => "handshakes",
        "responses_per_s" => "responses",
        "latency_us" => "latency",
        "cpu_share" => "share of the CPU in use",
        "worker_share" => "share of the workers' time in use",
        "device_share" => "share of the work done by the device",
        "engine_share" => "share of processor time in engines",
        "profiled_share" => "share of a profiler's samples in cryptography",
        "cpu_us" => "processor time of each",
        "p99_us" => "99th percentile of latency",
        "submit_us" => "time to submit",
        "complete_us" => "time to completion",
        "per_joule" | "mb_per_j" => "work for each joule",
        "energy_j" => "energy",
        "time_ms" => "time",
        "idle_cpu" => "CPU left idle",
        "write_gain" => "gain in writing",
        "saving_over_cpu" => "energy saved over the CPU alone",
        "saving_over_gpu" => "energy saved over the GPU alone",
        "retransmission_rate" => "retransmissions",
        "beta" => "share of the work on the GPU",
        other => return other.replace('_', " "),
    };
    words.to_owned()
}

/// A unit in words; empty if there is none.
pub fn unit(name: &str) -> String {
    match name {
        "" | "1" => String::new(),
        "x" => "times".to_owned(),
        "kBps" => "kB/s".to_owned(),
        "kBps/W" => "kB/s for each watt".to_owned(),
        "rps" => "responses a second".to_owned(),
        "rps/W" => "responses a second for each watt".to_owned(),
        other => match other.strip_prefix("1/") {
            Some("s") => "a second".to_owned(),
            Some(of) => format!("for each {of}"),
            None => other.to_owned(),
        },
    }
}

/// What a row is told by, with its unit: an axis.
pub fn key(name: &str) -> String {
    let words = match name {
        "block_kib" => "block size, KiB",
        "page_kib" => "page size, KiB",
        "page_kb" => "page size, kB",
        "page" => "page size, bytes",
        "bytes" => "size, bytes",
        "block" => "block size, bytes",
        "buffer" => "buffer size, bytes",
        "chunk" => "chunk size, bytes",
        "chunk_kib" => "chunk size, KiB",
        "text_kib" => "text size, KiB",
        "transfer_kib" => "transfer size, KiB",
        "gap_us" => "time between messages, us",
        "latency_us" => "latency of the network, us",
        "timer_ns" => "polling timer, ns",
        "full_percent" => "full handshakes, %",
        "feeding_cores" => "cores that feed the accelerator",
        "plaintext_MB" => "plaintext, MB",
        "step" => "clock step",
        "clock" => "clock, MHz",
        "cpus" => "CPUs",
        "full" => "full handshakes",
        other => return other.replace('_', " "),
    };
    words.to_owned()
}

/// `suite=rsa-2048 workers=8` in words.
pub fn row(name: &str) -> String {
    let word = |word: &str| match word.split_once('=') {
        Some((name, value)) => match key(name).split_once(", ") {
            Some((words, unit)) => format!("{words} {value} {unit}"),
            None => format!("{} {value}", key(name)),
        },
        None => word.to_owned(),
    };
    name.split_whitespace().map(word).collect::<Vec<_>>().join(", ")
}

/// Words as a name that an address can end with.
pub fn anchor(words: &[&str]) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' };
    words.join("-").chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_with_units() {
        assert_eq!(
            row("suite=rsa-2048 workers=8 block_kib=16"),
            "suite rsa-2048, workers 8, block size 16 KiB"
        );
        assert_eq!(row("best"), "best");
        assert_eq!((unit("1/submission"), unit("1/s")), ("for each submission".into(), "a second".into()));
        assert_eq!(anchor(&["ACA-SDS", "four <cores>"]), "aca-sds-four--cores-");
        for name in ["ppw_gain_over_software", "made_up_name"] {
            assert!(!quantity(name).contains('_'), "{name}");
        }
    }
}
