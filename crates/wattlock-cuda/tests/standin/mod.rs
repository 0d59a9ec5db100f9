//! Builds the stand-in driver, and drives it from tests. The engine knows nothing of this.
#![allow(unsafe_code, dead_code, reason = "each test file uses its own part")]

use std::ffi::{CString, c_char, c_longlong, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use wattlock_cuda::{Cuda, Missing, Places};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// When a file, or the newest of a folder, was written.
fn written(path: &Path) -> std::time::SystemTime {
    let inner = std::fs::read_dir(path).into_iter().flatten().map(|entry| written(&entry.unwrap().path()));
    inner.max().unwrap_or_else(|| path.metadata().unwrap().modified().unwrap())
}

fn compile(name: &str, more: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (library, temporary) = (folder.join(name), folder.join(format!("{name}.{}", std::process::id())));
    let source = root().join("crates/wattlock-cuda/tests/standin/driver.cpp");
    let newest = [&source, &root().join("gpu/kernels"), &root().join("gpu/host")].map(|from| written(from));
    let newest = newest.into_iter().max();
    if library.metadata().is_ok_and(|built| newest < built.modified().ok()) {
        return library;
    }
    let status = Command::new("g++")
        .args([
            "-std=c++17",
            "-O2",
            "-march=native",
            "-fPIC",
            "-shared",
            "-Wno-psabi",
            "-Wno-unknown-pragmas",
        ])
        .args(more)
        .arg(&source)
        .arg(root().join("gpu/host/host.cpp"))
        .arg("-o")
        .arg(&temporary)
        .status()
        .expect("the stand-in driver needs g++");
    assert!(status.success(), "the stand-in driver does not compile");
    std::fs::rename(&temporary, &library).unwrap();
    library
}

/// The library, built once.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("libstandin.so", &[]))
}

/// One without a function.
pub fn incomplete() -> PathBuf {
    compile("libstandin_incomplete.so", &["-DWITHOUT_MEMSET"])
}

/// What `gpu/bundle.sh` packs, without cubins: those are the stand-in's.
pub struct Bundle(tempfile::TempDir);

impl Bundle {
    pub fn new() -> Bundle {
        let folder = tempfile::tempdir().unwrap();
        let gpu = root().join("gpu");
        std::fs::create_dir(folder.path().join("host")).unwrap();
        for name in ["check.py", "check.sh", "host/kernels.py"] {
            std::fs::copy(gpu.join(name), folder.path().join(name)).unwrap();
        }
        // The stand-in has the kernels for the CPU in it.
        std::fs::copy(library(), folder.path().join("libwattlock_gpu_host.so")).unwrap();
        std::fs::write(folder.path().join("wattlock.sm_90.cubin"), "stand-in").unwrap();
        Bundle(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn run(&self, driver: &Path, nvml: &Path) -> Output {
        Command::new("bash")
            .arg(self.path("check.sh"))
            .arg(self.path("out.json"))
            .env("DRIVER", driver)
            .env("NVML", nvml)
            .output()
            .unwrap()
    }

    pub fn report(&self) -> String {
        std::fs::read_to_string(self.path("out.json")).unwrap()
    }
}

/// The part of a report that is a phase's.
pub fn phase<'a>(report: &'a str, name: &str) -> &'a str {
    let start = report.find(&format!("\"phase\": \"{name}\"")).unwrap_or_else(|| panic!("{name}: {report}"));
    let rest = &report[start + 8..];
    &rest[..rest.find("\"phase\"").unwrap_or(rest.len())]
}

/// A driver of a test's own: a copy of the library, which has its own faults and counts.
pub struct StandIn {
    _folder: tempfile::TempDir,
    pub places: Places,
    handle: *mut c_void,
}

// SAFETY: a handle of the loader's, and functions that lock.
unsafe impl Send for StandIn {}
// SAFETY: as above.
unsafe impl Sync for StandIn {}

impl StandIn {
    pub fn new() -> StandIn {
        StandIn::of(library())
    }

    pub fn of(library: &Path) -> StandIn {
        let folder = tempfile::tempdir().unwrap();
        let driver = folder.path().join("driver.so");
        std::fs::copy(library, &driver).unwrap();
        std::fs::write(folder.path().join("wattlock.sm_90.cubin"), "stand-in").unwrap();
        let name = CString::new(driver.to_str().unwrap()).unwrap();
        // SAFETY: a library of ours.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let places = Places { driver, images: folder.path().to_owned(), streams: wattlock_cuda::STREAMS };
        StandIn { _folder: folder, places, handle }
    }

    /// Tells it to misbehave.
    pub fn set(&self, text: &str) {
        let text = CString::new(text).unwrap();
        // SAFETY: that function's type.
        unsafe {
            let symbol = libc::dlsym(self.handle, c"wl_standin_set".as_ptr());
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char)>(symbol)(text.as_ptr());
        }
    }

    /// What it has seen.
    pub fn count(&self, name: &str) -> i64 {
        let name = CString::new(name).unwrap();
        // SAFETY: that function's type.
        unsafe {
            let symbol = libc::dlsym(self.handle, c"wl_standin_count".as_ptr());
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> c_longlong>(symbol)(
                name.as_ptr(),
            )
        }
    }

    pub fn find(&self) -> Result<Cuda, Missing> {
        Cuda::find(&self.places)
    }

    /// Nothing is left of what the engine had, and nothing of it held a secret; when the engine's thread has ended.
    pub fn assert_clean(&self) {
        for _ in 0..10_000 {
            if self.count("live") == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!((self.count("live"), self.count("unwiped"), self.count("wrong")), (0, 0, 0));
    }
}
