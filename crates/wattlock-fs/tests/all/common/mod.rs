//! What the tests of volumes share.
#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses some of this")]

use std::path::PathBuf;

use rustix::fs::Mode;
use wattlock::{Dispatcher, Runtime};
use wattlock_files::age::NoCallbacks;
use wattlock_files::age::secrecy::SecretString;
use wattlock_files::keys;
use wattlock_fs::tree::{Entry, Folder, Tree};
use wattlock_fs::volume::{self, Access, NameMode, Passphrase, Volume};

pub const ALL: Mode = Mode::from_raw_mode(0o755);

/// Makes a file whose backing file has no byte.
pub fn make(tree: &Tree, folder: &Folder, name: &[u8], crypto: &mut Dispatcher) {
    let entry = tree.entry(folder, name, crypto).unwrap();
    tree.create_file(folder, &entry, ALL).unwrap();
}

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

    /// The tree, its own folder, and a folder `folder` in it: its entry, and where it is stored.
    pub fn with_folder(&mut self) -> (Tree, Folder, Entry, PathBuf) {
        let (tree, root) = self.tree();
        let entry = tree.entry(&root, b"folder", &mut self.crypto).unwrap();
        tree.make_folder(&root, &entry, ALL, &mut self.crypto).unwrap();
        let stored = self.folder.path().join(&entry.stored);
        (tree, root, entry, stored)
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
