//! What nginx with the module must survive (`nginx/tests/survive.py`) and how it compresses (`nginx/tests/compress.py`),
//! scenario by scenario, against the installed nginx.
#![allow(clippy::unwrap_used, reason = "a test that meets a failure has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::built;

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

struct Built {
    _folder: tempfile::TempDir,
    module: PathBuf,
    other: PathBuf,
    provider: PathBuf,
}

/// The module, the same module expecting another table, and the provider; built once.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let build = |name: &str, defines: &str| {
            let out = folder.path().join(name);
            let built = Command::new(repo().join("nginx/build.sh"))
                .env("OUT", &out)
                .env("DEFINES", defines)
                .output()
                .unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            out.join("ngx_http_wattlock_module.so")
        };
        let module = build("module", "");
        let other = build("other", "-DWATTLOCK_TABLE_VERSION=99");
        let provider = built::provider();
        Built { _folder: folder, module, other, provider }
    })
}

fn survive(scenario: &str) {
    run("survive.py", scenario, &["--other-module".as_ref(), built().other.as_ref()]);
}

fn run(script: &str, scenario: &str, more: &[&std::ffi::OsStr]) {
    let built = built();
    let output = Command::new("python3")
        .arg(repo().join("nginx/tests").join(script))
        .arg(scenario)
        .arg("--module")
        .arg(&built.module)
        .arg("--provider")
        .arg(&built.provider)
        .args(more)
        .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { survive(stringify!($name)); })*

        #[test]
        fn every_scenario_has_a_test() {
            let listed = Command::new("python3").arg(repo().join("nginx/tests/survive.py")).arg("list").output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

scenarios!(
    serves_every_version_and_shows_what_it_did,
    session_tickets_travel_together,
    an_answer_that_is_ready_leaves_with_the_tickets,
    records_of_an_answer_travel_together,
    client_goes_away_with_its_request_in_flight,
    upstream_is_abandoned_while_its_handshake_waits,
    reload_under_load,
    a_worker_that_is_to_end_does_not_wait_for_handshakes_that_pause,
    binary_upgrade_keeps_the_module_active,
    worker_is_killed,
    descriptors_run_out,
    many_idle_connections,
    slow_clients,
    handshakes_are_counted_by_group,
    hellos_of_the_hybrid_come_in_pieces_or_never,
    events_come_while_a_job_is_paused,
    garbage,
    web_socket_reads_and_writes_at_once,
    card_reports_errors,
    card_hangs,
    card_signs_wrongly,
    card_disappears_and_comes_back,
    every_rule_with_a_card_that_fails_in_every_way,
    keep_alive_connections_are_used_again,
    certificate_with_a_variable,
    key_in_another_provider,
    early_data_is_answered_while_handshakes_pause,
    http2_is_negotiated_while_handshakes_pause,
    versions_that_do_not_match_leave_it_inactive,
    without_a_provider_it_says_so,
    it_is_active_without_proc,
    heuristic_polling,
    heuristic_polling_says_when_a_cards_answer_is_looked_for,
    the_loop_sleeps_until_a_cards_answer_is_due,
    derivations_of_a_handshake_are_a_cards_work,
    records_of_a_handshake_are_a_cards_work,
    records_that_libssl_makes_together_are_one_operation_of_a_card,
    answers_wait_for_a_card_and_the_loop_goes_on,
    records_of_one_call_are_submitted_together_and_pause_it_once,
    writes_that_pause_meet_what_connections_meet,
    an_upgrade_is_answered_while_writes_pause,
    reads_go_on_between_writes_that_pause,
    a_tunnel_whose_client_has_said_its_last_word_gets_its_answer,
    the_last_word_is_said_though_its_write_pauses,
    threshold_polling,
    http3_handshakes_do_not_pause,
    a_connection_that_is_tied_twice_begins_once,
    the_info_callback_of_nginx_is_called,
    sessions_grow_old,
    nonsense_is_refused_by_the_configuration_test,
    settings_may_need_each_other_in_any_order,
    stream_with_tls,
    mail_with_tls,
    regular_expression_in_a_server_name,
    regular_expression_behind_the_certificate,
    lua_before_the_certificate,
    a_call_on_another_connection_inside_a_handshake_does_not_pause_it,
    planted_frames_in_http,
    planted_frames_in_upstreams,
    planted_frames_in_stream,
    planted_frames_in_mail,
    nothing_is_left_of_handshakes_that_end_at_any_stage,
    without_address_space_for_stacks_handshakes_do_not_pause,
    early_data_does_not_end_batches,
    a_client_that_wakes_its_handshake_is_counted_once,
    the_status_page_shows_all_workers,
    settings_that_cannot_be_taken_are_said_not_to_be_in_force,
    half_a_processor,
    memory_stays_flat,
);

/// All scenarios of compression, one after the other: they share one machine's cores with what they measure themselves by.
#[test]
fn responses_are_compressed_in_gzips_place() {
    run("compress.py", "all", &[]);
}
