//! Inodes that the kernel knows: by number, with the names under which each was last found.
//!
//! *A number is one inode for as long as the kernel knows it.* An inode whose name is removed through the mount is held by
//! a descriptor that is taken before the name goes. Requests by number go on reaching it, and the backing file system
//! cannot give its inode number to another file. The kernel forgets such an inode as soon as nothing uses it. If an
//! inode went without that (another program removed it, or too many were held) and its inode number comes back, the other
//! file gets another number: two files of one number are an I/O error to the kernel.
//!
//! No descriptor belongs to any other inode, unless it is open.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Timespec};
use wattlock_core::sync::lock;

/// The volume's own folder.
pub const ROOT: u64 = 1;

const SHARDS: usize = 64;

/// Names kept for one inode. More are found again by lookup.
const NAMES: usize = 8;

/// For so long after a refused write, what the kernel had kept behind it is refused, too. A program that goes on writing
/// later, when there may be room again, is not.
const REFUSING: Duration = Duration::from_secs(1);

/// Writes that are kept of one inode: more than the kernel has under way at the same time.
const GROWTH: usize = 256;

/// What begins the number of an inode whose own number the kernel knows as another file.
const OTHER: u64 = 1 << 62;

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
    kind: FileType,
    /// Its last name was removed. If it is not held, its inode number may be another file's by now.
    removed: bool,
    /// Known to have no file capability that a write would have to remove.
    plain: bool,
    /// The length that writes of the present openers go beyond.
    base: u64,
    written: Option<Box<Written>>,
    /// A write of what the kernel kept was refused: until it forgets the inode, it shows a size that is not stored.
    refused: Option<Box<Refused>>,
    opens: u32,
    /// Of the openers, those that write: only then has the kernel anything that was not written yet.
    writers: u32,
    names: Names,
    content: Option<Arc<C>>,
    held: Option<Arc<Held>>,
}

/// A descriptor of an inode, and with it what the journal has of its content: without a name and an opener that would be
/// forgotten.
pub struct Held {
    fd: OwnedFd,
    _content: Option<Box<dyn Send + Sync>>,
}

impl Held {
    /// Holds an inode, and its content.
    pub fn new<C: Send + Sync + 'static>(fd: OwnedFd, content: Option<C>) -> Held {
        Held { fd, _content: content.map(|content| Box::new(content) as _) }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An inode is open, and what becomes of it is not known yet.
#[derive(Debug, PartialEq, Eq)]
pub struct StillOpen;

/// A write that was refused.
#[derive(Clone, Copy)]
struct Refused {
    /// Where the content was to become longer.
    end: u64,
    errno: i32,
    last: Instant,
}

impl Refused {
    /// Whether a content of this length has nothing of what was refused. Of an overwrite nobody knows where it was.
    fn is_cut_by(&self, len: u64) -> bool {
        len == 0 || self.end < u64::MAX && len <= self.end
    }
}

/// What is known of an inode that is open to be written.
#[derive(Default)]
struct Written {
    growth: Growth,
    /// The modification time that the kernel set last.
    time: Option<Timespec>,
    /// Something was written since.
    later: bool,
}

/// Writes that made a content longer, in the order in which the kernel asked for them: by their numbers, and where each
/// ends. Threads carry them out in any order.
#[derive(Default)]
struct Growth {
    latest: VecDeque<(u64, u64)>,
    /// The furthest end of all that came before.
    before: u64,
}

impl Growth {
    fn add(&mut self, request: u64, end: u64) {
        if self.latest.len() == GROWTH
            && let Some((_, end)) = self.latest.pop_front()
        {
            self.before = self.before.max(end);
        }
        self.latest.push_back((request, end));
    }

    /// How far what was asked for before a request reached.
    fn reach(&self, request: u64) -> u64 {
        let earlier = self.latest.iter().filter(|(number, _)| *number < request).map(|(_, end)| *end);
        earlier.fold(self.before, u64::max)
    }

