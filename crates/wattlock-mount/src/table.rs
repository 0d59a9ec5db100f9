//! Inodes that the kernel knows: by number, with the names under which each was last found. No descriptor belongs to
//! one, except while it is open or removed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use wattlock_core::sync::lock;

/// The volume's own folder.
pub const ROOT: u64 = 1;

const SHARDS: usize = 64;

/// Names kept for one inode. More are found again by lookup.
const NAMES: usize = 8;

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The folder's number.
    pub parent: u64,
    /// The stored name.
    pub stored: Box<OsStr>,
}

/// An inode, and how often it is open.
struct Node<C> {
    lookups: u64,
    /// Nodes that have a name in this one.
    children: u32,
    /// Counts inodes that had this number.
    generation: u32,
    /// Its last name was removed: the number may be another file's next time.
    removed: bool,
    /// Known to have no file capability that a write would have to remove.
    plain: bool,
    opens: u32,
    /// Of the openers, those that write: only then has the kernel anything that was not written yet.
    writers: u32,
    names: Names,
    content: Option<Arc<C>>,
    held: Option<Arc<OwnedFd>>,
}

/// Most inodes have one name: no list for those.
enum Names {
    None,
    One(Name),
    More(Vec<Name>),
}

impl Names {
    fn last(&self) -> Option<&Name> {
        match self {
            Names::None => None,
            Names::One(name) => Some(name),
            Names::More(names) => names.last(),
        }
    }

    fn contains(&self, name: &Name) -> bool {
        match self {
            Names::None => false,
            Names::One(one) => one == name,
            Names::More(names) => names.contains(name),
        }
    }

    /// Adds a name that is not there; gives back one that had to go.
    fn push(&mut self, name: Name) -> Option<Name> {
        match std::mem::replace(self, Names::None) {
            Names::None => *self = Names::One(name),
            Names::One(one) => *self = Names::More(vec![one, name]),
            Names::More(mut names) => {
                let gone = (names.len() == NAMES).then(|| names.remove(0));
                names.push(name);
                *self = Names::More(names);
                return gone;
            }
        }
        None
    }

    fn remove(&mut self, name: &Name) -> bool {
        match self {
            Names::One(one) if one == name => *self = Names::None,
            Names::More(names) => {
                let before = names.len();
                names.retain(|one| one != name);
                return names.len() < before;
            }
            _ => return false,
        }
        true
    }

    fn into_vec(self) -> Vec<Name> {
        match self {
            Names::None => Vec::new(),
            Names::One(name) => vec![name],
            Names::More(names) => names,
        }
    }

    fn is_empty(&self) -> bool {
        self.last().is_none()
    }
}

/// Where an inode can be reached.
#[derive(Clone)]
pub enum Whereabouts {
    /// The volume's own folder.
    Root,
    /// By a name.
    Named(Name),
    /// It has no name any more, or none that is known; this descriptor names it.
    Held(Arc<OwnedFd>),
}

/// Some of them, by number.
type Shard<C> = Mutex<HashMap<u64, Node<C>>>;

/// All of them.
pub struct Table<C> {
    shards: Box<[Shard<C>]>,
    root: (u64, u64),
    /// Devices beneath the volume's folder other than its own.
    devices: Mutex<Vec<u64>>,
}

impl<C> Table<C> {
    /// An empty table for a volume whose folder is `root`, by device and inode number.
    pub fn new(root: (u64, u64)) -> Table<C> {
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect();
        Table { shards, root, devices: Mutex::default() }
    }

