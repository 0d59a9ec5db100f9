//! `wattlock nginx enable`, `disable` and `guard`, and HAProxy's, on a copy of this machine's /etc
//! (`nginx/tests/enable.py`), scenario by scenario. They need root; elsewhere each says so.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::built;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../nginx/tests/enable.py").canonicalize().unwrap()
}

fn run(scenario: &str) {
    let program = built::program();
    let beside = |name: &str| program.with_file_name(name);
    let output = Command::new("python3")
        .arg(script())
        .arg(scenario)
        .arg("--program")
        .arg(program)
        .arg("--module")
        .arg(beside("../nginx/ngx_http_wattlock_module.so"))
        .arg("--provider")
        .arg(beside("libwattlock_provider.so"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    print!("{}", text(&output.stdout));
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_scenario_has_a_test() {
            let listed = Command::new("python3").arg(script()).arg("list").output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

scenarios!(
    disable_gives_back_every_byte,
    files_that_were_there_keep_what_they_had,
    lines_by_hand_are_named_and_left,
    settings_of_its_file_stay_and_others_are_refused,
    nothing_is_written_where_others_may_write,
    an_enable_that_is_killed_leaves_what_works,
    an_nginx_that_was_broken_before_is_said_and_left,
    a_module_that_a_package_loads_is_not_loaded_again,
    the_owner_replaces_openssl_cnf_meanwhile,
    every_start_has_the_provider_and_the_hybrid_without_openssl_conf,
    groups_that_a_person_named_stay,
    a_running_nginx_takes_it_by_a_reload,
    restart_is_done_if_it_is_asked_for,
    nginx_starts_whatever_becomes_of_module_and_provider,
    an_upgrade_by_the_init_script_meets_a_module_that_does_not_fit,
    the_guard_leaves_what_works_and_what_others_wrote,
    directives_by_hand_do_not_keep_nginx_down,
    a_provider_that_ends_nginx_goes_also_without_the_lines,
    the_guard_follows_the_systems_openssl_cnf,
    the_packages_module_that_does_not_fit_is_taken_out,
    what_the_guard_will_demand_is_asked_first,
    a_step_that_fails_undoes_all,
    a_link_and_relative_includes_are_read_as_nginx_reads_them,
    the_guard_follows_nobodys_links_and_takes_what_it_is_given,
    a_profile_that_cannot_be_read_changes_nothing,
    scripts_of_packages_undo_it_and_guard_a_new_nginx,
    the_guard_writes_what_nginx_has_accepted,
    words_of_other_users_are_not_believed,
    a_fault_that_passes_takes_nothing_out,
    a_full_folder_of_temporary_files_does_not_stop_the_guard,
    guards_at_one_time_leave_what_starts,
    a_directive_that_comes_back_later_is_set_aside_too,
    only_nginxs_own_file_is_written,
    wattlock_for_every_program_does_not_end_that_of_nginx,
    a_restart_that_fails_undoes_all,
    what_is_made_can_be_read_whatever_the_umask,
    systemd_knows_the_guard_before_there_are_lines,
    a_second_nginx_takes_nothing_from_the_first,
    a_unit_with_another_configuration_is_guarded_there,
    the_packages_link_lives_with_an_idle_block_and_a_lost_provider,
    files_of_the_service_that_cannot_be_read_do_not_stop_the_guard,
    disable_takes_all_out_whatever_starts_nginx_by_now,
    what_the_guard_cannot_take_out_is_said_or_refused_first,
    haproxy_has_it_alone_and_gives_it_back,
);