    /// Nothing reaches further.
    fn cut(&mut self, len: u64) {
        self.before = self.before.min(len);
        self.latest.iter_mut().for_each(|(_, end)| *end = len.min(*end));
    }
}

/// Most inodes have one name: no list for those.
enum Names {
    None,
    One(Name),
    More(Vec<Name>),
}

impl Names {
    /// The one that was added last, or so many `before` that.
    fn newest(&self, before: usize) -> Option<&Name> {
        match self {
            Names::One(name) if before == 0 => Some(name),
            Names::More(names) => names.iter().rev().nth(before),
            _ => None,
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
        self.newest(0).is_none()
    }
}

/// Some of them, by number.
type Shard<C> = Mutex<HashMap<u64, Node<C>>>;

/// All of them.
pub struct Table<C> {
    shards: Box<[Shard<C>]>,
    root: (u64, u64),
    /// Devices beneath the volume's folder other than its own.
    devices: Mutex<Vec<u64>>,
    /// Numbers of inodes that do not have their own, by their own; and how many there are, and were.
    others: Mutex<HashMap<u64, u64>>,
    other: AtomicUsize,
    given: AtomicUsize,
    held: Mutex<HeldOnes>,
    /// Whether a write was ever refused.
    refusals: AtomicBool,
    /// Inodes, by their own numbers, that the kernel knows no longer by the number under which it was told that a write
    /// was refused: their next sync tells it.
    untold: Mutex<HashMap<u64, Refused>>,
}

/// Inodes that were held, the oldest first, and how many those may be before some are let go.
struct HeldOnes {
    order: VecDeque<u64>,
    limit: usize,
    most: usize,
}

impl<C> Table<C> {
    /// An empty table for a volume whose folder is `root`, by device and inode number. It holds at `most` so many inodes
    /// that are not open.
    pub fn new(root: (u64, u64), most: usize) -> Table<C> {
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect();
        let held = Mutex::new(HeldOnes { order: VecDeque::new(), limit: most, most });
        let (other, given, refusals) = Default::default();
        Table {
            shards,
            root,
            devices: Mutex::default(),
            others: Mutex::default(),
            other,
            given,
            held,
            refusals,
            untold: Mutex::default(),
        }
    }

    /// The number of a backing inode: its own, so that it stays the same from mount to mount, unless the kernel knows
    /// that as another file.
    pub fn number(&self, inode: (u64, u64)) -> u64 {
        let own = self.own_number(inode);
        match self.other.load(Ordering::Acquire) {
            0 => own,
            _ => lock(&self.others).get(&own).copied().unwrap_or(own),
        }
    }

    /// As [`Table::number`], of an inode of which the kernel will be told. `new` says that this process has made it.
    pub fn number_for(&self, inode: (u64, u64), kind: FileType, new: bool) -> u64 {
        let number = self.number(inode);
        if new && self.refusals.load(Ordering::Relaxed) {
            lock(&self.untold).remove(&self.own_number(inode));
        }
        let another = |node: &mut Node<C>| new || node.kind != kind || (node.removed && node.held.is_none());
        match number != ROOT && self.with(number, another) == Some(true) {
            true => self.renew(self.own_number(inode), number),
            false => number,
        }
    }

    /// Another number in place of `known`, which is an inode that is no more.
    fn renew(&self, own: u64, known: u64) -> u64 {
        let mut others = lock(&self.others);
        let now = others.get(&own).copied().unwrap_or(own);
        if now != known {
            return now;
        }
        let number = OTHER | self.given.fetch_add(1, Ordering::Relaxed) as u64;
        others.insert(own, number);
        self.other.store(others.len(), Ordering::Release);
        number
    }

    /// An inode has its own number back once the kernel knows neither that nor the other one.
    fn restore(&self, gone: u64) {
        if self.other.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut others = lock(&self.others);
        let known = |number| self.shard(number).contains_key(&number);
        others.retain(|own, other| (gone != *own && gone != *other) || known(*own) || known(*other));
        self.other.store(others.len(), Ordering::Release);
    }

