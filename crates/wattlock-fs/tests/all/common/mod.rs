//! What the tests of volumes share.
#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses some of this")]

use wattlock::{Dispatcher, Runtime};
use wattlock_files::age::NoCallbacks;
use wattlock_files::age::secrecy::SecretString;
use wattlock_files::keys;
use wattlock_fs::tree::{Folder, Tree};
use wattlock_fs::volume::{self, Access, NameMode, Passphrase, Volume};

/// scrypt's cost in tests: the least.
pub const CHEAP: u8 = 1;

pub fn runtime() -> Runtime {
    Runtime::builder().telemetry(false).build().unwrap()
}

/// A key pair: recipient, and the identity as a file has it.
pub fn pair() -> (String, String) {
    use wattlock_files::age::secrecy::ExposeSecret;
    let identity = wattlock_files::age::x25519::Identity::generate();
    (identity.to_public().to_string(), format!("{}\n", identity.to_string().expose_secret()))
}

pub fn access(identity: &str) -> Access {
    Access::identities(keys::identities(identity.as_bytes(), NoCallbacks).unwrap())
}

/// A passphrase, tried on one opener's identity or on all.
pub fn says(words: &'static str, only: Option<&str>) -> Passphrase {
    let ask = Box::new(move || Some(SecretString::from(words.to_owned())));
    Passphrase { only: only.map(str::to_owned), ..Passphrase::new(ask) }
}

/// A volume in a folder of its own, opened by one key.
pub struct World {
    pub folder: tempfile::TempDir,
    pub runtime: Runtime,
    pub crypto: Dispatcher,
    pub volume: Volume,
    pub recipient: String,
    pub identity: String,
}

impl World {
    pub fn new(names: NameMode) -> World {
        let folder = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let mut crypto = runtime.dispatcher();
        let (recipient, identity) = pair();
        let mut volume = Volume::generate(4096, names).unwrap();
        volume.add_recipient("me", &recipient).unwrap();
        Tree::init(folder.path(), &volume, &mut crypto).unwrap();
        let mut world = World { folder, runtime, crypto, volume, recipient, identity };
        world.own().write(&mut world.volume, &[], NoCallbacks, &world.runtime).unwrap();
        world
    }

    pub fn own(&self) -> volume::Folder {
        volume::Folder::open(self.folder.path()).unwrap()
    }

    pub fn tree(&mut self) -> (Tree, Folder) {
        Tree::open(self.folder.path(), &self.volume, &mut self.crypto).unwrap()
    }

    /// The names in the backing folder, sorted.
    pub fn stored(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}