    /// The number of a backing inode: its own, so that it stays the same from mount to mount.
    pub fn number(&self, (device, inode): (u64, u64)) -> u64 {
        if (device, inode) == self.root {
            return ROOT;
        }
        let high = if device == self.root.0 {
            u64::from(inode <= ROOT) << 63
        } else {
            let mut devices = lock(&self.devices);
            let at = devices.iter().position(|known| *known == device).unwrap_or_else(|| {
                devices.push(device);
                devices.len() - 1
            });
            (at as u64 + 1) << 48
        };
        inode ^ high
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Node<C>>> {
        // Neighbouring numbers come together: multiply before taking the high bits.
        let at = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        lock(&self.shards[at % SHARDS])
    }

    /// Notes that the kernel was told of an inode under a name, and returns its generation.
    pub fn looked_up(&self, number: u64, parent: u64, stored: &OsStr) -> u64 {
        if number == ROOT {
            return 0;
        }
        let name = Name { parent, stored: stored.into() };
        let (generation, dropped, new) = {
            let mut shard = self.shard(number);
            let node = shard.entry(number).or_insert_with(Node::new);
            node.lookups += 1;
            let mut dropped = Vec::new();
            if node.removed {
                node.removed = false;
                node.generation += 1;
                node.plain = false;
                node.held = None;
                dropped = std::mem::replace(&mut node.names, Names::None).into_vec();
            }
            let new = !node.names.contains(&name);
            if new {
                dropped.extend(node.names.push(name));
            }
            (u64::from(node.generation), dropped, new)
        };
        if new {
            self.with(parent, |node| node.children += 1);
        }
        self.orphan(dropped);
        generation
    }

    /// The kernel forgets `count` of what it was told.
    pub fn forget(&self, number: u64, count: u64) {
        self.with(number, |node| node.lookups = node.lookups.saturating_sub(count));
        self.sweep(number);
    }

    /// Where an inode can be reached; `None` if nothing is known of it.
    pub fn find(&self, number: u64) -> Option<Whereabouts> {
        if number == ROOT {
            return Some(Whereabouts::Root);
        }
        let shard = self.shard(number);
        let node = shard.get(&number)?;
        match (node.names.last(), &node.held) {
            (Some(name), _) => Some(Whereabouts::Named(name.clone())),
            (None, Some(held)) => Some(Whereabouts::Held(held.clone())),
            (None, None) => None,
        }
    }

    /// The folder in which an inode was last found.
    pub fn parent(&self, number: u64) -> Option<u64> {
        let shard = self.shard(number);
        shard.get(&number)?.names.last().map(|name| name.parent)
    }

    /// A further name, known from making a link.
    pub fn name_added(&self, number: u64, parent: u64, stored: &OsStr) {
        let name = Name { parent, stored: stored.into() };
        let added = self.with(number, |node| {
            (!node.names.contains(&name)).then(|| node.names.push(name).into_iter().collect::<Vec<_>>())
        });
        if let Some(Some(dropped)) = added {
            self.with(parent, |node| node.children += 1);
            self.orphan(dropped);
        }
    }

    /// A name is gone. `last` if the inode has none left; `held` names it from now on, if it is still used.
    pub fn name_removed(
        &self,
        number: u64,
        parent: u64,
        stored: &OsStr,
        last: bool,
        held: Option<Arc<OwnedFd>>,
    ) {
        let name = Name { parent, stored: stored.into() };
        let removed = self.with(number, |node| {
            node.removed |= last;
            let removed = node.names.remove(&name);
            if node.names.is_empty() && held.is_some() {
                node.held = held;
            }
            removed
        });
        if removed == Some(true) {
            self.orphan(vec![name]);
        }
        self.sweep(number);
    }

    /// Whether something must name the inode after its name `(parent, stored)` is gone: it is open, or has other names,
    /// which are not known.
    pub fn needs_holding(&self, number: u64, links: u64) -> bool {
        let shard = self.shard(number);
        shard.get(&number).is_some_and(|node| {
            let known = match &node.names {
                Names::None => 0,
                Names::One(_) => 1,
                Names::More(names) => names.len(),
            };
            node.opens > 0 || (links > 1 && known <= 1)
        })
    }

    /// The content, if the inode is open, with one more opener.
    pub fn reopen(&self, number: u64) -> Option<Arc<C>> {
        let mut shard = self.shard(number);
        let node = shard.get_mut(&number)?;
        let content = node.content.clone()?;
        node.opens += 1;
        Some(content)
    }

    /// The content, if the inode is open.
    pub fn content(&self, number: u64) -> Option<Arc<C>> {
        self.shard(number).get(&number)?.content.clone()
    }

    /// Notes an opener of a content. If another thread was faster, its content is the one.
    pub fn opened(&self, number: u64, content: Arc<C>, plain: bool) -> Arc<C> {
        let mut shard = self.shard(number);
        let node = shard.entry(number).or_insert_with(Node::new);
        node.opens += 1;
        node.plain |= plain;
        node.content.get_or_insert(content).clone()
    }

    /// An opener is gone.
    pub fn closed(&self, number: u64) {
        let last = self.with(number, |node| {
            node.opens = node.opens.saturating_sub(1);
            (node.opens == 0).then(|| (node.content.take(), node.removed.then(|| node.held.take())))
        });
        // Contents and descriptors are closed outside the lock.
        drop(last);
        self.sweep(number);
    }

    /// An opener that writes came.
    pub fn writer_came(&self, number: u64) {
        self.with(number, |node| node.writers += 1);
    }

    /// An opener that writes is gone.
    pub fn writer_gone(&self, number: u64) {
        self.with(number, |node| node.writers = node.writers.saturating_sub(1));
    }

    /// Whether an opener writes.
    pub fn is_written(&self, number: u64) -> bool {
        self.with(number, |node| node.writers > 0).unwrap_or(false)
    }

    /// Whether the inode is known to have no file capability.
    pub fn is_known_plain(&self, number: u64) -> bool {
        self.with(number, |node| node.plain).unwrap_or(false)
    }

    /// The same; it is from now on.
    pub fn is_plain(&self, number: u64) -> bool {
        self.with(number, |node| std::mem::replace(&mut node.plain, true)).unwrap_or(true)
    }

    /// The inode may have a file capability again.
    pub fn not_plain(&self, number: u64) {
        self.with(number, |node| node.plain = false);
    }

    /// Inodes known, and how many are open.
    pub fn counts(&self) -> (usize, usize) {
        let each = self.shards.iter().map(|shard| {
            let shard = lock(shard);
            (shard.len(), shard.values().filter(|node| node.opens > 0).count())
        });
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// The stored path of an inode below the volume's folder: a hint, right if nothing moved meanwhile.
    pub fn path(&self, mut parent: u64, stored: &OsStr) -> OsString {
        let mut parts = vec![OsString::from(stored)];
        while let Some(Whereabouts::Named(name)) = self.find(parent) {
            parts.push(name.stored.into());
            parent = name.parent;
            if parts.len() > 4096 {
                break;
            }
        }
        parts.reverse();
        parts.join(OsStr::new("/"))
    }

    fn with<T>(&self, number: u64, change: impl FnOnce(&mut Node<C>) -> T) -> Option<T> {
        self.shard(number).get_mut(&number).map(change)
    }

    /// Names that are gone no longer count in their folders.
    fn orphan(&self, names: Vec<Name>) {
        for name in names {
            self.with(name.parent, |node| node.children = node.children.saturating_sub(1));
            self.sweep(name.parent);
        }
    }

    /// Drops an inode that is no longer known, and then perhaps its folder.
    fn sweep(&self, number: u64) {
        let gone = {
            let mut shard = self.shard(number);
            let unused = |node: &Node<C>| node.lookups == 0 && node.children == 0 && node.opens == 0;
            if !shard.get(&number).is_some_and(unused) {
                return;
            }
            shard.remove(&number)
        };
        if let Some(node) = gone {
            self.orphan(node.names.into_vec());
        }
    }
}

impl<C> Node<C> {
    fn new() -> Node<C> {
        Node {
            lookups: 0,
            children: 0,
            generation: 0,
            removed: false,
            plain: false,
            opens: 0,
            writers: 0,
            names: Names::None,
            content: None,
            held: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<u8> {
        Table::new((7, 100))
    }

    fn name(table: &Table<u8>, number: u64) -> Option<(u64, String)> {
        match table.find(number)? {
            Whereabouts::Named(name) => Some((name.parent, name.stored.to_string_lossy().into_owned())),
            _ => None,
        }
    }

    #[test]
    fn numbers_are_the_backing_inodes_and_the_root_is_one() {
        let table = table();
        assert_eq!(table.number((7, 100)), ROOT);
        assert_eq!(table.number((7, 5)), 5);
        assert_ne!(table.number((7, 1)), ROOT);
        let other = table.number((8, 5));
        assert_ne!(other, 5);
        assert_eq!(table.number((8, 5)), other);
        assert_ne!(table.number((9, 5)), other);
    }

    #[test]
    fn a_folder_stays_while_an_inode_in_it_is_known() {
        let table = table();
        table.looked_up(10, ROOT, "d".as_ref());
        table.looked_up(11, 10, "f".as_ref());
        table.forget(10, 1);
        assert_eq!(name(&table, 11), Some((10, "f".into())));
        assert_eq!(table.path(10, "f".as_ref()), "d/f");
        table.forget(11, 1);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn an_inode_number_that_comes_back_has_a_new_generation() {
        let table = table();
        let first = table.looked_up(10, ROOT, "a".as_ref());
        assert!(!table.needs_holding(10, 1));
        table.name_removed(10, ROOT, "a".as_ref(), true, None);
        let second = table.looked_up(10, ROOT, "b".as_ref());
        assert_ne!(first, second);
        assert_eq!(name(&table, 10), Some((ROOT, "b".into())));
        table.forget(10, 1);
        table.forget(10, 1);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn an_open_inode_outlives_its_name_and_its_lookups() {
        let table = table();
        table.looked_up(10, ROOT, "a".as_ref());
        table.opened(10, Arc::new(3), true);
        assert!(table.needs_holding(10, 1));
        table.name_removed(10, ROOT, "a".as_ref(), true, None);
        table.forget(10, 1);
        assert_eq!(table.content(10).as_deref(), Some(&3));
        table.closed(10);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn of_several_names_the_rest_is_found() {
        let table = table();
        table.looked_up(10, ROOT, "a".as_ref());
        table.looked_up(10, ROOT, "b".as_ref());
        table.name_removed(10, ROOT, "b".as_ref(), false, None);
        assert_eq!(name(&table, 10), Some((ROOT, "a".into())));
        for more in 0..20 {
            table.name_added(10, ROOT, format!("n{more}").as_ref());
        }
        table.name_removed(10, ROOT, "n19".as_ref(), false, None);
        assert_eq!(name(&table, 10), Some((ROOT, "n18".into())));
        table.forget(10, 2);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn an_inode_is_small() {
        assert!(size_of::<(u64, Node<u8>)>() <= 128, "{}", size_of::<(u64, Node<u8>)>());
    }
}