    fn own_number(&self, (device, inode): (u64, u64)) -> u64 {
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

    /// Notes that the kernel is told of an inode under a name.
    pub fn looked_up(&self, number: u64, kind: FileType, parent: u64, stored: &OsStr) {
        if number == ROOT {
            return;
        }
        let name = Name { parent, stored: stored.into() };
        let (new, dropped) = {
            let mut shard = self.shard(number);
            let node = shard.entry(number).or_insert_with(|| Node::new(kind));
            node.lookups += 1;
            let new = !node.names.contains(&name);
            (new, if new { node.names.push(name) } else { None })
        };
        if new {
            self.with(parent, |node| node.children += 1);
        }
        self.orphan(dropped);
    }

    /// The kernel is not told after all: the name means something else by now.
    pub fn mistaken(&self, number: u64, parent: u64, stored: &OsStr) {
        self.name_gone(number, parent, stored);
        self.forget(number, 1);
    }

    /// The kernel forgets `count` of what it was told.
    pub fn forget(&self, number: u64, count: u64) {
        self.with(number, |node| node.lookups = node.lookups.saturating_sub(count));
        self.sweep(number);
    }

    /// The name under which an inode was found last, or so many `before` that.
    pub fn name(&self, number: u64, before: usize) -> Option<Name> {
        self.shard(number).get(&number)?.names.newest(before).cloned()
    }

    /// The descriptor of an inode that loses a name, or has lost its last one.
    pub fn held(&self, number: u64) -> Option<Arc<Held>> {
        self.shard(number).get(&number)?.held.clone()
    }

    /// The folder in which an inode was last found.
    pub fn parent(&self, number: u64) -> Option<u64> {
        self.name(number, 0).map(|name| name.parent)
    }

    /// A further name: of a link, or one that is about to be made. Whether it was not known.
    pub fn name_added(&self, number: u64, parent: u64, stored: &OsStr) -> bool {
        let name = Name { parent, stored: stored.into() };
        let added =
            self.with(number, |node| (!node.names.contains(&name)).then(|| node.names.push(name))).flatten();
        let new = added.is_some();
        if new {
            self.with(parent, |node| node.children += 1);
        }
        self.orphan(added.flatten());
        new
    }

    /// A name moved away, or was not made after all.
    pub fn name_gone(&self, number: u64, parent: u64, stored: &OsStr) {
        let name = Name { parent, stored: stored.into() };
        if self.with(number, |node| node.names.remove(&name)) == Some(true) {
            self.orphan(Some(name));
        }
    }

    /// A name is about to be removed: `held` names the inode meanwhile, and afterwards if no other name is known.
    pub fn hold(&self, number: u64, held: &Arc<Held>) {
        let new = self.with(number, |node| {
            let new = node.held.is_none();
            node.held.get_or_insert_with(|| held.clone());
            new
        });
        if new == Some(true) {
            self.bound(number);
        }
    }

    /// A name was removed, the `last` if the inode has none left.
    pub fn name_removed(
        &self,
        number: u64,
        parent: u64,
        stored: &OsStr,
        last: bool,
        held: Option<Arc<Held>>,
    ) {
        self.with(number, |node| node.removed |= last);
        if last {
            // Its number may be another file's next.
            let _ = self.untold(number);
        }
        if let Some(held) = held {
            // It may be known only since the name was about to go.
            self.hold(number, &held);
        }
        self.name_gone(number, parent, stored);
        self.let_go(number);
        self.sweep(number);
    }

    /// An inode that has a name is not held.
    pub fn let_go(&self, number: u64) {
        let named = |node: &mut Node<C>| match node.removed || node.names.is_empty() {
            true => None,
            false => node.held.take(),
        };
        // Closed outside the lock.
        drop(self.with(number, named));
    }

    /// Notes that one more is held. If there are too many, the oldest that are not open are let go: requests for those
    /// are answered as for inodes that another program removed.
    fn bound(&self, number: u64) {
        let mut gone = Vec::new();
        let mut held = lock(&self.held);
        held.order.push_back(number);
        if held.order.len() <= held.limit {
            return;
        }
        let is_held = |number: &u64| self.with(*number, |node| node.held.is_some()) == Some(true);
        held.order.retain(is_held);
        let most = held.most / 2;
        let mut many = held.order.len().saturating_sub(most);
        held.order.retain(|number| {
            let idle = |node: &mut Node<C>| if node.opens == 0 { node.held.take() } else { None };
            let one = if many > 0 { self.with(*number, idle).flatten() } else { None };
            many -= usize::from(one.is_some());
            let stays = one.is_none();
            gone.extend(one);
            stays
        });
        held.limit = held.most.max(2 * held.order.len());
    }

    /// Lets all go. What is open is reached by its content as long as it is.
    pub fn let_all_go(&self) {
        let order = std::mem::take(&mut lock(&self.held).order);
        let gone = order.into_iter().map(|number| self.with(number, |node| node.held.take()));
        // Closed outside the locks.
        drop(gone.collect::<Vec<_>>());
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
        let node = shard.entry(number).or_insert_with(|| Node::new(FileType::RegularFile));
        node.opens += 1;
        node.plain |= plain;
        node.content.get_or_insert(content).clone()
    }

    /// An opener is gone.
    pub fn closed(&self, number: u64) {
        let last = self.with(number, |node| {
            node.opens = node.opens.saturating_sub(1);
            (node.opens == 0).then(|| node.content.take())
        });
        // Contents are closed outside the lock.
        drop(last);
        self.sweep(number);
    }

    /// Notes how long a content is, before writes of what the kernel keeps make it longer.
    pub fn set_base(&self, number: u64, len: u64) {
        self.with(number, |node| node.base = len);
    }

    /// The content is at least so long by what did not come from the kernel's pages.
    pub fn raise_base(&self, number: u64, len: u64) {
        self.with(number, |node| node.base = node.base.max(len));
    }

    /// As [`Table::set_base`], of a content that a program cut or extended. What was refused behind its end is as it
    /// wants it.
    pub fn set_len(&self, number: u64, len: u64) {
        let own = self.own_of(number);
        if self.refusals.load(Ordering::Relaxed) {
            lock(&self.untold).retain(|inode, refused| *inode != own || !refused.is_cut_by(len));
        }
        self.with(number, |node| {
            node.base = len;
            node.refused.take_if(|refused| refused.is_cut_by(len));
            if let Some(written) = &mut node.written {
                written.growth = Growth::default();
            }
        });
    }

    /// Notes that the kernel set the modification time of an inode that is written.
    pub fn timed(&self, number: u64, time: Timespec) {
        self.with(number, |node| {
            if node.writers > 0 {
                let written = node.written.get_or_insert_default();
                (written.time, written.later) = (Some(time), false);
            }
        });
    }

    /// The modification time of an inode as the kernel has it, if something that the kernel had kept was written since:
    /// for the kernel that is no modification, and the backing file's time changed. Said once.
    pub fn time_of(&self, number: u64) -> Option<Timespec> {
        self.with(number, |node| {
            let written = node.written.as_mut()?;
            written.time.filter(|_| std::mem::take(&mut written.later))
        })?
    }

    /// Whether that is still the modification time that the kernel set last.
    pub fn is_time_of(&self, number: u64, time: Timespec) -> bool {
        self.with(number, |node| node.written.as_ref().and_then(|written| written.time)) == Some(Some(time))
    }

    /// Notes a write of what the kernel kept, by the request's number, before it is done.
    pub fn writes(&self, number: u64, request: u64, end: u64) {
        self.with(number, |node| {
            if end > node.base {
                node.written.get_or_insert_default().growth.add(request, end);
            }
            if let Some(written) = &mut node.written {
                written.later = true;
            }
        });
    }

    /// A write of such a range was refused. Where the content has to end now, if it was to become longer by that write.
    /// What the kernel had asked for before it stays.
    pub fn refuse(
        &self,
        number: u64,
        (request, range): (u64, Range<u64>),
        errno: i32,
        now: Instant,
    ) -> Option<u64> {
        self.refusals.store(true, Ordering::Relaxed);
        self.with(number, |node| {
            let reach = node.written.as_ref().map_or(0, |written| written.growth.reach(request));
            let reach = reach.max(node.base);
            let end = if range.end > reach { range.start.max(reach) } else { u64::MAX };
            // Of one that is long ago, or in front of what was synced since, nothing waits any longer.
            let counts = |refused: &&Refused| {
                let lately = now.saturating_duration_since(refused.last) < REFUSING;
                lately && (node.base..=end).contains(&refused.end)
            };
            let before = node.refused.as_deref().filter(counts).copied();
            let one = Refused { last: now, ..before.unwrap_or(Refused { end, errno, last: now }) };
            node.refused = Some(Box::new(one));
            if let Some(written) = &mut node.written {
                written.growth.cut(one.end);
            }
            (one.end < u64::MAX).then_some(one.end)
        })?
    }

    /// Why a write at `at` of what the kernel kept is refused: one that comes before it was, a moment ago, and the
    /// content is to end there.
    pub fn refuses(&self, number: u64, at: u64, now: Instant) -> Option<i32> {
        if !self.refusals.load(Ordering::Relaxed) {
            return None;
        }
        self.with(number, |node| {
            let refused = node.refused.as_deref()?;
            let lately = now.saturating_duration_since(refused.last) < REFUSING;
            (lately && at >= refused.end).then_some(refused.errno)
        })?
    }

    /// Whether a write of the inode was refused.
    pub fn is_refused(&self, number: u64) -> bool {
        self.refusals.load(Ordering::Relaxed)
            && self.with(number, |node| node.refused.is_some()) == Some(true)
    }

    /// Another number for an inode of which a write was refused and that nobody has open any more: the kernel shows a
    /// size that is not stored as long as it knows the inode as `number`, and it may for long. `None` if it shows what is
    /// stored; an error if the inode is open, and was refused a moment ago.
    pub fn outlived(&self, inode: (u64, u64), number: u64, now: Instant) -> Result<Option<u64>, StillOpen> {
        if !self.is_refused(number) {
            return Ok(None);
        }
        let closed = self.with(number, |node| match (node.opens, node.refused.as_deref().copied()) {
            (0, _) => Ok(node.refused.take()),
            (_, Some(refused)) if now.saturating_duration_since(refused.last) < REFUSING => Err(StillOpen),
            _ => Ok(None),
        });
        let Some(refused) = closed.unwrap_or(Ok(None))? else { return Ok(None) };
        let own = self.own_number(inode);
        lock(&self.untold).insert(own, *refused);
        Ok(Some(self.renew(own, number)))
    }

    /// Why a write of an inode was refused, once, if the kernel knows it by another number by now: a program that did not
    /// look at what closing returned would take the next sync for good. One that was told by an earlier sync hears it
    /// twice.
    pub fn untold(&self, number: u64) -> Option<i32> {
        if !self.refusals.load(Ordering::Relaxed) {
            return None;
        }
        let own = self.own_of(number);
        lock(&self.untold).remove(&own).map(|refused| refused.errno)
    }

    /// The own number of an inode that has another one.
    pub fn own_of(&self, number: u64) -> u64 {
        if number & OTHER == 0 {
            return number;
        }
        lock(&self.others).iter().find(|(_, other)| **other == number).map_or(number, |(own, _)| *own)
    }

    /// An opener that writes came; whether it is the only one.
    pub fn writer_came(&self, number: u64) -> bool {
        let came = |node: &mut Node<C>| {
            node.writers += 1;
            node.writers == 1
        };
        self.with(number, came).unwrap_or(false)
    }

    /// An opener that writes is gone.
    pub fn writer_gone(&self, number: u64) {
        self.with(number, |node| {
            node.writers = node.writers.saturating_sub(1);
            if node.writers == 0 {
                node.written = None;
            }
        });
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
        while let Some(name) = self.name(parent, 0) {
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
    fn orphan(&self, names: impl IntoIterator<Item = Name>) {
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
            if let Some(refused) = node.refused {
                let own = self.own_of(number);
                lock(&self.untold).insert(own, *refused);
            }
            self.restore(number);
            self.orphan(node.names.into_vec());
        }
    }
}

impl<C> Node<C> {
    fn new(kind: FileType) -> Node<C> {
        Node {
            lookups: 0,
            children: 0,
            kind,
            removed: false,
            plain: false,
            base: 0,
            written: None,
            refused: None,
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

    const FILE: FileType = FileType::RegularFile;

    fn table() -> Table<u8> {
        Table::new((7, 100), 8)
    }

    fn found(table: &Table<u8>, number: u64, parent: u64, stored: &str) {
        table.looked_up(number, FILE, parent, stored.as_ref());
    }

    fn name(table: &Table<u8>, number: u64) -> Option<(u64, String)> {
        table.name(number, 0).map(|name| (name.parent, name.stored.to_string_lossy().into_owned()))
    }

    fn descriptor() -> Arc<Held> {
        Arc::new(Held::new(std::fs::File::open("/dev/null").unwrap().into(), None::<()>))
    }

    /// Removes a name as a request does.
    fn remove(table: &Table<u8>, number: u64, stored: &str, last: bool) {
        let held = descriptor();
        table.hold(number, &held);
        table.name_removed(number, ROOT, stored.as_ref(), last, Some(held));
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
        table.looked_up(10, FileType::Directory, ROOT, "d".as_ref());
        found(&table, 11, 10, "f");
        table.forget(10, 1);
        assert_eq!(name(&table, 11), Some((10, "f".into())));
        assert_eq!(table.path(10, "f".as_ref()), "d/f");
        table.forget(11, 1);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn what_was_removed_is_held_until_the_kernel_forgets_it() {
        let table = table();
        found(&table, 10, ROOT, "a");
        remove(&table, 10, "a", true);
        assert!(table.held(10).is_some());
        assert_eq!(table.number_for((7, 10), FILE, false), 10, "it is held, so it is the same one");
        table.forget(10, 1);
        assert!(table.held(10).is_none());
        assert_eq!(table.counts(), (0, 0));
        // One that the kernel does not know is not held.
        remove(&table, 11, "b", true);
        assert!(table.held(11).is_none());
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn what_keeps_another_name_is_not_held_and_a_removal_that_failed_changes_nothing() {
        let table = table();
        found(&table, 10, ROOT, "a");
        found(&table, 10, ROOT, "b");
        remove(&table, 10, "b", false);
        assert!(table.held(10).is_none());
        let held = descriptor();
        table.hold(10, &held);
        assert!(table.held(10).is_some(), "while it may go");
        table.let_go(10);
        assert!(table.held(10).is_none());
        assert_eq!(name(&table, 10), Some((ROOT, "a".into())));
        // Its other name is not known.
        remove(&table, 10, "a", false);
        assert!(table.held(10).is_some());
    }

    #[test]
    fn an_inode_number_that_comes_back_is_another_number_to_the_kernel() {
        let table = table();
        found(&table, 10, ROOT, "a");
        assert_eq!(table.number_for((7, 10), FILE, false), 10);
        // This process has made it, so what is known is what another program removed.
        let other = table.number_for((7, 10), FILE, true);
        assert_ne!(other, 10);
        assert_eq!((table.number((7, 10)), table.number((7, 11))), (other, 11));
        found(&table, other, ROOT, "b");
        let folder = table.number_for((7, 10), FileType::Directory, false);
        assert!(folder != other && folder != 10);
        found(&table, folder, ROOT, "c");
        // It has its own number back when the kernel knows no other.
        table.forget(10, 1);
        table.forget(other, 1);
        assert_eq!(table.number((7, 10)), folder);
        table.forget(folder, 1);
        assert_eq!(table.number((7, 10)), 10);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn only_so_many_are_held_and_what_is_open_is_not_let_go() {
        let table = table();
        for number in 10..30 {
            found(&table, number, ROOT, "a");
            if number < 12 {
                table.opened(number, Arc::new(3), true);
            }
            remove(&table, number, "a", true);
        }
        let held: Vec<u64> = (10..30).filter(|number| table.held(*number).is_some()).collect();
        assert!(held.len() <= 8 && held[..2] == [10, 11] && held.contains(&29), "{held:?}");
        // The number of one that is not held may be another file's.
        let lost = (10..30).find(|number| table.held(*number).is_none()).unwrap();
        assert_ne!(table.number_for((7, lost), FILE, false), lost);
        table.let_all_go();
        assert!(table.held(10).is_none() && table.held(29).is_none());
        assert!(table.content(10).is_some());
    }

    #[test]
    fn an_open_inode_outlives_its_name_and_its_lookups() {
        let table = table();
        found(&table, 10, ROOT, "a");
        table.opened(10, Arc::new(3), true);
        remove(&table, 10, "a", true);
        table.forget(10, 1);
        assert_eq!(table.content(10).as_deref(), Some(&3));
        assert!(table.held(10).is_some());
        table.closed(10);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn behind_a_write_that_was_refused_others_are_for_a_moment() {
        let (table, now) = (table(), Instant::now());
        found(&table, 10, ROOT, "a");
        table.opened(10, Arc::new(3), true);
        table.set_base(10, 100);
        assert_eq!(table.refuses(10, 5000, now), None);
        assert_eq!(table.refuse(10, (7, 5000..6000), 28, now), Some(5000), "the content ends there");
        assert_eq!(table.refuses(10, 5000, now), Some(28));
        assert_eq!(table.refuses(10, 4999, now), None);
        assert_eq!(table.refuse(10, (8, 9000..9001), 5, now), Some(5000), "the first one counts");
        assert_eq!(table.refuse(10, (6, 4000..5000), 28, now), Some(4000));
        assert_eq!(table.refuses(10, 4000, now + REFUSING), None, "there may be room again");
        // What was there before stays.
        assert_eq!(table.refuse(10, (5, 50..200), 28, now), Some(100));
        assert_eq!((table.refuses(10, 99, now), table.refuses(10, 100, now)), (None, Some(28)));
        // Nor does what was synced since go, whatever was refused before it.
        table.set_base(10, 2_000_000);
        assert_eq!(table.refuse(10, (9, 2_000_000..2_100_000), 28, now), Some(2_000_000));
        assert_eq!(
            table.refuse(10, (10, 0..100), 5, now),
            Some(2_000_000),
            "what was to grow ends there still"
        );
        let later = now + REFUSING;
        assert_eq!(table.refuse(10, (11, 2_300_000..2_400_000), 28, later), Some(2_300_000));
        table.set_len(10, 3_000_000);
        assert!(table.is_refused(10), "its end is zeros that nobody wrote");
        table.set_len(10, 0);
        assert_eq!((table.refuses(10, 2_300_000, later), table.is_refused(10)), (None, false));
        table.raise_base(10, 500);
        assert_eq!(table.refuse(10, (12, 0..100), 28, later), None, "it was copied");
        found(&table, 11, ROOT, "b");
        table.set_base(11, 100);
        assert_eq!(table.refuse(11, (1, 0..100), 28, now), None, "it overwrites");
        assert_eq!(table.refuses(11, 100, now), None);
    }

    #[test]
    fn what_was_asked_for_before_a_refused_write_stays() {
        let (table, now) = (table(), Instant::now());
        found(&table, 10, ROOT, "a");
        // Threads note them in any order.
        for (request, end) in [(4, 4000), (1, 1000), (3, 3000), (2, 2000)] {
            table.writes(10, request, end);
        }
        assert_eq!(table.refuse(10, (3, 2000..3000), 28, now), Some(2000), "the fourth came behind it");
        found(&table, 11, ROOT, "b");
        table.writes(11, 1, 9000);
        table.writes(11, 2, 2000);
        assert_eq!(table.refuse(11, (2, 1000..2000), 28, now), None, "in front of what was there");
        table.writes(11, 3, 10_000);
        assert_eq!(table.refuse(11, (3, 8000..10_000), 28, now), Some(9000));
        found(&table, 12, ROOT, "c");
        for request in 0..2 * GROWTH as u64 {
            table.writes(12, request, (request + 1) * 10);
        }
        assert_eq!(table.refuse(12, (500, 5000..5010), 28, now), Some(5000));
        assert_eq!(table.refuse(12, (9, 90..100), 28, now), Some(5000), "too long ago to be told");
        table.set_len(12, 50);
        assert_eq!(table.refuse(12, (600, 60..70), 28, now), Some(60));
    }

    #[test]
    fn a_time_that_the_kernel_set_is_told_once_after_writes_that_follow() {
        let table = table();
        let time = Timespec { tv_sec: 5, tv_nsec: 6 };
        found(&table, 10, ROOT, "a");
        table.timed(10, time);
        table.writes(10, 1, 100);
        assert_eq!(table.time_of(10), None, "nobody has it open to be written");
        assert!(table.writer_came(10));
        table.writes(10, 2, 200);
        assert_eq!(table.time_of(10), None, "the kernel is going to set it");
        table.timed(10, time);
        assert_eq!(table.time_of(10), None);
        table.set_base(10, 1000);
        table.writes(10, 3, 100);
        assert_eq!((table.time_of(10), table.time_of(10)), (Some(time), None));
        assert!(table.is_time_of(10, time));
        table.writer_gone(10);
        assert!(!table.is_time_of(10, time));
    }

    #[test]
    fn what_was_refused_has_another_number_once_it_is_closed_and_its_next_sync_says_so() {
        let (table, now) = (table(), Instant::now());
        found(&table, 10, ROOT, "a");
        table.opened(10, Arc::new(3), true);
        table.refuse(10, (1, 5000..6000), 28, now);
        assert_eq!(table.outlived((7, 10), 10, now), Err(StillOpen));
        assert_eq!(table.outlived((7, 10), 10, now + REFUSING), Ok(None), "its opener knows");
        table.closed(10);
        found(&table, 10, ROOT, "a");
        assert_eq!(table.untold(10), None, "the kernel tells it");
        let other = table.outlived((7, 10), 10, now).unwrap().unwrap();
        assert_eq!(table.number((7, 10)), other);
        assert_eq!(table.outlived((7, 10), other, now), Ok(None));
        table.set_len(other, 10_000);
        assert_eq!((table.untold(other), table.untold(other)), (Some(28), None));
        found(&table, 11, ROOT, "b");
        table.refuse(11, (1, 0..100), 28, now);
        table.forget(11, 1);
        assert_eq!(table.untold(11), Some(28), "the kernel forgot it");
        found(&table, 11, ROOT, "b");
        table.refuse(11, (1, 0..100), 28, now);
        table.forget(11, 1);
        table.number_for((7, 11), FILE, true);
        assert_eq!(table.untold(11), None, "another file");
    }

    #[test]
    fn of_several_names_the_rest_is_found() {
        let table = table();
        found(&table, 10, ROOT, "a");
        found(&table, 10, ROOT, "b");
        table.mistaken(10, ROOT, "b".as_ref());
        assert_eq!(name(&table, 10), Some((ROOT, "a".into())));
        for more in 0..20 {
            assert!(table.name_added(10, ROOT, format!("n{more}").as_ref()));
        }
        assert!(!table.name_added(10, ROOT, "n19".as_ref()));
        table.name_gone(10, ROOT, "n19".as_ref());
        assert_eq!(name(&table, 10), Some((ROOT, "n18".into())));
        assert_eq!(table.name(10, 1).map(|name| name.stored), Some(OsStr::new("n17").into()));
        table.forget(10, 1);
        assert_eq!(table.counts(), (0, 0));
    }

    #[test]
    fn an_inode_is_small() {
        assert!(size_of::<(u64, Node<u8>)>() <= 128, "{}", size_of::<(u64, Node<u8>)>());
    }
}
