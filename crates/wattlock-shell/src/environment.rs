//! Variables of the environment and files that the programs read, once: `--help`, the manual pages and
//! [the page for users](../../../docs/use/command-line.md) have them from here, and a test compares them with what the
//! sources read.

/// A name and what it means.
pub type Named = (&'static str, &'static str);

/// Variables that a user may set.
pub const VARIABLES: &[Named] = &[
    ("WATTLOCK_PROFILE", "the profile of calibrated times, in place of ~/.cache/wattlock/profile.json"),
    ("WATTLOCK_STATE_DIR", "where the volumes that this machine knows are remembered"),
    (
        "WATTLOCK_TELEMETRY_DIR",
        "where running programs keep their counters, in place of /dev/shm/wattlock-UID",
    ),
    (
        "WATTLOCK_LOG",
        "what is logged to standard error: error, warn (as without it), info, debug, or target=level",
    ),
    ("WATTLOCK_GPU_IMAGES", "the folder of the GPU's kernels"),
    ("WATTLOCK_CUDA_DRIVER", "the GPU driver's library, in place of libcuda.so.1"),
    ("WATTLOCK_CUDA_STREAMS", "how many slots a GPU has, 1 to 64"),
    (
        "WATTLOCK_NVML",
        "the library that reads and sets the GPU's power and clocks, in place of libnvidia-ml.so.1",
    ),
    ("HOME", "the folder with .config, .cache and .local/state, where the XDG variables name no others"),
    (
        "XDG_CONFIG_HOME",
        "the folder with wattlock/identity.txt and wattlock/recipients.txt, in place of ~/.config",
    ),
    ("XDG_CACHE_HOME", "the folder with wattlock/profile.json and the energy model, in place of ~/.cache"),
    ("XDG_STATE_HOME", "the folder with wattlock/volumes, in place of ~/.local/state"),
    (
        "XDG_RUNTIME_DIR",
        "the folder with the sockets by which mounts are asked, in place of /tmp/wattlock-UID; root's: /run/wattlock",
    ),
    ("OPENSSL_CONF", "the openssl.cnf that is read and changed, in place of the system's"),
    ("OPENSSL_CONF_INCLUDE", "the folder that .include in openssl.cnf looks in"),
    ("NOTIFY_SOCKET", "systemd's, where a mount says that it is ready"),
    ("PATH", "where programs are looked for that are not beside wattlock: its own, nginx, fusermount3"),
    ("TMPDIR", "the folder for files of a moment, in place of /tmp"),
    ("TERM", "the terminal's kind; without it, or with dumb, `wattlock top` draws nothing"),
    ("NO_COLOR", "if not empty: no colours in the log and in `wattlock top`"),
];

/// Variables of Wattlock's own that the sources name and no user sets, and why.
pub const INTERNAL: &[Named] = &[
    ("WATTLOCK_METER_ROOT", "a fixture for tests of joules"),
    ("WATTLOCK_MOUNT_SERVES", "tells the process that serves a mount that it is the one"),
    ("WATTLOCK_EMULATED_CPU", "tests of lanes under an emulator"),
    ("WATTLOCK_TEST_ADDRESS_SPACE", "a test of the provider that starts itself anew"),
    ("WATTLOCK_COMMIT", "baked in when a program is built"),
    ("WATTLOCK_AWS_LC_RS", "baked in when a program is built"),
];

/// Files that are read or written without being named.
pub const FILES: &[Named] = &[
    ("~/.config/wattlock/identity.txt", "the default identity, if no key is given"),
    ("~/.config/wattlock/recipients.txt", "the default recipients, if none are given"),
    ("~/.cache/wattlock/profile.json", "this user's profile of calibrated times"),
    ("~/.cache/wattlock/energy-model.json", "the energy model of `wattlock energy calibrate`"),
    ("/var/lib/wattlock/profile.json", "the machine's profile"),
    (
        "~/.local/state/wattlock/volumes",
        "the volumes that this user has opened; root's: /var/lib/wattlock/volumes",
    ),
    ("/dev/shm/wattlock-UID", "counters of running programs, for `wattlock status`"),
    ("/run/wattlock/clocks", "clocks that are to be put back"),
];

/// What stands below a program's own long help.
pub fn help() -> String {
    // As clap's long help has options: a table would be too wide for its meanings.
    let line = |(name, meaning): &Named| format!("  {name}\n          {meaning}\n");
    format!("Environment:\n{}", VARIABLES.iter().map(line).collect::<String>()).trim_end().to_owned()
}
