//! `gpu/check.sh` on the stand-in driver, from a folder as a bundle is: every phase leaves its part of the JSON.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod standin;

use std::path::{Path, PathBuf};
use std::process::Command;

use standin::{Bundle, phase};

/// NVML with a board whose counter rises by a joule a call.
fn nvml(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("nvml.c"), folder.join("nvml.so"));
    let text = "static unsigned long long joules;\n\
        int nvmlInit_v2(void) { return 0; }\n\
        int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **board) { *board = &joules; return i != 0; }\n\
        int nvmlDeviceGetTotalEnergyConsumption(void *board, unsigned long long *mj) {\n\
            if (board != &joules) return 1; joules += 1000; *mj = joules; return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    library
}

#[test]
fn every_phase_of_the_check_leaves_its_part_and_nothing_is_wrong() {
    let bundle = Bundle::new();
    let nvml = nvml(&bundle.path("."));
    let output = bundle.run(standin::library(), &nvml);
    assert!(output.status.success(), "{output:?}");
    let report = bundle.report();
    assert!(report.contains("\"stand_in\": true") && report.contains("stand-in, not hardware"), "{report}");
    assert!(phase(&report, "load").contains("wl_aes_gcm_seal_i"));
    let correct = phase(&report, "correct");
    assert!(correct.contains("\"wrong\": []") && correct.contains("\"chacha-seal\": 15"), "{correct}");
    let limits = phase(&report, "limits");
    // The stand-in has no instructions to count, and says nothing about them; copies it has.
    assert!(
        limits.contains("\"wl_rate_lop3\": null") && limits.contains("\"host_to_device_gb_per_s\":"),
        "{limits}"
    );
    let rates = phase(&report, "rates");
    assert!(rates.contains("\"aes-256-gcm open\"") && !rates.contains("\"verified\": false"), "{rates}");
    let joules = phase(&report, "joules");
    assert!(joules.contains("\"joules\": 1.0") && joules.contains("\"nj_per_byte\":"), "{joules}");
    for of_program in ["streams", "program"] {
        assert!(phase(&report, of_program).contains("the bundle has no program"), "{report}");
    }
}

#[test]
fn without_a_driver_the_check_says_so_in_one_line() {
    let bundle = Bundle::new();
    let output = bundle.run(Path::new("/nonexistent/libcuda.so.1"), Path::new("/nonexistent/nvml.so"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("no GPU: "), "{said}");
    assert!(!bundle.path("out.json").exists());
}

#[test]
fn without_seconds_the_kernels_are_compared_and_nothing_is_measured() {
    let bundle = Bundle::new();
    let done = Command::new("python3")
        .arg(bundle.path("check.py"))
        .args([bundle.path("."), bundle.path("out.json")])
        .arg("0")
        .env("DRIVER", standin::library())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let report = bundle.report();
    assert!(phase(&report, "correct").contains("\"wrong\": []"), "{report}");
    assert_eq!(report.matches("\"phase\":").count(), 2, "{report}");
}
